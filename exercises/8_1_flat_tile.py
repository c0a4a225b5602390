"""8.1: a tile of 2 x 8 results.

A block has 16 x 16 threads and strips of 8 steps of k. Each thread has `rows` x `columns` results,
16 together. Predict the loads for each multiply-add for 2 x 8 results, from shared memory and from
global memory (4 x 4 results: 1/2 and 1/32). Then fill in the tile.
"""

from kernel_lab import show

SIZE = {"M": 64, "N": 128, "K": 8}

from_shared = ...
from_global = ...
rows = ...
columns = ...


def flat_tile(sch, case):
    c = sch.get_sblock("C")
    write = sch.cache_write(c, 0, "local")
    i, j, k = sch.get_loops(c)
    i_block, i_thread, i_own = sch.split(i, [None, 16, rows])
    j_block, j_thread, j_own = sch.split(j, [None, 16, columns])
    k_outer, k_inner = sch.split(k, [None, 8])
    sch.reorder(i_block, j_block, i_thread, j_thread, k_outer, k_inner, i_own, j_own)
    sch.bind(i_block, "blockIdx.y")
    sch.bind(j_block, "blockIdx.x")
    sch.bind(i_thread, "threadIdx.y")
    sch.bind(j_thread, "threadIdx.x")
    sch.reverse_compute_at(write, j_thread, preserve_unit_loops=True)
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "shared")
        sch.compute_at(copy, k_outer, preserve_unit_loops=True)
        strip = sch.fuse(*sch.get_loops(copy)[-2:])
        _, ty, tx = sch.split(strip, [None, 16, 16])
        sch.bind(ty, "threadIdx.y")
        sch.bind(tx, "threadIdx.x")
    for loop in (k_inner, i_own, j_own):
        sch.unroll(loop)
    sch.decompose_reduction(c, k_outer)


def loads(shown, different=False):
    size, found, count = shown.traced, shown.trace, 0
    for name in ("A_shared", "B_shared") if different else ("A", "B"):
        one = found.of_buffer(name)
        one = one.select(~one.is_store)
        parts = (one.worker.tolist(), one.thread.tolist(), one.index.tolist())
        loaded = list(zip(*parts, strict=True))
        count += len(set(loaded) if different else loaded)
    return count / (size["M"] * size["N"] * size["K"])


def check():
    yield (rows, columns) == (2, 8), f"the tile is {rows} x {columns}"
    mine = show(flat_tile, device="cuda", size=SIZE)
    yield mine
    reason = "divide the loads of one thread in a step of k by its multiply-adds"
    counted = loads(mine, different=True)
    yield from_shared == counted, f"from_shared is {from_shared}", reason
    reason = "divide the elements of a block's two strips by its multiply-adds"
    counted = loads(mine)
    yield from_global == counted, f"from_global is {from_global}", reason
