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


def sectors_of(columns):
    """Return the sectors of A and of B that a warp touches at k = 0."""
    places = [divmod(thread, columns) for thread in range(32)]
    in_a = {row * SIZE["K"] * 4 // 32 for row, _ in places}
    in_b = {column * 4 // 32 for _, column in places}
    return len(in_a), len(in_b)


def check():
    for columns, sectors in predicted.items():
        text = f"predicted[{columns}] is {sectors}"
        reason = "draw the warp over C: which rows of A, and which columns of B does it need?"
        yield sectors == sum(sectors_of(columns)), text, reason
    mine = show(wide, device="cuda", size=SIZE)
    yield mine
    asked = mine.gpu.requests.loads
    text = f"sectors of a request of `wide`: A {asked['A']:g}, B {asked['B']:g}"
    yield (asked["A"], asked["B"]) == sectors_of(32), text, "a block must have 32 threads along x"
