"""2.2: a product of 10 x 10 x 10, in which i and j are both split by 4.

How many iterations do the loops have altogether, and in how many of them does `T.where` skip the
block?
"""

import math

from kernel_lab import show

iterations = ...
skipped = ...


def by_four(sch, case):
    i, j, _ = sch.get_loops(sch.get_sblock("C"))
    sch.split(i, [None, 4])
    sch.split(j, [None, 4])


def check():
    counted = show(by_four, size={"M": 10, "N": 10, "K": 10})
    loops = math.prod(loop.extent for loop in counted.trace.loops)
    yield iterations == loops, f"iterations is {iterations}", "round the outer loops up"
    reason = "the iterations of the definition remain"
    yield skipped == loops - counted.lines["A"], f"skipped is {skipped}", reason
