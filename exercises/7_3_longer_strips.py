"""7.3: longer strips in shared memory.

`shared_memory` takes strips of 8 steps of k. Predict the loads of A and B from global memory for
each multiply-add if a strip has 16 steps, and the barriers at K = 64. (With 8 steps there are 16
barriers: two for each strip.) Then write the schedule: 16 x 16 threads, as before.
"""

from kernel_lab import show

SIZE = {"M": 32, "N": 32, "K": 64}

loads = ...  # for each multiply-add
barriers = ...  # at K = 64


def square(sch, row, column):
    c = sch.get_sblock("C")
    i, j, k = sch.get_loops(c)
    i_block, i_thread = sch.split(i, [None, 16])
    j_block, j_thread = sch.split(j, [None, 16])
    sch.reorder(i_block, j_block, i_thread, j_thread)
    sch.bind(i_block, "blockIdx.y")
    sch.bind(j_block, "blockIdx.x")
    sch.bind(i_thread, row)
    sch.bind(j_thread, column)
    return c, k


def fetch(sch, copy, y, x):
    strip = sch.fuse(*sch.get_loops(copy)[-2:])
    _, ty, tx, _ = sch.split(strip, [None, y, x, 1])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")


def longer(sch, case):
    c, k = square(sch, row="threadIdx.y", column="threadIdx.x")
    ...


def check():
    mine = show(longer, device="cuda", size=SIZE)
    yield mine
    counted = sum((~mine.trace.of_buffer(name).is_store).sum() for name in "AB") / (32 * 32 * 64)
    yield loads == counted, f"your loads for each multiply-add: {loads}"
    found = len(mine.trace.barriers)
    strips = SIZE["K"] // 16
    yield found == 2 * strips, f"barriers of the schedule: {found}", "must be two for each strip"
    yield barriers == found, f"your barriers: {barriers}"
