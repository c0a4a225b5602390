"""6.3: choose how many steps of k to unroll: as many as possible, at most 8, so that no `T.where`
is in the sum at any K.
"""

from kernel_lab import show
from kernel_lab.ir_views import tvmscript


def steps(k):
    return ...


def unrolled(sch, case):
    _, _, k = sch.get_loops(sch.get_sblock("C"))
    _, k_inner = sch.split(k, [None, steps(case["K"])])
    sch.unroll(k_inner)


def check():
    for k, most in ((24, 8), (23, 1), (20, 5), (49, 7), (3, 3)):
        yield steps(k) == most, f"steps at K = {k}: {steps(k)}", "there is a better number"
        mine = show(unrolled, size={"M": 4, "N": 4, "K": k})
        yield mine
        tests = tvmscript(mine.module).count("T.where")
        yield not tests, f"{tests} T.where at K = {k}"
