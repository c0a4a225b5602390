"""7.1: the shape of a warp.

A block of 256 threads can have 8, 16 or 32 threads along `threadIdx.x`, which goes along the
columns of C. Predict the sectors that a warp loads in one step of k, of A and of B together. Then
write the schedule of a block of 8 x 32 threads: 8 rows and 32 columns.
"""

from kernel_lab import show

SIZE = {"M": 32, "N": 32, "K": 16}

predicted = {8: ..., 16: ..., 32: ...}  # threads along x: sectors of A and B


def wide(sch, case):
    i, j, k = sch.get_loops(sch.get_sblock("C"))
    ...


def check():
    for columns, sectors in predicted.items():
        rows = 32 // columns
        counted = rows + -(-columns // 8)
        yield sectors == counted, f"your sectors for a warp of {rows} x {columns}: {sectors}"
    mine = show(wide, device="cuda", size=SIZE)
    yield mine
    asked = mine.gpu.requests.loads
    yield (
        (asked["A"], asked["B"]) == (1, 4),
        f"sectors of a request: A {asked['A']:g}, B {asked['B']:g}",
    )
