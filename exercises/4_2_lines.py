"""4.2: the lines that the loops of a register tile of 6 x 16 access, in a product of 24 x 32 x 16.

As in lesson 4, the tile loads a row of B once for each row of the tile. Its schedule is below; it
neither splits k nor unrolls loops, which changes none of these numbers.
"""

from kernel_lab import show
from kernel_lab.workload import Processor

lines_of_a = ...
lines_of_b = ...
lines_of_c = ...


def tile(sch, case):
    c = sch.get_sblock("C")
    write = sch.cache_write(c, 0, "local")
    i, j = sch.get_loops(write)
    i_outer, i_inner = sch.split(i, [None, 6])
    j_outer, j_inner = sch.split(j, [None, 16])
    sch.reorder(i_outer, j_outer, i_inner, j_inner)
    sch.compute_at(c, j_outer, preserve_unit_loops=True)
    row, column, k = sch.get_loops(c)[-3:]
    sch.reorder(k, row, column)
    sch.vectorize(column)
    sch.vectorize(j_inner)


def check():
    avx2 = Processor(cores=1, registers=16, lanes=8)
    lines = show(tile, size={"M": 24, "N": 32, "K": 16}, processor=avx2).lines
    reason = "count the steps of k in all tiles, and the lines of one step"
    yield lines_of_a == lines["A"], f"lines_of_a is {lines_of_a}", reason
    yield lines_of_b == lines["B"], f"lines_of_b is {lines_of_b}", reason
    yield lines_of_c == lines["C"], f"lines_of_c is {lines_of_c}", "C is stored after the sums"
