"""The last rungs of the matmul's GPU ladder: tensor cores.

These rungs follow the float32 rungs of `gemm_cuda.ladder`. Tensor cores multiply float16 values, so
these rungs round. A and B stay float32 in global memory. Each block rounds its strips to float16 on
their way into shared memory, and the sums are float32. Their precision is lower than before (an
operand keeps 11 bits instead of 24): `precision` states it, the table shows it and the tolerance
follows it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kernel_lab.ladders import gemm_cuda, gemm_ffma
from kernel_lab.ladders.cuda_limits import grid_claim
from kernel_lab.workload import Case, Size

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = gemm_ffma.ladder

EDGE = 16  # edge of a fragment, and the number of terms that one instruction sums
WARPS = 2  # warps of a block along each axis


def define(case: Case) -> list[Any]:
    """Define C = A B with A and B rounded to float16 and sums in float32."""
    from needle_tvm._tvm.names import te

    m, n, k = case["M"], case["N"], case["K"]
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    a_half = te.compute((m, k), lambda i, r: a[i, r].astype("float16"), name="A_half")
    b_half = te.compute((k, n), lambda r, j: b[r, j].astype("float16"), name="B_half")
    r = te.reduce_axis((0, k), name="k")

    def term(i: Any, j: Any) -> Any:
        return a_half[i, r].astype("float32") * b_half[r, j].astype("float32")

    c = te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=r), name="C")
    return [a, b, c]


class Blocks(NamedTuple):
    """The result of `blocks`: the matmul of a tile, the block of that matmul for each tile, and the
    loops over a block's warps, strips and pieces of a strip."""

    product: Any
    tiles: Any
    warp: Any
    strip: Any
    piece: Any


def blocks(sch: Schedule, each: int, step: int, vector: int, pad: int) -> Blocks:
    """Split C into blocks of 2 x 2 warps, with `each` x `each` fragments per warp and strips of
    `step` terms.

    The strips are rounded as they are copied into shared memory, `vector` elements at a time, with
    rows padded by `pad` elements.
    """
    c = sch.get_sblock("C")
    strips = [sch.get_sblock("A_half"), sch.get_sblock("B_half")]
    loops = [sch.split(loop, [None, EDGE]) for loop in sch.get_loops(c)]
    (i, i_in), (j, j_in), (k, k_in) = loops
    sch.reorder(i, j, k, i_in, j_in, k_in)
    tiles = sch.blockize(i_in)
    i_block, i_warp, i_own = sch.split(i, [None, WARPS, each])
    j_block, j_warp, j_own = sch.split(j, [None, WARPS, each])
    k_outer, k_inner = sch.split(k, [None, step // EDGE])
    sch.reorder(i_block, j_block, i_warp, j_warp, k_outer, k_inner, i_own, j_own)
    sch.bind(i_block, "blockIdx.y")
    sch.bind(j_block, "blockIdx.x")
    sch.bind(i_warp, "threadIdx.z")
    sch.bind(j_warp, "threadIdx.y")
    for strip, factor in zip(strips, (step, EDGE), strict=True):
        sch.set_scope(strip, 0, "shared")
        sch.compute_at(strip, k_outer, preserve_unit_loops=True)
        fetch(sch, strip, vector)
        if pad:
            sch.storage_align(strip, 0, axis=-2, factor=factor, offset=pad)
    return Blocks(c, tiles, j_warp, k_outer, k_inner)


def fragments(sch: Schedule, each: int, step: int, vector: int, pad: int = 0) -> Any:
    """Apply `blocks` with CUDA's wmma; return the loop over the strips."""
    from needle_tvm.kernels.dense.gpu.wmma import Fragments

    kind = Fragments()
    parts = blocks(sch, each, step, vector, pad)
    for number, operand in enumerate("ab"):
        fragment = sch.cache_read(parts.tiles, number, kind.memory(operand))
        sch.compute_at(fragment, parts.piece, preserve_unit_loops=True)
        sch.tensorize(tile(sch, fragment), kind.load(operand))
    write = sch.cache_write(parts.tiles, 0, kind.memory("c"))
    sch.reverse_compute_at(write, parts.warp, preserve_unit_loops=True)
    sch.tensorize(tile(sch, write), kind.store("global"))
    start = sch.decompose_reduction(parts.tiles, parts.strip)
    sch.tensorize(sch.get_loops(sch.get_child_blocks(start)[0])[-2], kind.fill())
    sch.tensorize(sch.get_loops(parts.product)[-3], kind.multiply())
    return parts.strip


def registers(sch: Schedule, each: int, step: int, vector: int, pad: int) -> None:
    """Apply `blocks` with PTX's mma and ldmatrix: fragments are the threads' own registers."""
    from needle_tvm.kernels.dense.gpu.mma import Registers

    kind = Registers()
    parts = blocks(sch, each, step, vector, pad)
    for number, operand in enumerate("ab"):
        fragment = sch.cache_read(parts.tiles, number, "warp")
        sch.compute_at(fragment, parts.piece, preserve_unit_loops=True)
        loop = tile(sch, fragment)
        sch.transform_layout(fragment, ("write", 0), partial(kind.tiles, operand))
        sch.tensorize(loop, kind.load(operand))
    write = sch.cache_write(parts.tiles, 0, "warp")
    sch.reverse_compute_at(write, parts.warp, preserve_unit_loops=True)
    loop = tile(sch, write)
    start = sch.decompose_reduction(parts.tiles, parts.strip)
    sch.transform_layout(write, ("read", 0), partial(kind.tiles, "c"))
    sch.tensorize(loop, kind.store("global"))
    sch.tensorize(sch.get_loops(sch.get_child_blocks(start)[0])[-2], kind.fill())
    sch.tensorize(sch.get_loops(parts.product)[-3], kind.multiply())


def fetch(sch: Schedule, copy: Any, vector: int) -> None:
    """Distribute a copy over all threads of a block, `vector` elements at a time."""
    loop = sch.fuse(*sch.get_loops(copy)[-2:])
    _, z, y, x, lane = sch.split(loop, [None, WARPS, WARPS, gemm_cuda.WARP, vector])
    sch.bind(z, "threadIdx.z")
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lane)


def tile(sch: Schedule, copy: Any) -> Any:
    """Tile the loops of a copy by fragments; return the outer loop within a tile."""
    row, column = sch.get_loops(copy)[-2:]
    row, row_in = sch.split(row, [None, EDGE])
    column, column_in = sch.split(column, [None, EDGE])
    sch.reorder(row, column, row_in, column_in)
    return row_in


def whole_fragments(size: Size) -> str | None:
    """Return why blocks of 2 x 2 warps with one fragment each do not fit a size; None if they
    do."""
    tile = WARPS * EDGE
    tiles = gemm_cuda.multiples(size, M=tile, N=tile, K=EDGE)
    return tiles or grid_claim(y=size["M"] // tile)


def whole_warp_tiles(size: Size) -> str | None:
    """Return why blocks of 2 x 2 warps with 2 x 2 fragments each and strips of 32 terms do not fit
    a size; None if they do."""
    tile = 2 * WARPS * EDGE
    tiles = gemm_cuda.multiples(size, M=tile, N=tile, K=2 * EDGE)
    return tiles or grid_claim(y=size["M"] // tile)


@ladder.rung(
    after="double_buffer",
    kind="rewrite",
    define=define,
    precision="float16",
    claims=whole_fragments,
    expected=(1, 2.7),
)
def tensor_cores(sch: Schedule, case: Case) -> None:
    """Multiply 16 x 16 x 16 terms with one instruction of a warp, with operands in float16.

    A tensor core does in one cycle what a warp's multiply-adds do in many. But with one fragment of
    results, a warp reads two fragments from shared memory for each multiplication, and strips of 16
    terms mean two barriers for each multiplication. The kernel waits for memory, so there may be no
    gain.

    Prediction: loading two fragments takes 8 and 16 cycles of shared memory for 4,096
    multiply-adds, where 4 x 4 results take 64: a factor of 2.7. An A100's second-level cache, at 47
    bytes per cycle for each multiprocessor, delivers the strips in 22 cycles. Two barriers for each
    multiplication take part of the gain.

    Picture: The lower panels show the loads of the fragments: each thread fetches one row of 8
    halves, four banks wide, and 8 threads are served at a time. In A, rows 0 and 4 of these 8 lie
    in the same banks, so a load takes two turns. In B, a load takes four.
    """
    fragments(sch, each=1, step=EDGE, vector=1)


@ladder.rung(expected=(1, 2), claims=whole_warp_tiles)
def tensor_core_tiles(sch: Schedule, case: Case) -> None:
    """Compute 2 x 2 fragments of results per warp, with strips of 32 terms and loads of 16 bytes.

    Four loaded fragments serve four multiplications instead of two serving one, and an element of A
    or B comes from global memory half as often.

    Prediction: half as many fragments are loaded, but each takes twice as many turns, so shared
    memory stays at 24 cycles for a multiplication. The gain is half as many bytes (11 cycles of an
    A100's second-level cache instead of 22) and half as many barriers: a factor of 2 if these took
    all of the time.

    Picture: The rows are longer, 32 halves in A and 64 in B, and that is worse. In the lower right
    panel, all 8 rows lie in the same four banks, the colour turns red, and a load takes eight
    turns.
    """
    fragments(sch, each=2, step=2 * EDGE, vector=4)


@ladder.rung(expected=(1, 2.2))
def tensor_core_padded(sch: Schedule, case: Case) -> None:
    """Pad the rows of the strips by 16 bytes, so that a fragment's rows lie in different banks.

    A warp loads a fragment in rows of 16 bytes, eight at a time. Rows that are 64 bytes apart share
    two groups of banks and take four turns; rows 128 bytes apart share one group and take eight.
    Padded rows take one turn. The price is that storing A's strip takes two turns, once for each
    strip.

    Prediction: the loads' 24 cycles for a multiplication become 4, so an A100's second-level cache
    is the next limit, with 11 cycles: a factor of 2.2.

    Picture: The lower panels are blue: 8 rows spread over all 32 banks. The upper left panel, where
    A is stored, shows the price: the gaps make four of 32 threads wait for a second turn, once per
    strip.
    """
    fragments(sch, each=2, step=2 * EDGE, vector=4, pad=8)


@ladder.rung(expected=(1, 1.4))
def tensor_core_pipeline(sch: Schedule, case: Case) -> None:
    """Fetch the next strip while the current one is multiplied, as in `double_buffer`.

    The multiplication is now so short that the latency of global memory is most of a step.

    Prediction: an A100's multiprocessor needs 6,127 bytes in flight. Each of 8 blocks fetches 16
    KiB for a strip, so enough were in flight most of the time. The gain is only the part of the
    latency that 8 blocks do not hide.

    Picture: At the left, two strips are fetched, each in four iterations. The products at the right
    take 16 steps, half the steps of the fetches: tensor cores have made arithmetic the smaller
    part.
    """
    k_outer = fragments(sch, each=2, step=2 * EDGE, vector=4, pad=8)
    sch.annotate(k_outer, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k_outer, "software_pipeline_order", [0, 1, 2])


@ladder.rung(after="tensor_core_padded", expected=(0.95, 1.1), needs="sm_80")
def tensor_core_mma(sch: Schedule, case: Case) -> None:
    """Use PTX's mma.m16n8k16 and ldmatrix, whose layout in registers is known, in place of wmma.

    wmma compiles to a few of these instructions, so this step alone may gain nothing. It gives the
    control over registers and shared memory that the fastest kernels start from.

    Prediction: 16 multiplications of 16 x 8 x 16 in the PTX replace 8 of 16 x 16 x 16; registers,
    warps and turns are the same.

    Picture: A and B are loaded in full sectors. In the lowest panel, C is stored straight from the
    registers in which `mma` leaves the results. Four threads hold 8 neighbouring elements of a row,
    two each, so a store of one element per thread fills half of a sector.
    """
    registers(sch, each=2, step=2 * EDGE, vector=4, pad=8)
