"""6.1: the share of multiply-adds that is useful if C is computed in whole tiles of 4 x 16.

Give it for a C of 19 x 41 and for a C of 1 x 1,000, as a number between 0 and 1 or as a fraction.
"""

import math

from kernel_lab import registry, show
from kernel_lab.workload import Processor

useful_19_41 = ...
useful_1_1000 = ...


def share(m, n):
    avx2 = Processor(cores=2, registers=16, lanes=8)
    pack = registry.ladder("gemm", "cpu")["pack"]
    size = {"M": m, "N": n, "K": 8}
    counted = show(pack.schedule, define=pack.define, size=size, processor=avx2)
    loads = int((~counted.trace.of_buffer("packed").is_store).sum())
    return m * n * 8 / loads


def check():
    for m, n, mine in ((19, 41, useful_19_41), (1, 1000, useful_1_1000)):
        text, reason = f"useful_{m}_{n} is {mine:.3g}", "which area do the whole tiles cover?"
        yield math.isclose(mine, share(m, n), abs_tol=0.005), text, reason
