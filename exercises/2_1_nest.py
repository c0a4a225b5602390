"""2.1: write the schedule that makes these loops of a product of 8 x 32 x 8:

for j_0, i_0, k, i_1, j_1 in T.grid(2, 4, 8, 2, 16):
"""

from kernel_lab import show
from kernel_lab.ir_views import tvmscript

WANTED = "for j_0, i_0, k, i_1, j_1 in T.grid(2, 4, 8, 2, 16):"


def nest(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))  # noqa: RUF059
    ...


def check():
    mine = show(nest, size={"M": 8, "N": 32, "K": 8})
    yield mine
    lines = [line.strip() for line in tvmscript(mine.module).splitlines()]
    loops = [line for line in lines if line.startswith("for ")]
    yield loops == [WANTED], f"your loops: {' '.join(loops).rstrip(':')}", f"must be {WANTED}"
