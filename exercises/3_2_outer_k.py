"""3.2: the order k, i, j of a product of 32 x 32 x 32, and an LRU cache of 32 lines.

The sums start within the loops, without `decompose_reduction`. How many misses do A, B and C have?
"""

import numpy as np

from kernel_lab import show
from kernel_lab.trace.statistics import cache_misses
from kernel_lab.workload import Processor

misses_of_a = ...
misses_of_b = ...
misses_of_c = ...


def outer_k(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))
    sch.reorder(k, i, j)


def check():
    one_core = Processor(cores=1, registers=16, lanes=8)
    run = show(outer_k, size={"M": 32, "N": 32, "K": 32}, processor=one_core).trace
    found = cache_misses(run, 32 * 64).line * 64
    bases = [buffer.base for buffer in run.buffers] + [1 << 30]
    counts, _ = np.histogram(found, bases)
    mine_of = (misses_of_a, misses_of_b, misses_of_c)
    for name, mine, count in zip("abc", mine_of, counts, strict=True):
        reason = "which of its lines are gone when the next k needs them?"
        yield mine == count, f"misses_of_{name} is {mine}", reason
