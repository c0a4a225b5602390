"""Depthwise convolution on a CPU: it has no matmul, so loads decide the time.

The rungs of the depthwise-separable ladder reuse the last schedule for its first half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.rung import Ladder
from kernel_lab.search import Knobs, Space
from kernel_lab.workload import Case
from kernel_lab.workloads import depthwise

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(depthwise.DEPTHWISE, "cpu")
separable = Ladder(depthwise.SEPARABLE, "cpu")

ROWS = 8  # rows of results in a register tile, a vector each


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Run six loops and, at each tap, four comparisons with the image's bounds.

    The sum over the taps is one dependent chain, and the comparisons keep LLVM from vectorising it.

    Picture: The whole kernel is read again for each result. The image is a braid of lines, one for
    each row of the kernel, with gaps where a row of the kernel lies outside the image.
    """


def define_padded(case: Case, tile_rows: int = ROWS) -> list[Any]:
    """Define the convolution on a copy of the image in a frame of zeros. Results come in whole
    register tiles and are cut to size."""
    from needle_tvm._tvm.names import te

    image, kernel = depthwise.placeholders(case)
    tiles = padded_depthwise(case, image, kernel, tile_rows)
    shape = (case["B"], case["C"], case["H"], case["W"])
    out = te.compute(shape, lambda b, c, y, x: tiles[b, c, y, x], name="out")
    return [image, kernel, out]


def padded_depthwise(case: Case, image: Any, kernel: Any, tile_rows: int = ROWS) -> Any:
    """Return the (B, C, H, W) results from a padded copy of the image, with H and W rounded up to
    whole tiles."""
    from needle_tvm._tvm.names import te, tirx

    h, w, k, left = case["H"], case["W"], case["K"], depthwise.before(case.size)
    rows, columns = _whole(h, tile_rows), _whole(w, case.processor.lanes)

    def framed(b: Any, c: Any, y: Any, x: Any) -> Any:
        inside = tirx.all(y >= left, y < h + left, x >= left, x < w + left)
        return tirx.if_then_else(inside, image[b, c, y - left, x - left], 0.0)

    frame = (case["B"], case["C"], rows + k - 1, columns + k - 1)
    padded = te.compute(frame, framed, name="padded")
    kh, kw = te.reduce_axis((0, k), name="kh"), te.reduce_axis((0, k), name="kw")
    return te.compute(
        (case["B"], case["C"], rows, columns),
        lambda b, c, y, x: te.sum(padded[b, c, y + kh, x + kw] * kernel[c, kh, kw], axis=[kh, kw]),
        name="tiles",
    )


def _whole(extent: int, tile: int) -> int:
    return -(-extent // tile) * tile


@ladder.rung(
    kind="rewrite",
    expected=(8, 19),
    define=define_padded,
)
def pad(sch: Schedule, case: Case) -> None:
    """Copy the image into a frame of zeros first, so that the taps are read without checks.

    Bounds are checked once for each pixel of the frame instead of K x K times for each result.
    Nothing is scheduled yet. But in loops of known extents without checks, LLVM unrolls the taps
    and vectorises the columns by itself, with 512 bits for Zen 4 and 256 for Intel's processors.
    The next rungs do most of this explicitly.

    Prediction: 301,056 taps take 2 to 3 cycles each with four comparisons, 167 to 250 microseconds
    at 3.6 GHz. In vectors of 16, with loads that reach into a second line and take two turns, they
    take 10.5. The copy of 10,032 elements takes 2.8, or twice as long element by element.

    Picture: The image is read once, at the left. The braid has moved to `padded` and no longer has
    gaps.
    """


@ladder.rung(
    expected=(1.1, 1.4),
)
def parallel(sch: Schedule, case: Case) -> Any:
    """Put images and channels on different threads: each has its own kernel and shares nothing.

    By now the work takes fifteen microseconds, a few times as long as waking and joining the
    threads, and one thread still copies the frame. The gain stays far below the number of cores.

    Prediction: the sums, 11 of 16 microseconds, are halved; the copies on one thread are not, and
    waking the other thread takes 1 to 3.

    Picture: The band is now two bands, side by side. The copies at both ends belong to one worker.
    """
    loops = _planes(sch)
    sch.parallel(loops[0])
    return loops


def _planes(sch: Schedule) -> Any:
    """Return the loops over planes (image and channel fused), rows, columns and taps."""
    b, c, y, x, kh, kw = sch.get_loops(sch.get_sblock("tiles"))
    return sch.fuse(b, c), y, x, kh, kw


@ladder.rung(
    expected=(0.9, 1.1),
)
def vectorise(sch: Schedule, case: Case) -> Any:
    """Put sixteen neighbouring results of a row in a vector, inside the loops over the taps.

    A tap's weight is broadcast, and the row is read unaligned. LLVM already made these vectors in
    the rungs before, so nothing is gained on Zen 4 (both hot loops have 98 multiply-adds of 512
    bits), and at most a factor of 2 where LLVM's vectors had 256 bits. Vectors that the schedule
    states no longer depend on the compiler, and the next rung can count on them.

    Prediction: 1 with vectors of 512 bits from LLVM: both hot loops have 98 multiply-adds.

    Picture: The sums in the middle are a small part of the steps. `tiles` is loaded and stored at
    each tap in this trace; LLVM keeps the vector in a register.
    """
    return _vectors(sch, case, *parallel(sch, case))


def _vectors(sch: Schedule, case: Case, plane: Any, y: Any, x: Any, kh: Any, kw: Any) -> Any:
    vector, lane = sch.split(x, [None, case.processor.lanes])
    sch.reorder(plane, y, vector, kh, kw, lane)
    sch.vectorize(lane)
    return plane, y, vector, kh, kw


@ladder.rung(expected=(1.3, 1.8))
def register_tile(sch: Schedule, case: Case) -> Any:
    """Sum eight rows, a vector each, in registers and write them once, with the taps unrolled.

    Eight independent chains hide the latency of the multiply-add. With the taps of a column
    unrolled, the compiler sees that row y at tap i and row y + 1 at tap i - 1 read the same vector.
    At K = 7 that is 14 loads for 56 multiply-adds instead of 56.

    Prediction: 49 loads of two turns for 49 multiply-adds become 14 loads for 56, so the sums take
    one cycle each: 5.2 microseconds on two threads become 2.6. The copy from `tiles` to the result,
    up to 1.7, is gone; 5 to 6 for the frame and for waking the thread remain.

    Picture: `tiles` is gone, and `out` is written in strokes of eight rows. Most of the steps are
    now the copy, a straight line.
    """
    return _register_tile(sch, case, *vectorise(sch, case))


def _register_tile(
    sch: Schedule,
    case: Case,
    plane: Any,
    y: Any,
    vector: Any,
    kh: Any,
    kw: Any,
    *,
    rows: int = ROWS,
    most: int = 8,
) -> Any:
    """Apply the schedule of `register_tile`; kernels of up to `most` rows are unrolled."""
    tiles = sch.get_sblock("tiles")
    lane = sch.get_loops(tiles)[-1]
    band, row = sch.split(y, [None, rows])
    sch.reorder(plane, band, vector, kw, kh, row, lane)
    sch.set_scope(tiles, 0, "local")
    sch.unroll(row)
    if case["K"] <= most:
        sch.unroll(kh)
    out = sch.get_sblock("out")
    sch.reverse_compute_at(out, vector, preserve_unit_loops=True)
    out_row, out_lane = sch.get_loops(out)[-2:]
    sch.unroll(out_row)
    sch.vectorize(out_lane)
    sch.decompose_reduction(tiles, kw)
    return plane


@ladder.rung(
    expected=(1.2, 1.6),
    explained="an LRU cache of 32 KiB also misses less than half as many lines as before: the "
    "frames took 40 KB, and a frame of 3.3 KB is read where it was written (Zen 4)",
)
def frame_at_plane(sch: Schedule, case: Case) -> None:
    """Frame each plane in the thread that works on it, instead of all planes in one thread.

    The frame is still in the cache when it is read, and the copy is parallel as well.

    Prediction: the copy of 10,032 elements takes 2.8 to 5.6 of the 8.8 microseconds on one thread,
    and half of that on two.

    Picture: The image is two lines, one for each worker, side by side. `padded` has the frame of
    one plane for each worker, where it had the frames of all planes.
    """
    padded = sch.get_sblock("padded")
    plane = register_tile(sch, case)
    sch.compute_at(padded, plane, preserve_unit_loops=True)


@ladder.rung(expected=(0.65, 0.95))
def one_thread(sch: Schedule, case: Case) -> None:
    """Run the same schedule on one thread: a few microseconds of work are not worth waking another.

    With larger images, threads pay again.

    Prediction: the arithmetic, 5.2 microseconds, and the copies are no longer halved, but waking
    the other thread, 1 to 3 microseconds, is saved.

    Picture: Copy and sums take turns, plane by plane, in the same frame.
    """
    padded = sch.get_sblock("padded")
    plane = _register_tile(sch, case, *_vectors(sch, case, *_planes(sch)))
    sch.compute_at(padded, plane, preserve_unit_loops=True)


@ladder.rung(kind="failed", after=register_tile, expected=(0.05, 0.11))
def fused_padding(sch: Schedule, case: Case) -> None:
    """FAILS: compute the frame where it is read instead of copying it.

    It saves 40 KiB of traffic inside the cache, but makes four checks at each of the K x K taps.

    Prediction: 301,056 taps with four comparisons, 2 to 4 cycles each, are 84 to 167 microseconds
    on two threads, instead of 8.8.

    Picture: As in the 1-D ladder the picture looks good: there is no copy, and a stroke of rows for
    each tap. The comparisons, which take the time, are not in it.
    """
    sch.compute_inline(sch.get_sblock("padded"))
    _register_tile(sch, case, *vectorise(sch, case), most=0)


@ladder.rung(
    kind="failed",
    after=vectorise,
    expected=(0.3, 0.6),
    explained=("threads that still spin are woken in 0.9 microseconds: (26 - 15.7) / 11 (Zen 4)"),
)
def parallel_rows(sch: Schedule, case: Case) -> None:
    """FAILS: use threads for the rows of a plane, one plane after another.

    Each plane wakes and joins the threads again, for a microsecond's work.

    Prediction: the threads are woken 12 times instead of once. Each of the 11 more times takes 1 to
    3 microseconds, on top of 15.7.

    Picture: Where `parallel` has two long bands, there are two short bands for each plane. Between
    the planes, the threads wait for each other.
    """
    tiles = sch.get_sblock("tiles")
    _, _, y, x, kh, kw = sch.get_loops(tiles)
    vector, lane = sch.split(x, [None, case.processor.lanes])
    sch.reorder(y, vector, kh, kw, lane)
    sch.parallel(y)
    sch.vectorize(lane)


def _searched(sch: Schedule, case: Case, knobs: Knobs) -> None:
    """Apply the schedule of `one_thread`, or the variant of it that the `knobs` describe."""
    padded = sch.get_sblock("padded")
    planes = parallel(sch, case) if knobs["parallel"] else _planes(sch)
    most = case["K"] if knobs["write_out"] else 0
    plane = _register_tile(sch, case, *_vectors(sch, case, *planes), rows=knobs["rows"], most=most)
    if knobs["frame_at_plane"]:
        sch.compute_at(padded, plane, preserve_unit_loops=True)


def _knobs(case: Case) -> list[Knobs]:
    """Return the choices: rows of a register tile, taps unrolled or not, where the frame is made,
    threads or none."""
    return [
        {"rows": rows, "write_out": out, "frame_at_plane": frame, "parallel": threads}
        for rows in (1, 2, 4, 8, 16)
        for out in (False, True)
        for frame in (False, True)
        for threads in (False, True)
    ]


ladder.space = Space(
    define=lambda case, knobs: define_padded(case, knobs["rows"]), schedule=_searched, knobs=_knobs
)
ladder.tuned_from = "pad"


@separable.rung(name="naive", expected=(1, 1), kind="naive")
def separable_naive(sch: Schedule, case: Case) -> None:
    """Compute the naive depthwise convolution, then sum over the channels for each output
    channel.

    Picture: `deep` is written once and then read once for each output channel.
    """


def define_separable_padded(case: Case) -> list[Any]:
    """Define the padded depthwise convolution in whole tiles, then the pointwise one, cut to
    size."""
    from needle_tvm._tvm.names import te

    image, kernel = depthwise.placeholders(case)
    point = te.placeholder((case["O"], case["C"]), name="point")
    tiles = padded_depthwise(case, image, kernel)
    c = te.reduce_axis((0, case["C"]), name="c")
    wide = te.compute(
        (case["B"], case["O"], int(tiles.shape[2]), int(tiles.shape[3])),
        lambda b, o, y, x: te.sum(tiles[b, c, y, x] * point[o, c], axis=c),
        name="wide",
    )
    shape = (case["B"], case["O"], case["H"], case["W"])
    out = te.compute(shape, lambda b, o, y, x: wide[b, o, y, x], name="out")
    return [image, kernel, point, out]


@separable.rung(
    name="pad", kind="rewrite", after="naive", expected=(6, 15), define=define_separable_padded
)
def separable_pad(sch: Schedule, case: Case) -> None:
    """Frame the image with zeros as in the depthwise ladder; the pointwise half stays as it is.

    The first half speeds up as much as it does there; the unchanged second half hides part of the
    gain.

    Prediction: the first half takes 13 microseconds, as in the depthwise ladder, instead of 143 to
    250; the 49,152 multiply-adds of the second half and the copy out of whole tiles still take 5 to
    11.

    Picture: The first half is the picture of the depthwise `pad`. At the right, results are copied
    from `wide`, whose rows are whole tiles.
    """


@separable.rung(name="vectorise", expected=(1.6, 2.4))
def separable_vectorise(sch: Schedule, case: Case) -> None:
    """Vectorise both halves along the row, the first one in register tiles.

    The pointwise sum over a few channels now makes most of the loads.

    Prediction: on one thread the depthwise half falls from 10.5 microseconds to 5.2, the arithmetic
    of its register tiles. The second half is 3,072 vector multiply-adds of 2 to 3 cycles, about 2
    microseconds; the copies take 3. In all, that is 10 instead of 17 to 24.

    Picture: The strokes in `tiles` are the register tiles as they are written. They are still read
    once for each output channel, and `wide` is violet: it is loaded and stored for each channel of
    the sum.
    """
    _deep_tiles(sch, case)
    b, o, y, x, c = sch.get_loops(sch.get_sblock("wide"))
    vector, lane = sch.split(x, [None, case.processor.lanes])
    sch.reorder(b, o, y, vector, c, lane)
    sch.vectorize(lane)
    _, lane = sch.split(sch.get_loops(sch.get_sblock("out"))[-1], [None, case.processor.lanes])
    sch.vectorize(lane)


def _deep_tiles(sch: Schedule, case: Case, parallel: bool = False) -> None:
    """Put the depthwise half in register tiles, which are written to its array."""
    tiles = sch.get_sblock("tiles")
    written = sch.cache_write(tiles, 0, "local")
    plane, y, vector, kh, kw = _vectors(sch, case, *_planes(sch))
    lane = sch.get_loops(tiles)[-1]
    band, row = sch.split(y, [None, ROWS])
    sch.reorder(plane, band, vector, kw, kh, row, lane)
    sch.unroll(row)
    if case["K"] <= 8:
        sch.unroll(kh)
    sch.reverse_compute_at(written, vector, preserve_unit_loops=True)
    out_row, out_lane = sch.get_loops(written)[-2:]
    sch.unroll(out_row)
    sch.vectorize(out_lane)
    if parallel:
        sch.parallel(plane)
    sch.decompose_reduction(tiles, kw)


@separable.rung(name="pointwise_tile", expected=(1.1, 1.25))
def separable_pointwise_tile(sch: Schedule, case: Case) -> None:
    """Compute all output channels of a row's vector at once: each depthwise result is loaded once.

    With eight output channels that is one load for eight multiply-adds instead of one for one, and
    the sums go straight to the result.

    Prediction: the second half falls from 2 of the 8.4 microseconds to 0.9: one cycle for each of
    3,072 multiply-adds. It was a seventh of the arithmetic.

    Picture: `wide` is gone. `tiles` is swept once, two lines at a time (the two channels of a sum),
    and `out` is written in lines, one for each output channel.
    """
    _deep_tiles(sch, case)
    _point_tiles(sch, case)


def _point_tiles(sch: Schedule, case: Case, parallel: bool = False) -> None:
    """Put the pointwise half in registers, with the loop over its output channels inside."""
    wide = sch.get_sblock("wide")
    sch.set_scope(wide, 0, "local")
    b, o, y, x, c = sch.get_loops(wide)
    group, channel = sch.split(o, [None, next(n for n in (8, 4, 2, 1) if case["O"] % n == 0)])
    vector, lane = sch.split(x, [None, case.processor.lanes])
    sch.reorder(b, group, y, vector, c, channel, lane)
    sch.unroll(channel)
    sch.vectorize(lane)
    out = sch.get_sblock("out")
    sch.reverse_compute_at(out, vector, preserve_unit_loops=True)
    loops = sch.get_loops(out)
    sch.unroll(loops[-3])
    sch.vectorize(loops[-1])
    if parallel:
        sch.parallel(b)
    sch.decompose_reduction(wide, c)


@separable.rung(name="parallel", expected=(0.65, 1.15))
def separable_parallel(sch: Schedule, case: Case) -> None:
    """Put planes of the first half on the threads, then images of the second.

    The threads are woken twice, each time for a few microseconds of work, which pays for large
    images only.

    Prediction: the arithmetic, 6 of 7.5 microseconds, falls to 3.2: each thread gets half of the
    planes, and one thread has two of three images. Waking a thread, 1 to 3 microseconds, happens
    twice, and the frames stay on one thread.

    Picture: The copy of the frames is most of the steps, and one worker makes all of it: the
    depthwise ladder's `frame_at_plane` is not in this rung.
    """
    _deep_tiles(sch, case, parallel=True)
    _point_tiles(sch, case, parallel=True)


separable.tuned_from = "pad"
