"""Matmul of 8-bit integers on a CPU: the cost of widening, and the instruction that avoids it.

The last rungs are built like those of `gemm_cpu`. Only the innermost step differs: one instruction
adds four products to each sum (AVX512-VNNI), if the processor has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.ladders import gemm_cpu
from kernel_lab.rung import Ladder
from kernel_lab.workload import Case
from kernel_lab.workloads import int8_gemm
from needle_tvm.target import dots

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(int8_gemm.INT8_GEMM, "cpu")

# AVX512-VNNI's `vpdpbusd`, for processors that have it (`Processor.dots`).
DOTS = dots.DotInstruction(
    "kernel_lab_dots", "avx512vnni", "llvm.x86.avx512.vpdpbusd.512", "uint8", "int8", "int32"
)
TERMS = DOTS.terms  # neighbouring k whose products one instruction adds
ROWS, VECTORS = 8, 2  # a register tile: sixteen vectors of sums
SHIFT = 128  # makes a signed 8-bit number unsigned


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Run the definition as written: each element of C is a sum along k, on one thread.

    An element is a byte, so a cache line of B holds 64 of them, and the walk down a column uses one
    of the 64. Every product needs two bytes widened to 32 bits first.

    Picture: This is the picture of the float32 product: the elements are narrower, but the order is
    the same, and B is read down its columns.
    """


@ladder.rung(expected=(11, 32))
def reorder(sch: Schedule, case: Case) -> None:
    """Move k outside j, as in `gemm`: LLVM widens 16 bytes of a row of B at once.

    A vector holds 16 sums as with float32, so the narrow operands save memory but no arithmetic:
    each step is a widening load, a multiplication, an addition, and a load and a store of C.

    Prediction: a vector of 16 products is a widening load of B, a multiplication of 2 cycles, an
    addition, and a load and a store of C: 2 to 3 cycles. One by one, products take 2 to 4 cycles
    each: two loads, one of them from the second-level cache.

    Picture: B is read from front to back for each row of A. A row of C is loaded and stored for
    each k.
    """
    c = sch.get_sblock("C")
    i, j, k = sch.get_loops(c)
    sch.reorder(i, k, j)
    sch.decompose_reduction(c, k)


@ladder.rung(expected=(1.9, 3))
def register_tile(sch: Schedule, case: Case) -> None:
    """Keep 8 x 32 sums in registers, with bands of rows on different threads: `gemm`'s schedule.

    C is no longer loaded and stored for each k. The multiplication remains: for 32-bit integers it
    takes two or three times as long as a multiply-add of float32, and integers have no
    multiply-add.

    Prediction: two threads, and 2 cycles for a vector of products, where `reorder` takes 2 to 3.

    Picture: C is stored once, at the end of each tile. A step of B loads a row of the tile at once,
    and A is read in columns of eight.
    """
    gemm_cpu.accumulate(sch, *gemm_cpu.tile_of(case), in_registers=True)


def define_quads(case: Case, rows: int = ROWS) -> list[Any]:
    """Define C = A B with B in panels that hold four k side by side, A as unsigned bytes, and C in
    whole tiles. Only the part of a tile inside C is written.

    128 is added to each element of A, so each sum is too large by 128 times the sum of B's column;
    this excess is subtracted at the end. Past the edges, B is zero.
    """
    from needle_tvm._tvm.names import te, tirx

    m, n, k = case["M"], case["N"], case["K"]
    columns, quads = VECTORS * dots.LANES, -(-k // TERMS)
    a = te.placeholder((m, k), name="A", dtype="int8")
    b = te.placeholder((k, n), name="B", dtype="int8")

    def unsigned(i: Any, q: Any, t: Any) -> Any:
        r = q * TERMS + t
        value = a[i, r if k % TERMS == 0 else te.min(r, k - 1)]
        return (value.astype("int16") + SHIFT).astype("uint8")

    def pack(panel: Any, q: Any, j: Any, t: Any) -> Any:
        r, column = q * TERMS + t, panel * columns + j
        if k % TERMS == 0 and n % columns == 0:
            return b[r, column]
        return tirx.if_then_else(tirx.all(r < k, column < n), b[r, column], tirx.const(0, "int8"))

    panels, bands = -(-n // columns), -(-m // rows)
    shifted = te.compute((m, quads, TERMS), unsigned, name="shifted")
    packed = te.compute((panels, quads, columns, TERMS), pack, name="packed")
    d = te.reduce_axis((0, k), name="d")
    excess = te.compute(
        (n,), lambda j: te.sum(b[d, j].astype("int32") * SHIFT, axis=d), name="excess"
    )
    q, t = te.reduce_axis((0, quads), name="q"), te.reduce_axis((0, TERMS), name="t")

    def term(band: Any, p: Any, i: Any, j: Any) -> Any:
        row = band * rows + i
        x = shifted[row if m % rows == 0 else te.min(row, m - 1), q, t]
        return te.sum(x.astype("int32") * packed[p, q, j, t].astype("int32"), axis=[q, t])

    tiles = te.compute((bands, panels, rows, columns), term, name="tiles")
    c = te.compute(
        (m, n),
        lambda i, j: tiles[i // rows, j // columns, i % rows, j % columns] - excess[j],
        name="C",
    )
    return [a, b, c]


@ladder.rung(kind="rewrite", expected=(4, 7), define=define_quads)
def quads(sch: Schedule, case: Case) -> None:
    """Put four k side by side, for an instruction that adds four products to each of 16 sums.

    `vpdpbusd` does 64 multiply-adds where float32 has 16, and widens nothing. One of its operands
    is unsigned, so 128 is added to A's elements, and C is corrected by the sums of B's columns. A
    processor without the instruction widens and multiplies in the same loops.

    Prediction: 64 products per instruction, so 1.05 million cycles on each core: 0.29 ms. Shifting
    A and packing B, at 1 to 2 cycles per byte on two threads, take 0.07 to 0.15 ms, and the sums of
    B's columns 0.05. The rung before took 2.6 ms.

    Picture: In so small a product nearly all steps are preparation: A is shifted, B is packed, and
    B's columns are added up. At 512, the product at the right takes 64 times as many steps for each
    element of A and B.
    """
    _shift(sch)
    band, panel = _whole_tiles(sch)
    sch.parallel(band)
    _tile(sch, case, panel)


def _shift(sch: Schedule) -> None:
    """Schedule the preparation of A and B on all threads, and B's column sums row by row."""
    shifted, packed, excess = (sch.get_sblock(name) for name in ("shifted", "packed", "excess"))
    sch.parallel(sch.get_loops(shifted)[0])
    sch.parallel(sch.get_loops(packed)[0])
    j, d = sch.get_loops(excess)
    sch.reorder(d, j)


def _whole_tiles(sch: Schedule) -> tuple[Any, Any]:
    """Split C into the tiles; return the loops over bands and panels."""
    _, _, *tile, _, _ = sch.get_loops(sch.get_sblock("tiles"))
    rows, columns = (int(sch.get(loop).extent) for loop in tile)
    i, j = sch.get_loops(sch.get_sblock("C"))
    band, row = sch.split(i, [None, rows])
    panel, column = sch.split(j, [None, columns])
    sch.reorder(band, panel, row, column)
    sch.unroll(row)
    sch.vectorize(column)
    return band, panel


def _tile(sch: Schedule, case: Case, loop: Any) -> None:
    """Sum a tile in registers inside `loop`, with the instruction for four products if the
    processor has it.

    Set the scope, the vectors and the threads before the reduction is decomposed: afterwards TVM no
    longer recognises it as a reduction.
    """
    tiles = sch.get_sblock("tiles")
    sch.compute_at(tiles, loop, preserve_unit_loops=True)
    row, column, step, term = sch.get_loops(tiles)[-4:]
    vector, lane = sch.split(column, [None, dots.LANES])
    sch.reorder(step, row, vector, lane, term)
    sch.set_scope(tiles, 0, "local")
    sch.unroll(row)
    sch.unroll(vector)
    if not case.processor.dots:
        sch.reorder(term, lane)
        sch.vectorize(lane)
        sch.decompose_reduction(tiles, step)
        return
    start = sch.decompose_reduction(tiles, step)
    sch.vectorize(sch.get_loops(start)[-1])
    sch.tensorize(lane, DOTS.tensor_intrinsic())
    sch.annotate(step, dots.PRAGMA, DOTS.source)


@ladder.rung(
    kind="failed", after=quads, expected=(0.4, 0.65), define=lambda case: define_quads(case, rows=1)
)
def one_row(sch: Schedule, case: Case) -> None:
    """FAILS: use a tile of one row, two vectors of sums.

    Each instruction needs its own vector of B from the cache, and waits for the instruction before
    it, which adds to the same sums.

    Prediction: two sums, each with one instruction every four cycles, are half an instruction per
    cycle: 0.58 ms instead of 0.29, plus 0.2 of preparation. There are 1.5 loads per instruction,
    where a tile of eight rows has 0.625; they take longer if they come from the second-level cache.

    Picture: At the right, all of `packed` is read for each row of C. `quads` reads a panel of it
    once for eight rows.
    """
    quads(sch, case)


@ladder.rung(after=quads, expected=(1, 1.2))
def cache_block(sch: Schedule, case: Case) -> None:
    """Loop over panels outside and over up to 32 bands inside: a panel serves 256 rows at once.

    The bands are divided evenly, because the instruction works on whole tiles only.

    Prediction: in `quads`, each of 64 bands reads the 256 KiB of `packed`, in all 16 MiB from the
    second-level cache. At 32 bytes per cycle on two threads, that takes 0.07 of 0.49 ms.

    Picture: At the right, each thread reads one panel of `packed` again and again, for one band of
    `shifted` after the other.
    """
    _shift(sch)
    band, panel = _whole_tiles(sch)
    bands = int(sch.get(band).extent)
    inside = max(n for n in range(1, gemm_cpu.ROW_TILES + 1) if bands % n == 0)
    block, inner = sch.split(band, [None, inside])
    sch.reorder(block, panel, inner)
    sch.parallel(sch.fuse(block, panel))
    _tile(sch, case, inner)
