"""Matmul on a GPU: from one result per thread to register tiles.

The steps up to shared memory are those of W. Ye, "TVM: GEMM GPU Optimization" (2025). Register
tiles, vector loads and double buffering follow V. Volkov and J. Demmel, "Benchmarking GPUs to tune
dense linear algebra" (SC 2008). The ladder goes on with tensor cores in `gemm_tensor_core`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.ladders.cuda_limits import grid_claim
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case, Size
from kernel_lab.workloads import gemm

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(gemm.GEMM, "cuda")

WARP = 32
EDGE = 16  # edge of a square block of threads
STEP = 8  # steps of k in shared memory at a time
TILE = 64  # edge of a block's results once threads have several
EACH = 4  # results of a thread along each axis


def multiples(size: Size, **tiles: int) -> str | None:
    """Return why a size is not a whole number of tiles of these extents; None if it is."""
    for name, tile in tiles.items():
        if size[name] % tile:
            return f"{name}={size[name]} is not a multiple of {tile}"
    return None


def bands_fit(size: Size) -> str | None:
    """Return why square blocks refuse a size: too many bands of rows for the grid's y axis; or
    None."""
    return grid_claim(y=-(-size["M"] // EDGE))


def whole_tiles(size: Size) -> str | None:
    """Return why register tiles refuse a size: results beyond the edge, or too many bands; or
    None."""
    return multiples(size, M=TILE, N=TILE, K=STEP) or grid_claim(y=size["M"] // TILE)


@ladder.rung(expected=(1, 1), kind="naive", claims=lambda size: grid_claim(y=size["M"]))
def naive(sch: Schedule, case: Case) -> None:
    """Give each result a block of a single thread (the baseline of W. Ye, "TVM: GEMM
    GPU Optimization").

    A warp has 32 lanes and uses one: the other 31 are idle, and no two loads are ever combined.
    """
    c = sch.get_sblock("C")
    i, j, _ = sch.get_loops(c)
    sch.bind(i, "blockIdx.y")
    sch.bind(j, "blockIdx.x")


@ladder.rung(expected=(1.5, 8), claims=lambda size: grid_claim(y=size["N"]))
def threads_1d(sch: Schedule, case: Case) -> None:
    """Use blocks of 32 threads down a column of C (Ye's v1).

    All lanes of a warp work, but neighbouring lanes read A one whole row apart: each load touches
    32 cache lines and uses one element of each.
    """
    c = sch.get_sblock("C")
    i, j, _ = sch.get_loops(c)
    i_outer, i_inner = sch.split(i, [None, WARP])
    sch.reorder(i_outer, j, i_inner)
    sch.bind(i_outer, "blockIdx.x")
    sch.bind(j, "blockIdx.y")
    sch.bind(i_inner, "threadIdx.x")


@ladder.rung(kind="failed", claims=bands_fit, expected=(0.8, 1.4))
def threads_2d_rows(sch: Schedule, case: Case) -> None:
    """FAILS: use 16 x 16 threads with threadIdx.x along the rows (Ye's v2, 1.04 times).

    Neighbouring lanes still differ in the row, so every load of A and every store of C is spread
    over as many cache lines as there are lanes in x.
    """
    square(sch, row="threadIdx.x", column="threadIdx.y")


@ladder.rung(after=threads_1d, claims=bands_fit, expected=(2, 8))
def threads_2d(sch: Schedule, case: Case) -> None:
    """Use 16 x 16 threads with threadIdx.x along the columns: neighbouring lanes read neighbouring
    elements.

    A load of B and a store of C are two runs of 64 bytes for a warp; a load of A is a broadcast.
    """
    square(sch, row="threadIdx.y", column="threadIdx.x")


def square(sch: Schedule, row: str, column: str) -> tuple[Any, Any]:
    """Give each thread of a square block one result; return the block of the sums and its loop over
    k."""
    c = sch.get_sblock("C")
    i, j, k = sch.get_loops(c)
    bind_square(sch, i, j, row, column)
    return c, k


def bind_square(sch: Schedule, i: Any, j: Any, row: str, column: str) -> None:
    """Bind rows and columns to blocks of 16 x 16 threads."""
    i_outer, i_inner = sch.split(i, [None, EDGE])
    j_outer, j_inner = sch.split(j, [None, EDGE])
    sch.reorder(i_outer, j_outer, i_inner, j_inner)
    sch.bind(i_outer, "blockIdx.y")
    sch.bind(j_outer, "blockIdx.x")
    sch.bind(i_inner, row)
    sch.bind(j_inner, column)


@ladder.rung(expected=(1.2, 5))
def shared_memory(sch: Schedule, case: Case) -> None:
    """Load strips of A and B, 8 of k deep, into shared memory with all threads together.

    Each element comes from global memory once per block instead of 16 times. Every thread loads its
    share (cooperative fetching), and neighbouring threads load neighbouring elements.
    """
    c, k = square(sch, row="threadIdx.y", column="threadIdx.x")
    k_outer, _ = sch.split(k, [None, STEP])
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "shared")
        sch.compute_at(copy, k_outer, preserve_unit_loops=True)
        _fetch(sch, copy, (EDGE, EDGE))


def _fetch(sch: Schedule, copy: Any, threads: tuple[int, int], vector: int = 1) -> None:
    """Distribute a copy over a block's threads (y, x), `vector` elements at a time."""
    loop = sch.fuse(*sch.get_loops(copy)[-2:])
    y, x = threads
    _, ty, tx, lane = sch.split(loop, [None, y, x, vector])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lane)


def tiled(sch: Schedule, step: int, vector: int, result: str = "C") -> tuple[Any, Any]:
    """Split C into blocks of 64 x 64 results, 4 x 4 for each thread, with operands in shared
    memory.

    `result` is the block that writes the results, if it is not the matmul itself. Returns the block
    of the sums and the loop over steps of k.
    """
    c = sch.get_sblock("C")
    if result == "C":
        write = sch.cache_write(c, 0, "local")
    else:
        write = sch.get_sblock(result)
        sch.set_scope(c, 0, "local")
    i, j, k = sch.get_loops(c)
    threads = TILE // EACH
    i_block, i_thread, i_own = sch.split(i, [None, threads, EACH])
    j_block, j_thread, j_own = sch.split(j, [None, threads, EACH])
    k_outer, k_inner = sch.split(k, [None, step])
    sch.reorder(i_block, j_block, i_thread, j_thread, k_outer, k_inner, i_own, j_own)
    sch.bind(i_block, "blockIdx.y")
    sch.bind(j_block, "blockIdx.x")
    sch.bind(i_thread, "threadIdx.y")
    sch.bind(j_thread, "threadIdx.x")
    sch.reverse_compute_at(write, j_thread, preserve_unit_loops=True)
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "shared")
        sch.compute_at(copy, k_outer, preserve_unit_loops=True)
        _fetch(sch, copy, (threads, threads), vector)
    if vector > 1:
        sch.vectorize(sch.get_loops(write)[-1])
    sch.unroll(k_inner)
    sch.unroll(i_own)
    sch.unroll(j_own)
    return c, k_outer


@ladder.rung(expected=(2, 6), claims=whole_tiles)
def register_tile(sch: Schedule, case: Case) -> None:
    """Sum 4 x 4 results per thread in registers, 64 x 64 per block.

    Eight values read from shared memory serve sixteen multiply-adds instead of two serving one, and
    each element of A and B comes from global memory a quarter as often.
    """
    c, k_outer = tiled(sch, STEP, vector=1)
    sch.decompose_reduction(c, k_outer)


@ladder.rung(expected=(1.0, 1.6))
def vector_loads(sch: Schedule, case: Case) -> None:
    """Read and write global memory four elements, 16 bytes, at a time, with k in steps of 16.

    This takes a quarter of the load instructions, and a thread computes one address for four
    elements.
    """
    c, k_outer = tiled(sch, 2 * STEP, vector=4)
    sch.decompose_reduction(c, k_outer)


def deep_tiles(size: Size) -> str | None:
    """Return why the rungs with steps of 16 along k refuse a size; None if they take it."""
    return multiples(size, K=2 * STEP) or whole_tiles(size)


@ladder.rung(expected=(0.9, 1.4), claims=deep_tiles)
def double_buffer(sch: Schedule, case: Case) -> None:
    """Keep two copies of each strip in shared memory: one is filled while the other is multiplied.

    A warp that has finished may fetch before the others finish. But fetched values go through
    registers and are stored before the multiplication begins, so each warp still waits for its own
    loads, and TVM keeps both barriers, since it does not see that the copies differ. `async_copies`
    waits less.
    """
    c, k_outer = tiled(sch, 2 * STEP, vector=4)
    sch.annotate(k_outer, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k_outer, "software_pipeline_order", [0, 1, 2])
    sch.decompose_reduction(c, k_outer)


@ladder.rung(kind="failed", after=threads_2d, claims=bands_fit, expected=(0.3, 1.0))
def local_copies(sch: Schedule, case: Case) -> None:
    """FAILS: copy strips of A and B to each thread's own local memory (as in W. Daugherty-Miller,
    "Assignment A3: Compiling DNNs with TVM").

    Nothing is shared: every thread fetches a whole strip of its own from global memory. These 16
    values fit into registers, so the loads are those of `threads_2d`; longer strips would spill.
    """
    c, k = square(sch, row="threadIdx.y", column="threadIdx.x")
    k_outer, _ = sch.split(k, [None, STEP])
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "local")
        sch.compute_at(copy, k_outer, preserve_unit_loops=True)
