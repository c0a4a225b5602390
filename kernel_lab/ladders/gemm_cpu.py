"""Matmul on a CPU: from three loops to a register tile over a packed operand.

The last rungs follow Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
(ACM TOMS 2008): a tile of the result stays in vector registers while the kernel reads one packed
panel of B, and a block of A stays in the L2 cache while all panels pass by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.rung import Ladder
from kernel_lab.search import Knobs, Space
from kernel_lab.workload import Case
from kernel_lab.workloads import gemm

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(gemm.GEMM, "cpu")

BLOCK = 32  # edge of the cache block: with pieces of A and B it is 104 lines of 64 bytes
UNROLL = 4
PANEL_UNROLL = 8  # steps of k unrolled over panels, whose rows follow each other in memory
ROW_TILES = 32  # register tiles stacked in a block, whose rows of A stay in the L2 cache


def tile_of(case: Case) -> tuple[int, int]:
    """Return the rows and columns of a register tile: half of the registers hold sums, two vectors
    wide."""
    return case.processor.registers // 4, 2 * case.processor.lanes


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Run the definition as written: each element of C is a sum along k, on one thread.

    B is read down a column, so each load touches another cache line, and the sum is one chain of
    dependent additions that no vector unit can help with. The chain alone allows one multiply-add
    in four cycles, 2 GFLOP/s. At N = 512 the lines of a column also share two sets of the
    first-level cache, which leaves 0.9 GFLOP/s (AMD EPYC, Zen 4: 0.87 at N = 512, 2.0 at 496 and at
    528).

    Picture: A is a staircase: one row of A serves a whole row of C. B is a bundle of parallel
    lines, the elements of one column, each in another cache line.
    """


@ladder.rung(
    expected=(32, 96),
    explained="the range holds at 512 x 512: at sizes that are not a power of two the naive walk "
    "down a column of B is more than twice as fast, and at small sizes B stays in the first-level "
    "cache",
)
def reorder(sch: Schedule, case: Case) -> Any:
    """Move k outside j: the inner loop walks a row of B and a row of C, both contiguous.

    One loaded element of A serves a whole row, and each cache line of B is used in full. The inner
    loop's iterations are independent, so LLVM vectorises them by itself: with 512 bits for Zen 4,
    and with 256 bits for Intel's processors with AVX-512, where LLVM considers 256 bits the safer
    choice. The factor therefore has three parts: no conflicts in the sets of the cache (2.3 at N =
    512), no chain of additions, and 8 or 16 lanes.

    Prediction: a vector of 16 multiply-adds loads 16 elements of B and of C and stores the 16 of C.
    One load of 64 bytes starts in a cycle, so it takes 2 cycles. In the chain of `naive`, 16
    multiply-adds take 64 cycles: 32 times as long. If each load of B waits for the second-level
    cache because of the conflicts, it is up to three times that.

    Picture: B is one line, read front to back again and again, and A is read once. The cost is in
    C: each row of C is loaded and stored for every k.
    """
    c = sch.get_sblock("C")
    i, j, k = sch.get_loops(c)
    sch.reorder(i, k, j)
    sch.decompose_reduction(c, k)
    return c


@ladder.rung(
    after=naive,
    expected=(16, 48),
    explained="the range holds at 512 x 512: if 32 does not divide N, the bounds check of each "
    "column keeps LLVM from making vectors, and the factor is only 3",
)
def tile(sch: Schedule, case: Case) -> Any:
    """Tile the result into blocks of 32 x 32, with steps of 4 along k outside them.

    The block of C and the strip of B stay in the first-level cache while k advances, so B comes
    from memory M / 32 times instead of M times. As in `reorder`, LLVM vectorises the columns if 32
    divides N. Here the short inner loops cost about as much as the reuse saves.

    Prediction: a vector loads and stores C as in `reorder`, and the loop ends after two vectors:
    another 2 cycles for its counters and for the next element of A. That is half of the gain of
    `reorder`.

    Picture: C shows a ramp for each block and each step of four along k. B jumps between the rows
    of these steps; the small shift is the change to the next 32 columns.
    """
    c = sch.get_sblock("C")
    i, j, k = sch.get_loops(c)
    i_outer, i_inner = sch.split(i, [None, BLOCK])
    j_outer, j_inner = sch.split(j, [None, BLOCK])
    k_outer, k_inner = sch.split(k, [None, UNROLL])
    sch.reorder(i_outer, j_outer, k_outer, i_inner, k_inner, j_inner)
    return c


@ladder.rung(expected=(1, 2))
def vectorise(sch: Schedule, case: Case) -> Any:
    """Put the 32 neighbouring results in each row of a block into vectors: two of 16 lanes with
    AVX-512.

    The gain is small where the compiler already did this: 1.4 times on Zen 4, up to 2 where LLVM's
    own vectors had 256 bits (Intel). At sizes that 32 does not divide, the gain can reach the
    number of lanes.

    Prediction: 1 if LLVM's own vectors have 512 bits as well, 2 if they have 256, since there are
    then twice as many instructions.

    Picture: One step accesses 32 elements, a whole row of a block, where a step of `tile` accesses
    one.
    """
    c = tile(sch, case)
    sch.vectorize(sch.get_loops(c)[-1])
    return c


@ladder.rung(expected=(1.7, 2))
def parallel(sch: Schedule, case: Case) -> Any:
    """Put rows of blocks on different threads, which write to separate memory.

    The speed is proportional to the number of cores, as long as the work outweighs the few
    microseconds that waking the threads takes.

    Prediction: 16 rows of blocks are 8 for each of two cores, so 2 at best; waking a thread takes
    microseconds of the 3 milliseconds. The cores share the third-level cache and the memory.

    Picture: Each worker has its own rows of A and C, so there are two ramps side by side. All of B
    is violet, because both workers read it. Threads that only read the same lines do not disturb
    each other.
    """
    c = vectorise(sch, case)
    sch.parallel(sch.get_loops(c)[0])
    return c


@ladder.rung(expected=(1.6, 3))
def cache_write(sch: Schedule, case: Case) -> None:
    """Sum a block of C in a small buffer of its own and write it once.

    Otherwise every step of k reads and writes C itself, whose rows lie far apart in memory (if N is
    a power of two, even in the same set of the cache).

    Prediction: for four steps of k, `parallel` loads four vectors of B and four of C and stores C
    four times, which takes 8 cycles. Now C is loaded and stored once for the four: 5 loads, 5
    cycles, so 1.6 times. If LLVM keeps the vectors of B in registers from row to row, 4
    multiply-adds take 4 cycles: 2 times. The rows of C, 2 KiB apart and in two sets of the cache,
    may have cost more than their loads.

    Picture: C was accessed all the time in `parallel`. Now its panel shows a short ramp for each
    block: a worker writes a block when it is done.
    """
    accumulate(sch, BLOCK, BLOCK, in_registers=False)


def accumulate(sch: Schedule, rows: int, columns: int, in_registers: bool) -> None:
    """Sum a rows x columns block in a local buffer, or unrolled so that it stays in registers."""
    c = sch.get_sblock("C")
    write = sch.cache_write(c, 0, "local")
    i, j = sch.get_loops(write)
    i_outer, i_inner = sch.split(i, [None, rows])
    j_outer, j_inner = sch.split(j, [None, columns])
    sch.reorder(i_outer, j_outer, i_inner, j_inner)
    sch.compute_at(c, j_outer, preserve_unit_loops=True)
    row, column, k = sch.get_loops(c)[-3:]
    k_outer, k_inner = sch.split(k, [None, UNROLL])
    if in_registers:
        sch.reorder(k_outer, k_inner, row, column)
        sch.unroll(row)
        sch.unroll(k_inner)
    else:
        sch.reorder(k_outer, row, k_inner, column)
    sch.vectorize(column)
    sch.vectorize(j_inner)
    sch.parallel(i_outer)
    sch.decompose_reduction(c, k_outer)


@ladder.rung(expected=(1, 1.3))
def register_tile(sch: Schedule, case: Case) -> None:
    """Shrink the block to 8 x 32 and unroll its loops, so that it lives in registers.

    Sixteen 512-bit accumulators leave room for a row of B and a broadcast element of A. Each loaded
    vector of B is used eight times, and the multiply-adds of a step are independent of each other,
    so their latency is hidden. The step pays if a core starts two 512-bit multiply-adds in a cycle
    (Zen 5, Intel's servers) and the loads of `cache_write` cannot keep up. Zen 4 starts one; there
    `cache_write` already reaches 107 of a core's 115 GFLOP/s, and nothing is left to gain.

    Prediction: a step of k has 16 multiply-adds, 2 loads of B and 8 broadcasts, so the
    multiply-adds take the time: one cycle each. In `cache_write` a multiply-add takes between 1
    cycle and 1.25.

    Picture: C is written at the end of each tile. In B, a step of k shows a bar for each row of the
    tile, which loads the same elements again; the compiler, once it has unrolled the rows, loads
    them once.
    """
    accumulate(sch, *tile_of(case), in_registers=True)


@ladder.rung(kind="failed", expected=(0.25, 0.6))
def too_large_tile(sch: Schedule, case: Case) -> None:
    """FAILS: use a register tile four times as large, 16 x 64, to use each loaded vector more
    often.

    It needs 64 vector registers, and there are 32: the compiler spills the accumulators to the
    stack, and every multiply-add becomes a load, an add and a store.

    Prediction: a spilled sum is loaded, increased and stored. A store of 64 bytes takes 2 cycles
    instead of the multiply-add's one, which is half the speed; half of that again if the next step
    waits for the store.

    Picture: The picture does not show the failure: registers are not memory, and the stack is not a
    buffer of the schedule.
    """
    rows, columns = tile_of(case)
    accumulate(sch, 2 * rows, 2 * columns, in_registers=True)


@ladder.rung(kind="failed", after=parallel, expected=(0.03, 0.09))
def parallel_inside(sch: Schedule, case: Case) -> None:
    """FAILS: parallelise the rows within a block instead of rows of blocks.

    The threads are woken and joined once for each block and step of k: thousands of times, each
    time for less than a microsecond of work.

    Prediction: the threads are woken 16 x 16 x 128 = 32,768 times. At 1 to 3 microseconds each that
    is 33 to 98 ms, beside the 3 ms of `parallel`.

    Picture: Each short region of the two workers is an entry into the parallel loop.
    """
    c = vectorise(sch, case)
    sch.parallel(sch.get_loops(c)[3])


def define_packed(case: Case, tile: tuple[int, int] | None = None) -> list[Any]:
    """Define C = A B with B copied into panels as wide as the register tile; C is made of whole
    tiles and cut to size.

    Inside a panel the kernel reads memory front to back. Tiles that reach past the edge of C read
    the last row of A again and zeros for B; results past the edge are not written.
    """
    from needle_tvm._tvm.names import te, tirx

    m, n, k = case["M"], case["N"], case["K"]
    rows, columns = tile or tile_of(case)
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")

    def pack(panel: Any, r: Any, j: Any) -> Any:
        column = panel * columns + j
        if n % columns == 0:
            return b[r, column]
        return tirx.if_then_else(column < n, b[r, column], 0.0)

    def row(i: Any) -> Any:
        return i if m % rows == 0 else te.min(i, m - 1)

    panels, bands = -(-n // columns), -(-m // rows)
    packed = te.compute((panels, k, columns), pack, name="packed")
    r = te.reduce_axis((0, k), name="k")
    tiles = te.compute(
        (bands, panels, rows, columns),
        lambda band, p, i, j: te.sum(a[row(band * rows + i), r] * packed[p, r, j], axis=r),
        name="tiles",
    )
    c = te.compute(
        (m, n), lambda i, j: tiles[i // rows, j // columns, i % rows, j % columns], name="C"
    )
    return [a, b, c]


@ladder.rung(kind="rewrite", after=register_tile, expected=(0.95, 1.25), define=define_packed)
def pack(sch: Schedule, case: Case) -> None:
    """Copy B into panels first; the time includes the copy, and the schedule stays the same.

    In an unpacked strip of B every row lies on another page and, if N is a power of two, in the
    same few sets of the cache. A panel is read front to back, which the prefetcher can follow. The
    copy costs K N moves against M N K multiply-adds.

    Prediction: the copy moves 1 MiB in and out, 2 % of the time of 4.2 million multiply-adds on
    each core. In the unpacked strip, a step of k finds its two lines in the second-level cache, for
    up to 4 cycles beside the 16 of its multiply-adds: at most 1.25, and nothing if the prefetcher
    hides it.

    Picture: The short ramp at the left is the copy: B is read once and never again. After it,
    `packed` is one line upwards: memory is read front to back.
    """
    _pack(sch)
    band, panel, k_outer = _product(sch)
    sch.parallel(band)
    _write(sch, panel, k_outer)


def _pack(sch: Schedule) -> None:
    """Copy the panels in vectors, each panel on one thread."""
    panel, _, column = sch.get_loops(sch.get_sblock("packed"))
    sch.parallel(panel)
    sch.vectorize(column)


def _product(sch: Schedule, most: int = PANEL_UNROLL) -> tuple[Any, Any, Any]:
    """Apply the register tile's schedule to the definition with panels.

    Returns the loops over bands, panels and steps of k.
    """
    tiles = sch.get_sblock("tiles")
    band, panel, row, column, k = sch.get_loops(tiles)
    extent = int(sch.get(k).extent)
    unroll = next(u for u in range(most, 0, -1) if extent % u == 0)
    k_outer, k_inner = sch.split(k, [None, unroll])
    sch.reorder(k_outer, k_inner, row, column)
    # Set the scope, the vectors and the threads before the reduction is decomposed: afterwards the
    # initialisation has loops of its own, and TVM no longer recognises the sum as a reduction.
    sch.set_scope(tiles, 0, "local")
    sch.unroll(k_inner)
    sch.unroll(row)
    sch.vectorize(column)
    return band, panel, k_outer


def _write(sch: Schedule, loop: Any, k_outer: Any, result: str = "C") -> None:
    """Write finished tiles inside `loop`, where they are still in registers."""
    c = sch.get_sblock(result)
    sch.reverse_compute_at(c, loop, preserve_unit_loops=True)
    row, column = sch.get_loops(c)[-2:]
    sch.unroll(row)
    sch.vectorize(column)
    sch.decompose_reduction(sch.get_sblock("tiles"), k_outer)


@ladder.rung(expected=(0.95, 1.1))
def cache_block(sch: Schedule, case: Case) -> None:
    """Loop over panels outside and over 32 row tiles inside: a block of A stays in the L2 cache.

    Without this step every band of 8 rows reads all of packed B again. With it, a panel that has
    been read serves 256 rows, and there are enough tasks for the threads to finish at the same
    time. On Zen 4 a thread then runs at 115 GFLOP/s at 512 and 110 at 1024. Arithmetic in registers
    alone reaches 115, and OpenBLAS 105 and 102. Beyond that, the only possible gain is the time
    that the threads cost each other.

    Prediction: a band of 8 rows reads B's 1 MiB while it computes for 131,000 cycles: 8 bytes per
    cycle, which even the third-level cache delivers. So little is left to gain at this size.

    Picture: Each stroke in `packed` is one band that reads a panel.
    """
    blocked(sch, "C")


def blocked(
    sch: Schedule, result: str, row_tiles: int = ROW_TILES, unroll: int = PANEL_UNROLL
) -> None:
    """Apply the schedule of `cache_block`; `result` is the block that reads the finished tiles."""
    _pack(sch)
    band, panel, k_outer = _product(sch, unroll)
    block, inner = sch.split(band, [None, min(row_tiles, int(sch.get(band).extent))])
    sch.reorder(block, panel, inner)
    sch.parallel(sch.fuse(block, panel))
    _write(sch, inner, k_outer, result)


def _knobs(case: Case) -> list[Knobs]:
    """Return the choices: register tiles that fit, blocks of A, and how far k is unrolled."""
    registers, lanes = case.processor.registers, case.processor.lanes
    tiles = [
        (rows, vectors * lanes)
        for vectors in (1, 2, 3, 4)
        for rows in range(2, registers)
        if registers // 3 <= rows * vectors <= registers - vectors - 1
    ]
    return [
        {"rows": rows, "columns": columns, "row_tiles": row_tiles, "unroll": unroll}
        for rows, columns in tiles
        for row_tiles in (8, 16, 32, 64)
        for unroll in (1, 2, 4, 8)
    ]


ladder.space = Space(
    define=lambda case, knobs: define_packed(case, (knobs["rows"], knobs["columns"])),
    schedule=lambda sch, case, knobs: blocked(sch, "C", knobs["row_tiles"], knobs["unroll"]),
    knobs=_knobs,
)
