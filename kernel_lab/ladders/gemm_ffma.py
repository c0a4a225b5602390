"""The last float32 rungs of the matmul's GPU ladder, up to the design of cuBLAS's kernels.

These rungs extend `gemm_cuda.ladder`. A multiprocessor of sm_90 (and of sm_80) issues four
instructions in a cycle, one for each of its quarters, and moves 128 bytes from shared memory. So
two ratios matter: the share of multiply-adds (FFMA) in the instructions, and the bytes that each
multiply-add takes from shared memory. The tiles follow S. Gray, "A full walk through of the SGEMM
implementation" (2015), and CUTLASS's SIMT kernels. The design follows from arithmetic and
from reading the machine code; it has not been measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.ladders import gemm_cuda
from kernel_lab.ladders.cuda_limits import grid_claim
from kernel_lab.workload import Case, Size

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = gemm_cuda.ladder

TILE = 128  # edge of a block's results
STEP = 8  # steps of k in shared memory at a time
GROUP = 4  # neighbouring results of a thread along an axis: 16 bytes
STAGES = 4  # strips in shared memory or on their way to it
# Padding of a strip of A that runs along m. A warp writes 8 steps of k by 4 rows (or 4 by 16), in
# rows 132 elements apart: into 32 different banks. Pieces of 16 bytes stay aligned.
PAD = 4


def claims(size: Size) -> str | None:
    """Return why blocks of 128 x 128 results do not fit a size; None if whole blocks cover it."""
    fit = gemm_cuda.multiples(size, M=TILE, N=TILE, K=STEP)
    return fit or grid_claim(y=size["M"] // TILE)


def tiles(
    sch: Schedule,
    warps: tuple[int, int],
    rows: tuple[int, int],
    columns: tuple[int, int],
    vector_a: int = GROUP,
) -> tuple[Any, Any]:
    """Split C into blocks of `warps` warps; `rows` and `columns` are (groups of 4, threads of a
    warp).

    A thread's groups lie a warp's width apart, so that the threads of a warp read adjacent pieces
    of 16 bytes. Groups are virtual threads: each has its own sums and writes them itself. In shared
    memory A's strip runs along m, as B's strip runs along n. `vector_a` elements of A are loaded at
    a time. Returns the block of the sums and the loop over strips.
    """
    c = sch.get_sblock("C")
    write = sch.cache_write(c, 0, "local")
    i, j, k = sch.get_loops(c)
    i_block, i_warp, i_group, i_lane, i_own = sch.split(i, [None, warps[0], *rows, GROUP])
    j_block, j_warp, j_group, j_lane, j_own = sch.split(j, [None, warps[1], *columns, GROUP])
    k_outer, k_inner = sch.split(k, [None, STEP])
    outside = (i_block, j_block, i_group, j_group, i_warp, j_warp, i_lane, j_lane)
    sch.reorder(*outside, k_outer, k_inner, i_own, j_own)
    warp, lane = sch.fuse(i_warp, j_warp), sch.fuse(i_lane, j_lane)
    for loop, axis in (
        (i_block, "blockIdx.y"),
        (j_block, "blockIdx.x"),
        (i_group, "vthread.y"),
        (j_group, "vthread.x"),
        (warp, "threadIdx.y"),
        (lane, "threadIdx.x"),
    ):
        sch.bind(loop, axis)
    sch.reverse_compute_at(write, lane, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(write)[-1])
    for operand, vector in ((0, vector_a), (1, GROUP)):
        strip = sch.cache_read(c, operand, "shared")
        sch.compute_at(strip, k_outer, preserve_unit_loops=True)
        if operand == 0:
            sch.transform_layout(strip, ("write", 0), lambda m, k: (k, m))
            sch.storage_align(strip, 0, axis=-2, factor=gemm_cuda.WARP, offset=PAD)
        loop = sch.fuse(*sch.get_loops(strip)[-2:])
        threads = warps[0] * warps[1]
        turns, y, x, own = sch.split(loop, [None, threads, gemm_cuda.WARP, vector])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.unroll(turns)
        if vector > 1:
            sch.vectorize(own)
    for loop in (k_inner, i_own, j_own):
        sch.unroll(loop)
    return c, k_outer


@ladder.rung(after="double_buffer", expected=(1.4, 2.1), claims=claims)
def large_tiles(sch: Schedule, case: Case) -> None:
    """Use blocks of 128 x 128, with 8 x 8 results per thread as 2 x 2 groups of 4 x 4.

    For each k a thread loads 4 times 16 bytes from shared memory for 64 multiply-adds; before, it
    loaded 2 times for 16. So 91 of 100 instructions in the loop are multiply-adds; before, 82 were.
    A's strip is transposed on its way into shared memory, so a thread's values of A for one k are
    adjacent, as its values of B are. Each element comes from the L2 cache half as often: 32
    operations for each byte.

    Prediction: on an H100, a step of k takes 64 cycles of shared memory and 32 of arithmetic with 4
    x 4 results, and 128 of each with 8 x 8, for four times as many multiply-adds: a factor of 2.

    Picture: The upper left panel shows that, thanks to the padding, the transposition causes no
    bank conflicts. Neighbouring threads store elements 528 words apart, which is 16 banks further
    on, and each of the 32 threads has a bank of its own.
    """
    c, k_outer = tiles(sch, warps=(4, 2), rows=(2, 4), columns=(2, 8))
    sch.decompose_reduction(c, k_outer)


@ladder.rung(expected=(0.9, 1.33))
def warp_tiles(sch: Schedule, case: Case) -> None:
    """Use blocks of 4 warps with 64 x 64 results each, 8 x 16 per thread.

    A thread has 6 loads of 16 bytes for 128 multiply-adds. If a warp's load takes four cycles, one
    for each quarter of the warp (as it does if no two threads read the same bytes), then 8 x 8
    results keep shared memory busy for as long as the arithmetic takes: 4 warps x 16 cycles for 64.
    Here it is 96 cycles for 128. The price is registers: only two blocks of 128 threads, 8 warps,
    fit on a multiprocessor.

    Prediction: on an H100, 96 cycles of shared memory beside 128 of arithmetic, where both took
    128: 1.33 if they did not overlap. There are 8 warps instead of 16 to hide a load's 600 cycles.

    Picture: `A_shared` and `B_shared` are staircases of 8 steps for each strip, drawn in violet
    because two of the four warps read each half. To their left is the fetch, hardly wider than a
    line, because each strip serves 8 steps of k with 128 multiply-adds per thread.
    """
    c, k_outer = tiles(sch, warps=(2, 2), rows=(2, 8), columns=(4, 4))
    sch.decompose_reduction(c, k_outer)


@ladder.rung(expected=(1.05, 1.5), needs="sm_80")
def async_copies(sch: Schedule, case: Case) -> None:
    """Copy strips with cp.async, which bypasses the registers, three strips ahead.

    With 2 warps for each quarter of a multiprocessor, no other warp hides the 600 or more cycles
    until a strip has arrived. A strip's arithmetic takes a warp about 1,100, so the third strip
    ahead has three times as long as it needs. A's elements are copied one by one, 4 bytes each,
    since they are transposed on the way. Loading into registers early and storing late may seem to
    be the same, but ptxas 13.0 moves such loads down to their stores.

    Prediction: a strip's arithmetic takes a warp 1,100 cycles, and each waited up to 600 for the
    next one: 1,700 / 1,100 = 1.5 if the other warp of a quarter hid none of it.

    Picture: The picture has only two strips, so both fetches are at the left, before the first
    product. Fetching A takes more steps than in `warp_tiles`: a copy moves only 4 bytes of A at a
    time, since A is transposed on the way, but 16 bytes of B.
    """
    c, k_outer = tiles(sch, warps=(2, 2), rows=(2, 8), columns=(4, 4), vector_a=1)
    sch.annotate(k_outer, "software_pipeline_stage", [0, 0, STAGES - 1])
    sch.annotate(k_outer, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k_outer, "software_pipeline_async_stages", [0])
    sch.decompose_reduction(c, k_outer)
