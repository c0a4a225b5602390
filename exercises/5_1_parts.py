"""5.1: a parallel loop has 20 iterations, and there are 8 cores.

How many workers have something to do? How many times faster than one core can they be, if each
iteration takes the same time? (A fraction such as 20 / 8 is fine.)
"""

import numpy as np

from kernel_lab import show
from kernel_lab.workload import Processor

busy = ...
times_faster = ...


def check():
    def rows(sch, case):
        sch.parallel(sch.get_loops(sch.get_sblock("C"))[0])

    processor = Processor(cores=8)
    run = show(rows, size={"M": 20, "N": 4, "K": 4}, processor=processor).trace
    parts = np.unique(run.worker, return_counts=True)[1]
    reason = "count the parts that have an iteration: the last cores may get none"
    yield busy == len(parts), f"busy is {busy}", reason
    right = abs(times_faster - len(run) / parts.max()) < 0.01
    reason = "the largest part decides"
    yield right, f"times_faster is {times_faster:.3g}", reason
