"""6.2: mend a definition in whole tiles that reads outside of B.

`column` is a column of the tiles, which may lie beyond the last column of B. Return the column of B
to read instead. There are `n` columns; the results of columns beyond the last are not used.
"""

from kernel_lab import show
from needle_tvm._tvm.names import te

COLUMNS = 16


def column_of_b(column, n):
    return ...


def in_panels(case):
    m, n, k = case["M"], case["N"], case["K"]
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="k")

    def product(panel, i, j):
        column = column_of_b(panel * COLUMNS + j, n)
        if column is None:
            raise TypeError("column_of_b returned None, not a column")
        return te.sum(a[i, r] * b[r, column], axis=r)

    panels = te.compute((-(-n // COLUMNS), m, COLUMNS), product, name="panels")
    c = te.compute((m, n), lambda i, j: panels[j // COLUMNS, i, j % COLUMNS], name="C")
    return [a, b, c]


def plain(sch, case):
    """Leave the loops as they are."""


def check():
    for n in (1, 16, 17, 41):
        yield show(plain, define=in_panels, size={"M": 3, "N": n, "K": 5})
