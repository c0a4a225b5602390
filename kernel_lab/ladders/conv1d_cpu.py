"""One-dimensional convolution on a CPU: the definition's cost, and the gains from schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_lab.rung import Ladder
from kernel_lab.search import Knobs, Space
from kernel_lab.workload import Case
from kernel_lab.workloads import conv1d

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(conv1d.CONV1D, "cpu")

VECTORS = 8  # vectors of results in a register tile
WINDOW = 11  # the same if registers also hold a window of the signal, and taps
UNROLL = 4


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Sum over every index of the full result, with a bounds check at every term.

    At most N of M + N - 1 terms are not zero, so at M=4096, N=128 the loop does 33 times the work,
    and the comparison keeps the compiler from using vectors.

    Picture: A is a diagonal of dashes, which are the eight elements under the kernel; W is read
    from end to end for each result. Between the dashes, B is loaded and stored once for each term
    that is zero.
    """


def define_fewer_terms(case: Case) -> list[Any]:
    """Define the convolution with k over the elements of the signal only."""
    return conv1d.define_over(case, case["M"])


@ladder.rung(kind="rewrite", expected=(1.03, 1.15), define=define_fewer_terms)
def fewer_terms(sch: Schedule, case: Case) -> None:
    """Run k over the signal only: the other N - 1 of the M + N - 1 terms were all zero.

    This saves one comparison per term and 3 % of the terms.

    Prediction: 17,833,729 terms become 17,297,408, 3 % fewer. One of about ten instructions per
    term is saved as well.

    Picture: The same as for `naive`, but with 10,183 accesses instead of 11,177. The dashes and
    the parts between them have not changed.
    """


@ladder.rung(expected=(1.8, 2))
def parallel(sch: Schedule, case: Case) -> Any:
    """Split the result into stretches for different threads, which write to separate memory.

    The speed is proportional to the number of cores: the work takes milliseconds, waking threads
    microseconds.

    Prediction: 66 stretches are 33 for each of two cores. Waking the other thread takes
    microseconds of the 7 milliseconds.

    Picture: The second worker finishes early: TVM gives each worker the same number of stretches,
    rounded up, and at the picture's small size there are three.
    """
    b = sch.get_sblock("B")
    n, _ = sch.get_loops(b)
    outer, inner = sch.split(n, [None, 4 * case.processor.lanes])
    sch.parallel(outer)
    return inner


@ladder.rung(
    expected=(0.6, 1.2),
)
def vectorise(sch: Schedule, case: Case) -> Any:
    """Put neighbouring results side by side in vectors, inside the loop over k.

    The gain is not the number of lanes: TVM does not vectorise a condition that differs between
    lanes. It writes the sixteen checks one after another (the hot loop has 30 scalar operations and
    no packed operation), and with k outside, each result is also loaded and stored at every term.
    The only gain is fewer loop instructions.

    Prediction: a term of the scalar loop has about 7 instructions, 2 of them comparisons. Each lane
    keeps these 2 and adds a load and a store of its result; 16 lanes share the loop's counter. That
    is 6 instructions, or 12 if lanes are also extracted from vectors and inserted again.

    Picture: B is a staircase of steps as high as a vector, violet throughout: each vector is loaded
    and stored at every term.
    """
    inner = parallel(sch, case)
    b = sch.get_sblock("B")
    rest, lane = sch.split(inner, [None, case.processor.lanes])
    k = sch.get_loops(b)[-1]
    sch.reorder(rest, k, lane)
    sch.vectorize(lane)
    return k


@ladder.rung(expected=(0.95, 1.1))
def unroll(sch: Schedule, case: Case) -> None:
    """Unroll four steps of k: fewer loop counters and jumps for each term.

    The gain is small, since the term itself is a comparison and a masked load.

    Prediction: three jumps are saved for 4 x 16 terms of two comparisons each: one jump for 43
    comparisons.

    Picture: These rungs polish a loop that should not be there.
    """
    k = vectorise(sch, case)
    _, inner = sch.split(k, [None, UNROLL])
    sch.unroll(inner)


def define_padded(case: Case) -> list[Any]:
    """Define the convolution on a zero-padded copy of the signal, so that each result sums exactly
    N terms without a check.

    Results come in whole register tiles; results past the end are computed from zeros and not
    written.
    """
    from needle_tvm._tvm.names import te

    n, size = case["N"], conv1d.length(case.size)
    tile = VECTORS * case.processor.lanes
    whole = -(-size // tile) * tile
    a, w, padded = conv1d.padded(case, whole + n)
    t = te.reduce_axis((0, n), name="t")
    tiles = te.compute(
        (whole,), lambda i: te.sum(padded[i + t] * w[n - 1 - t], axis=t), name="tiles"
    )
    return [a, w, te.compute((size,), lambda i: tiles[i], name="B")]


@ladder.rung(kind="rewrite", after=fewer_terms, expected=(24, 48), define=define_padded)
def pad(sch: Schedule, case: Case) -> None:
    """Pad the signal with N - 1 zeros on both sides and sum over the N taps: M / N times fewer
    terms.

    At M=4096, N=128 that is 32 times. The copy costs M moves and checks the bounds once for each
    element. There is no schedule yet, so the gain is the algorithm's alone.

    Prediction: 17,297,408 terms become 540,672, 32 times fewer. Before, a term took 3 cycles (15
    ms); now it takes 4 if each waits for the one before, or 2 if the processor overlaps the chains
    of neighbouring results. The speed-up is 24 to 48.

    Picture: The copy reads A once, at the left. Then `padded` is a narrow band, eight neighbours
    for each result. At the right, results go from the tiles to B. Everything that was between the
    dashes is gone.
    """


@ladder.rung(name="padded_parallel", expected=(1.7, 1.95))
def padded_parallel(sch: Schedule, case: Case) -> Any:
    """Put the tiles on different threads.

    The gain is less than the number of cores: half a million multiply-adds are done quickly, and
    waking the other threads still takes microseconds.

    Prediction: one worker has 17 of 33 tiles, so 33 / 17 = 1.94. The copies, which one thread
    makes, are 1.6 % of the work, and waking a thread takes 1 to 3 of 200 microseconds.

    Picture: Both workers read W, which is violet, and each has a band of its own in `padded`. One
    worker makes both copies, at the left and at the right.
    """
    i, t = sch.get_loops(sch.get_sblock("tiles"))
    tile, inner = sch.split(i, [None, VECTORS * case.processor.lanes])
    sch.parallel(tile)
    return tile, inner, t


@ladder.rung(expected=(8, 16))
def padded_vectorise(sch: Schedule, case: Case) -> Any:
    """Put sixteen neighbouring results in a vector; each tap is broadcast, and the signal read
    unaligned.

    Without a check in the loop, every lane does useful work at every step.

    Prediction: the busier thread has 17 x 8 vectors of 128 taps. Loads that reach into a second
    line take two turns: 9.7 microseconds at 3.6 GHz. If each multiply-add waits for the one before,
    a tap takes four cycles: 19.3 microseconds. The copies on one thread take 2.4, and waking the
    other thread 1 to 3. In all, that is 13 to 25 instead of 216 microseconds.

    Picture: `padded` and `tiles` are staircases with steps as high as a vector, and W falls from
    the last tap to the first for each of them. The trace follows the schedule, not the compiled
    code, and in it the copies take longer than the sums.
    """
    tile, inner, t = padded_parallel(sch, case)
    vector, lane = sch.split(inner, [None, case.processor.lanes])
    sch.reorder(tile, vector, t, lane)
    sch.vectorize(lane)
    return tile, vector, t


@ladder.rung(expected=(1, 1.7))
def register_tile(sch: Schedule, case: Case) -> None:
    """Sum eight vectors of results at once in registers and write them once.

    One vector alone is a chain of multiply-adds, each waiting four cycles for the one before. Eight
    independent chains keep both units busy, and a tap is broadcast once for eight vectors. The next
    limit is the loads, one for each multiply-add, nearly all of them across two cache lines.

    Prediction: the chains took at most 19.3 microseconds and the loads alone take 9.7, so the gain
    is at most (19.3 + 5) / (9.7 + 5), with 5 for the copies and for waking the other thread.
    Nothing is gained if the processor already overlapped the chains.

    Picture: `tiles` is gone: the sums are in registers. W goes down once in each tile, `padded` has
    a stroke of eight vectors for each tap, and B is written in one stroke at the end.
    """
    tiles = sch.get_sblock("tiles")
    tile, vector, t = padded_vectorise(sch, case)
    sch.reorder(tile, t, vector)
    t_outer, t_inner = sch.split(t, [None, _divisor(case["N"], UNROLL)])
    sch.set_scope(tiles, 0, "local")
    sch.unroll(vector)
    sch.unroll(t_inner)
    _write(sch, tile, case)
    sch.decompose_reduction(tiles, t_outer)
    _vectorise_all(sch, case, "padded")


def _divisor(extent: int, most: int) -> int:
    return next(factor for factor in range(min(most, extent), 0, -1) if extent % factor == 0)


def _write(sch: Schedule, loop: Any, case: Case) -> None:
    """Write results inside `loop`, from registers."""
    b = sch.get_sblock("B")
    sch.reverse_compute_at(b, loop, preserve_unit_loops=True)
    vector, lane = sch.split(sch.get_loops(b)[-1], [None, case.processor.lanes])
    sch.unroll(vector)
    sch.vectorize(lane)


def _vectorise_all(sch: Schedule, case: Case, *names: str) -> None:
    """Vectorise the only loop of each named copy."""
    for name in names:
        (loop,) = sch.get_loops(sch.get_sblock(name))
        _, lane = sch.split(loop, [None, case.processor.lanes])
        sch.vectorize(lane)


@ladder.rung(kind="failed", after=register_tile, expected=(0.05, 0.15))
def fused_padding(sch: Schedule, case: Case) -> None:
    """FAILS: compute the padding where it is read instead of copying it first (a fusion that W.
    Daugherty-Miller, "Assignment A3: Compiling DNNs with TVM", uses).

    It saves a copy of 16 KiB, but puts the bounds check back into the innermost loop: every element
    is checked at each of its N reads instead of once.

    Prediction: the vectors are lost: 540,672 terms of 2 to 4 cycles each on two threads are 150 to
    300 microseconds instead of 16.

    Picture: The accesses look better than ever: there is no copy, and A has the eight strokes that
    `padded` had. But comparisons are not accesses. All 128 multiply-adds of the compiled code work
    on single numbers.
    """
    sch.compute_inline(sch.get_sblock("padded"))
    tiles = sch.get_sblock("tiles")
    tile, vector, t = padded_vectorise(sch, case)
    sch.reorder(tile, t, vector)
    sch.set_scope(tiles, 0, "local")
    sch.unroll(vector)
    _write(sch, tile, case)
    sch.decompose_reduction(tiles, t)


@ladder.rung(kind="failed", after=register_tile, expected=(0.7, 1))
def local_copies(sch: Schedule, case: Case) -> None:
    """FAILS: copy signal and kernel to a small buffer before each step of k (as in W.
    Daugherty-Miller, "Assignment A3: Compiling DNNs with TVM").

    The copied values were in the first-level cache already, so the copy only adds loads and stores
    to the one load for each multiply-add.

    Prediction: for 16 taps of a tile, 143 elements of the signal and 16 taps are copied, beside 128
    multiply-adds whose loads take 256 cycles. A copy in vectors adds 4 % to the sums' time, a copy
    of one element at a time 60 %. The sums are 60 % of the rung's time.

    Picture: Each red ramp in `padded_global` fills the buffer, and the block beside it uses it. The
    ramps are as wide as the blocks: half of the steps copy elements that were just as near before.
    """
    tiles = sch.get_sblock("tiles")
    tile, vector, t = padded_vectorise(sch, case)
    sch.reorder(tile, t, vector)
    t_outer, t_inner = sch.split(t, [None, _divisor(case["N"], 4 * UNROLL)])
    copies = [sch.cache_read(tiles, number, "global") for number in (0, 1)]
    for copy in copies:
        sch.compute_at(copy, t_outer)
    sch.set_scope(tiles, 0, "local")
    sch.unroll(vector)
    sch.unroll(t_inner)
    _write(sch, tile, case)
    sch.decompose_reduction(tiles, t_outer)
    _vectorise_all(sch, case, "padded")


def define_window(case: Case) -> list[Any]:
    """Define the sums with the taps split into t = lanes * p + s, and the results into whole
    vectors q.

    Vector q at tap (p, s) reads the signal at lanes * (q + p) + s. So for one s, a tile reads one
    vector for each value of q + p, not one for each pair. The kernel is reversed and zero-padded to
    whole vectors, so a result also multiplies up to lanes - 1 elements by zero.
    """
    extent = (_count(case, WINDOW) * WINDOW + _parts(case)) * case.processor.lanes
    a, w, padded = conv1d.padded(case, extent)
    return _windowed(case, a, w, lambda x: padded[x], WINDOW)


def _parts(case: Case) -> int:
    """Return the number of whole vectors of taps."""
    return int(-(-case["N"] // case.processor.lanes))


def _count(case: Case, vectors: int) -> int:
    """Return the number of tiles of `vectors` vectors that cover the results."""
    return -(-conv1d.length(case.size) // (vectors * case.processor.lanes))


def _windowed(case: Case, a: Any, w: Any, padded: Callable[[Any], Any], vectors: int) -> list[Any]:
    """Return the sums over (s, p) in tiles of `vectors` vectors; result i begins at padded(i)."""
    from needle_tvm._tvm.names import te, tirx

    n, lanes, parts = case["N"], case.processor.lanes, _parts(case)
    tile = vectors * lanes
    taps = te.compute(
        (parts * lanes,), lambda t: tirx.if_then_else(t < n, w[n - 1 - t], 0.0), name="taps"
    )
    s = te.reduce_axis((0, lanes), name="s")
    p = te.reduce_axis((0, parts), name="p")
    tiles = te.compute(
        (_count(case, vectors), vectors, lanes),
        lambda b, q, i: te.sum(
            padded((b * vectors + q + p) * lanes + i + s) * taps[p * lanes + s], axis=[s, p]
        ),
        name="tiles",
    )
    out = te.compute(
        (conv1d.length(case.size),),
        lambda i: tiles[i // tile, i // lanes % vectors, i % lanes],
        name="B",
    )
    return [a, w, out]


@ladder.rung(kind="rewrite", after=register_tile, expected=(1.3, 1.7), define=define_window)
def window(sch: Schedule, case: Case) -> None:
    """Let taps a whole vector apart share loads: a window of the signal stays in registers.

    For one s, eleven vectors of results and four p need fourteen different vectors of the signal
    for forty-four multiply-adds, where the rung before loaded forty-four. The schedule stays the
    same: tiles in registers, two loops unrolled, lanes in vectors, tiles on the threads.

    Prediction: the loads took 9.7 microseconds; now 14 loads of two turns serve 44 multiply-adds,
    so the arithmetic is the limit: 24 x 11 x 128 cycles on two threads, 4.7 microseconds. The
    copies and waking the thread take 3 to 7: (9.7 + 3) / (4.7 + 3) is 1.65, (9.7 + 7) / (4.7 + 7)
    is 1.43, and less if the 24 tiles are not shared evenly.

    Picture: `taps` has four lines at a time, the four steps of p, a vector apart. The strokes in
    `padded` are 14 vectors high and overlap from one s to the next.
    """
    window_schedule(sch, case, UNROLL, parallel=True)
    _vectorise_all(sch, case, "padded")


def window_schedule(sch: Schedule, case: Case, unroll: int, parallel: bool) -> None:
    """Apply the schedule of `window` with `unroll` steps of p unrolled, on threads if
    `parallel`."""
    tiles = sch.get_sblock("tiles")
    tile, vector, lane, s, p = sch.get_loops(tiles)
    p_outer, p_inner = sch.split(p, [None, _divisor(int(sch.get(p).extent), unroll)])
    sch.reorder(tile, p_outer, s, vector, p_inner, lane)
    sch.set_scope(tiles, 0, "local")
    sch.unroll(vector)
    sch.unroll(p_inner)
    sch.vectorize(lane)
    if parallel:
        sch.parallel(tile)
    _write(sch, tile, case)
    sch.decompose_reduction(tiles, p_outer)
    _vectorise_all(sch, case, "taps")


def define_aligned(case: Case, vectors: int = WINDOW) -> list[Any]:
    """Define the padded sums with the number of zeros before the signal rounded up to whole
    vectors; results begin that much later in the copy.

    Every vector of the copy then lies wholly inside or wholly outside the signal, except the one
    that the signal's end cuts.
    """
    from needle_tvm._tvm.names import te, tirx

    m, n, lanes = case["M"], case["N"], case.processor.lanes
    before = n - 1 - conv1d.first(case.size)
    zeros = -(-before // lanes)
    shift = zeros * lanes - before
    whole = m // lanes
    a = te.placeholder((m,), name="A")
    w = te.placeholder((n,), name="W")

    def copied(v: Any, i: Any) -> Any:
        x = v * lanes + i - zeros * lanes
        rest = tirx.if_then_else(tirx.all(x >= 0, x < m), a[x], 0.0) if m % lanes else 0.0
        return tirx.if_then_else(tirx.all(v >= zeros, v < zeros + whole), a[x], rest)

    count = _count(case, vectors) * vectors + _parts(case) + 1
    padded = te.compute((count, lanes), copied, name="padded")

    def at(x: Any) -> Any:
        return padded[(x + shift) // lanes, (x + shift) % lanes]

    return _windowed(case, a, w, at, vectors)


@ladder.rung(kind="rewrite", expected=(1.2, 1.5), define=define_aligned)
def aligned_padding(sch: Schedule, case: Case) -> None:
    """Check whether an element lies in the signal once per vector of the copy.

    With N - 1 zeros in front, the edge of the signal may cut any vector of the copy, so TVM copies
    element by element. By now that copy takes as long as one thread's convolution.

    Prediction: LLVM made the old copy with gathers and scatters of 16 lanes, some 40 cycles for
    each of 275 vectors: 3 of 12 microseconds. The new copy is one comparison, one load and one
    store per vector.

    Picture: A trace has loads and stores, which have not changed, and no comparisons.
    """
    _aligned(sch, case, UNROLL, parallel=True)


def _aligned(sch: Schedule, case: Case, unroll: int, parallel: bool) -> None:
    window_schedule(sch, case, unroll, parallel)
    sch.vectorize(sch.get_loops(sch.get_sblock("padded"))[-1])


@ladder.rung(expected=(0.55, 0.85))
def one_thread(sch: Schedule, case: Case) -> None:
    """Run the same schedule on one thread: at this size, waking another costs as much as it gains.

    By now a call takes 5.6 microseconds on Zen 5. On Zen 4, which starts half as many 512-bit
    multiply-adds in a cycle, it takes 10 (90 % of a core's arithmetic). There the rung before, with
    its threads, is the better choice if the machine is otherwise idle. With longer signals, threads
    pay everywhere.

    Prediction: 24 x 11 x 128 multiply-adds, one per cycle at 3.6 GHz, take 9.4 microseconds, or 10
    to 11 with the copy. Two threads take half of that, and 1 to 3 for waking the second.

    Picture: The tiles follow each other, so the picture covers more time.
    """
    _aligned(sch, case, UNROLL, parallel=False)


def _knobs(case: Case) -> list[Knobs]:
    """Return the choices: vectors in a tile, taps unrolled, threads or none."""
    return [
        {"vectors": vectors, "unroll": unroll, "parallel": parallel}
        for vectors in (2, 4, 6, 8, 10, 11, 12, 14, 16)
        for unroll in (1, 2, 4, 8)
        for parallel in (False, True)
    ]


ladder.space = Space(
    define=lambda case, knobs: define_aligned(case, knobs["vectors"]),
    schedule=lambda sch, case, knobs: _aligned(sch, case, knobs["unroll"], knobs["parallel"]),
    knobs=_knobs,
)
ladder.tuned_from = "pad"
