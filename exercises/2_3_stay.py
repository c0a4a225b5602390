"""2.3: find the order of the loops in which consecutive iterations use the same element of B for as
long as possible.
"""

import numpy as np

from kernel_lab import show


def stay(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))  # noqa: RUF059
    ...


def check():
    mine = show(stay, size={"M": 16, "N": 8, "K": 4})
    yield mine
    used = mine.trace.of_buffer("B").index
    moves = int(np.count_nonzero(np.diff(used)))
    text = f"the element of B changes {moves} times in {used.size} iterations"
    yield moves == len(np.unique(used)) - 1, text, "another order changes it fewer times"
