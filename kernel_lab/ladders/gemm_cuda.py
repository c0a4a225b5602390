"""Matmul on a GPU: from one result per thread to register tiles.

The steps up to shared memory follow W. Ye, "TVM: GEMM GPU Optimization" (2025). Register
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
    """Return why a size has too many bands of square blocks for the grid's y axis; None if they
    fit."""
    return grid_claim(y=-(-size["M"] // EDGE))


def whole_tiles(size: Size) -> str | None:
    """Return why register tiles do not fit a size (results beyond the edge, or too many bands);
    None if they fit."""
    return multiples(size, M=TILE, N=TILE, K=STEP) or grid_claim(y=size["M"] // TILE)


@ladder.rung(expected=(1, 1), kind="naive", claims=lambda size: grid_claim(y=size["M"]))
def naive(sch: Schedule, case: Case) -> None:
    """Give each result a block of a single thread (the baseline of W. Ye, "TVM: GEMM
    GPU Optimization").

    A warp has 32 lanes and uses one: the other 31 are idle, and no two loads are ever combined.

    Picture: Each panel is one request of one warp: a single coloured bar at thread 0, and one
    sector. The request uses an eighth of the sector.
    """
    c = sch.get_sblock("C")
    i, j, _ = sch.get_loops(c)
    sch.bind(i, "blockIdx.y")
    sch.bind(j, "blockIdx.x")


@ladder.rung(expected=(2, 6), claims=lambda size: grid_claim(y=size["N"]))
def threads_1d(sch: Schedule, case: Case) -> None:
    """Use blocks of 32 threads down a column of C (Ye's v1).

    All lanes of a warp work, but neighbouring lanes read A one whole row apart: each load touches
    32 cache lines and uses one element of each.

    Prediction: a warp's step of k moves 33 sectors for 32 multiply-adds, where 32 blocks of one
    thread moved 64: a factor of 1.9. A first-level cache that serves four sectors in a cycle takes
    9 cycles instead of 64: a factor of 7.

    Picture: A and C are staircases of 32 steps, one in each sector: neighbouring threads are a
    whole row apart, and use 4 of the 32 bytes of a sector. All bars of B are in one place: the
    threads read the same element, which costs one sector.
    """
    c = sch.get_sblock("C")
    i, j, _ = sch.get_loops(c)
    i_outer, i_inner = sch.split(i, [None, WARP])
    sch.reorder(i_outer, j, i_inner)
    sch.bind(i_outer, "blockIdx.x")
    sch.bind(j, "blockIdx.y")
    sch.bind(i_inner, "threadIdx.x")


@ladder.rung(kind="failed", claims=bands_fit, expected=(0.95, 1.9))
def threads_2d_rows(sch: Schedule, case: Case) -> None:
    """FAILS: use 16 x 16 threads with threadIdx.x along the rows (Ye's v2, 1.04 times).

    Neighbouring lanes still differ in the row, so every load of A and every store of C is spread
    over as many cache lines as there are lanes in x.

    Prediction: 16 + 1 sectors for a step of k instead of 32 + 1, if sectors are the limit; nothing
    else changes.

    Picture: A's staircase has 16 steps. Two threads share each step, but still only an eighth of
    each sector is used.
    """
    square(sch, row="threadIdx.x", column="threadIdx.y")


@ladder.rung(after=threads_1d, claims=bands_fit, expected=(3, 8))
def threads_2d(sch: Schedule, case: Case) -> None:
    """Use 16 x 16 threads with threadIdx.x along the columns: neighbouring lanes read neighbouring
    elements.

    A warp's load of B or store of C covers two stretches of 64 bytes; a load of A is a broadcast.

    Prediction: 2 + 2 sectors instead of 32 + 1, a factor of 8; in cycles of a first-level cache
    that serves four sectors at a time, 2 instead of 9.

    Picture: C is a staircase without gaps: 4 sectors, each used completely. In B, two rows of
    threads read the same 16 elements, which are 2 sectors. In A, 16 threads read the same element.
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


@ladder.rung(expected=(1.2, 3))
def shared_memory(sch: Schedule, case: Case) -> None:
    """Load strips of A and B, 8 of k deep, into shared memory with all threads together.

    Each element comes from global memory once per block instead of 16 times. Every thread loads its
    share (cooperative fetching), and neighbouring threads load neighbouring elements.

    Prediction: two requests to the first-level cache for each step of k become 1.25 loads from
    shared memory (nvcc joins four steps' loads of A): 1.6 times fewer. The rest of the gain comes
    from shorter waits for the second-level cache, which gets 16 times fewer loads.

    Picture: Dotted lines are barriers, two for each step of k's outer loop. No thread may overwrite
    a strip that other threads still read, or read a strip that is not complete. Between the two,
    `A_shared` and `B_shared` are pale because each element is stored once; to the right of them the
    strips are read for 8 steps of k. `B_shared` is violet because all warps read all of it.
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


@ladder.rung(expected=(2.2, 4.5), claims=whole_tiles)
def register_tile(sch: Schedule, case: Case) -> None:
    """Sum 4 x 4 results per thread in registers, 64 x 64 per block.

    Eight values read from shared memory serve sixteen multiply-adds instead of two serving one, and
    each element of A and B comes from global memory a quarter as often.

    Prediction: of the instructions that load or multiply, 128 of 144 are multiply-adds, 89 %, where
    it was one in two or three: a factor of 1.8 to 2.7. Each strip serves four times as many
    results, so barriers and fetches cost a quarter.

    Picture: Threads that read the *same* word are served together; only different words of one bank
    take turns. In B, threads 0 to 7 read every fourth word, and threads 8 to 15 words in the same
    banks, 32 words further on: two turns. TVM's loops read in this way. nvcc reads 4 neighbours
    with one instruction, and this read takes one turn.
    """
    c, k_outer = tiled(sch, STEP, vector=1)
    sch.decompose_reduction(c, k_outer)


@ladder.rung(expected=(1, 1.25))
def vector_loads(sch: Schedule, case: Case) -> None:
    """Read and write global memory four elements, 16 bytes, at a time, with k in steps of 16.

    This takes a quarter of the load instructions, and a thread computes one address for four
    elements.

    Prediction: the fetches' loads and stores become a quarter; they were a tenth of the
    instructions. C is stored once, at the end, with one request of 16 sectors instead of four.

    Picture: Each bar is 16 bytes long, and a request moves 16 sectors and uses all of them.
    """
    c, k_outer = tiled(sch, 2 * STEP, vector=4)
    sch.decompose_reduction(c, k_outer)


def deep_tiles(size: Size) -> str | None:
    """Return why the rungs with steps of 16 along k do not take a size; None if they take it."""
    return multiples(size, K=2 * STEP) or whole_tiles(size)


@ladder.rung(expected=(0.9, 1.2), claims=deep_tiles)
def double_buffer(sch: Schedule, case: Case) -> None:
    """Keep two copies of each strip in shared memory: one is filled while the other is multiplied.

    A warp that has finished may fetch before the others finish. But fetched values go through
    registers and are stored before the multiplication begins, so each warp still waits for its own
    loads. TVM keeps both barriers, since it does not see that the copies differ. `async_copies`
    waits less.

    Prediction: both barriers remain. The wait for a strip overlaps with other warps' arithmetic
    only, and there are 24 warps instead of 32, since a thread has 67 registers.

    Picture: `A_shared` and `B_shared` are twice as high. Both fetches are at the left, because the
    second strip is fetched before the first product. Then the lower half is read, and after it the
    upper half.
    """
    c, k_outer = tiled(sch, 2 * STEP, vector=4)
    sch.annotate(k_outer, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k_outer, "software_pipeline_order", [0, 1, 2])
    sch.decompose_reduction(c, k_outer)


@ladder.rung(kind="failed", after=threads_2d, claims=bands_fit, expected=(0.85, 1.05))
def local_copies(sch: Schedule, case: Case) -> None:
    """FAILS: copy strips of A and B to each thread's own local memory (as in W. Daugherty-Miller,
    "Assignment A3: Compiling DNNs with TVM").

    Nothing is shared: every thread fetches a whole strip of its own from global memory. These 16
    values fit into registers, so the loads are the same as in `threads_2d`; longer strips would
    spill.

    Prediction: the hot loop has 16 loads and 8 multiply-adds, like the hot loop of `threads_2d`.

    Picture: The requests are the same as in `threads_2d`, panel by panel. The copy only moves the
    loads to a place before the product.
    """
    c, k = square(sch, row="threadIdx.y", column="threadIdx.x")
    k_outer, _ = sch.split(k, [None, STEP])
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "local")
        sch.compute_at(copy, k_outer, preserve_unit_loops=True)
