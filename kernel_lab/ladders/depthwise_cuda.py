"""Depthwise convolution on a GPU in the steps of W. Ye, "TVM_tutorial"; then the separable one,
which ends as one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lab.ladders.cuda_limits import grid_claim, shared_claim
from kernel_lab.rung import Ladder, any_size
from kernel_lab.workload import Case, Size
from kernel_lab.workloads import depthwise

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Schedule

ladder = Ladder(depthwise.DEPTHWISE, "cuda")
separable = Ladder(depthwise.SEPARABLE, "cuda")

ROWS, COLUMNS = 8, 32  # threads of a block, and so its results


def _rows_fit(size: Size) -> str | None:
    """Return why one block per row does not fit the grid; None if it fits. Only a grid's x axis may
    be longer."""
    return grid_claim(y=size["H"])


def _planes_fit(size: Size) -> str | None:
    """Return why the grid of `_planes` (planes along z, bands of rows along y) is too large; None
    if it fits."""
    return grid_claim(y=-(-size["H"] // ROWS), z=size["B"] * size["C"])


def _frame_fits(size: Size) -> str | None:
    """Return why a tile with its halo, and a kernel, do not fit into shared memory; None if they
    fit."""
    k = size["K"]
    framed = (min(size["H"], ROWS) + k - 1) * (min(size["W"], COLUMNS) + k - 1)
    return _planes_fit(size) or shared_claim(framed + k * k)


def _halves_fit(size: Size) -> str | None:
    """Return why the grid of either kernel (planes along z) is too large; None if both fit."""
    return _planes_fit(size) or grid_claim(z=size["B"] * size["O"])


def _channels_fit(size: Size) -> str | None:
    """Return why a size does not fit the fused kernel, which keeps all channels of a tile in shared
    memory; None if it fits."""
    piece = min(size["H"], ROWS) * min(size["W"], COLUMNS)
    rows = grid_claim(y=-(-size["H"] // ROWS), z=size["B"])
    return rows or shared_claim(size["C"] * piece)


@ladder.rung(expected=(1, 1), kind="naive")
def naive(sch: Schedule, case: Case) -> None:
    """Give each plane a block of one thread: B x C threads in all, each computing H x W results.

    That uses twelve lanes of a GPU with thousands.

    Picture: There is one bar in one sector. The next two rungs have the same picture, since it
    shows one request, and not how many requests run at a time.
    """
    b, c, *_ = sch.get_loops(sch.get_sblock("out"))
    sch.bind(sch.fuse(b, c), "blockIdx.x")


@ladder.rung(
    expected=(5.5, 16),
    claims=_rows_fit,
    explained="the 4.3 of Ye's TVM_tutorial was measured on a T4; no count here explains why it "
    "is less than 5.5",
)
def blocks_2d(sch: Schedule, case: Case) -> None:
    """Give each row of a plane a block (v1 of W. Ye, "TVM_tutorial", which claims a speedup of 2.3;
    its own times give 4.3. v2 to v4 below are its next steps).

    That is H = 16 times as many threads, but still one lane of each warp.

    Prediction: a thread has 1,568 multiply-adds instead of 25,088, 16 times fewer, and all 192
    blocks are on the GPU at once; they share the multiprocessors' caches.

    Picture: Only the index has changed: `blockIdx_y` stands where the loop over rows was.
    """
    b, c, y, *_ = sch.get_loops(sch.get_sblock("out"))
    sch.bind(sch.fuse(b, c), "blockIdx.x")
    sch.bind(y, "blockIdx.y")


@ladder.rung(expected=(7, 20), claims=any_size)
def block_fusion(sch: Schedule, case: Case) -> None:
    """Give each result a block (v2): all loops over results are fused, which makes W times as many
    threads.

    6144 blocks fill every multiprocessor, but a warp is as idle as before.

    Prediction: a thread has 49 multiply-adds instead of 1,568, 32 times fewer, in 1.78 waves: a
    factor of 18. Each multiprocessor now has 32 warps, each with the loads of one lane.

    Picture: The index shows the price of a fused loop: `blockIdx_x // 128` recomputes which image a
    block belongs to.
    """
    b, c, y, x, *_ = sch.get_loops(sch.get_sblock("out"))
    sch.bind(sch.fuse(b, c, y, x), "blockIdx.x")


@ladder.rung(expected=(3, 9), claims=_planes_fit)
def threads_2d(sch: Schedule, case: Case) -> None:
    """Use 8 x 32 threads for a tile of a plane (v3): a warp reads neighbouring elements of a row.

    Prediction: 192 warps instead of 6,144 make the same loads, 32 lanes at a time; the 1.78 waves
    become less than one. The launch itself still takes microseconds.

    Picture: A warp is a row of a tile. Its results are four whole sectors. All threads read the
    same element of the kernel.
    """
    _planes(sch)


def _planes(sch: Schedule, name: str = "out") -> Any:
    """Tile a plane by blocks of 8 x 32 results; return the innermost block loop."""
    b, c, y, x, *_ = sch.get_loops(sch.get_sblock(name))
    y_block, y_thread = sch.split(y, [None, ROWS])
    x_block, x_thread = sch.split(x, [None, COLUMNS])
    sch.reorder(b, c, y_block, x_block, y_thread, x_thread)
    plane = sch.fuse(b, c)
    sch.bind(plane, "blockIdx.z")
    sch.bind(y_block, "blockIdx.y")
    sch.bind(x_block, "blockIdx.x")
    sch.bind(y_thread, "threadIdx.y")
    sch.bind(x_thread, "threadIdx.x")
    return x_block


@ladder.rung(expected=(1, 1.5), claims=any_size)
def outer_fusion(sch: Schedule, case: Case) -> None:
    """Fuse all results into one loop and split it into blocks of 128 threads (v4, 1.26 times).

    No lane is idle when H or W is not a multiple of a block, and there are twice as many blocks.

    Prediction: 48 blocks are on 48 of 108 multiprocessors instead of 24, with half as many warps
    each. The launch does not change.

    Picture: A warp has two of the picture's short rows, without a gap between them: a fused loop
    does not see where a row ends.
    """
    b, c, y, x, *_ = sch.get_loops(sch.get_sblock("out"))
    block, thread = sch.split(sch.fuse(b, c, y, x), [None, 128])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def define_padded(case: Case) -> list[Any]:
    """Define the convolution with the zero-padded image as a separate stage, which a schedule can
    place."""

    image, kernel = depthwise.placeholders(case)
    deep = _framed(case, image, kernel, "out")
    return [image, kernel, deep]


def _framed(case: Case, image: Any, kernel: Any, name: str) -> Any:
    from needle_tvm._tvm.names import te, tirx

    h, w, k, left = case["H"], case["W"], case["K"], depthwise.before(case.size)

    def framed(b: Any, c: Any, y: Any, x: Any) -> Any:
        inside = tirx.all(y >= left, y < h + left, x >= left, x < w + left)
        return tirx.if_then_else(inside, image[b, c, y - left, x - left], 0.0)

    frame = (case["B"], case["C"], h + k - 1, w + k - 1)
    padded = te.compute(frame, framed, name="padded")
    kh, kw = te.reduce_axis((0, k), name="kh"), te.reduce_axis((0, k), name="kw")
    return te.compute(
        (case["B"], case["C"], h, w),
        lambda b, c, y, x: te.sum(padded[b, c, y + kh, x + kw] * kernel[c, kh, kw], axis=[kh, kw]),
        name=name,
    )


@ladder.rung(
    kind="rewrite",
    after=threads_2d,
    expected=(0.9, 1.8),
    define=define_padded,
    claims=_frame_fits,
)
def shared_memory(sch: Schedule, case: Case) -> None:
    """Keep a block's tile of the image with its halo, and its kernel, in shared memory.

    Each pixel is fetched, and its bounds are checked, once per block instead of up to K x K times.
    At 7 x 7 the cache already gave most of this gain. A warp reads a row of the padded tile, so no
    two of its lanes use the same bank of shared memory.

    Prediction: a pixel is loaded 1.4 times from global memory instead of 41.4, but the first-level
    cache delivered these loads. Each tap loses four comparisons, which were up to half of its
    instructions.

    Picture: All panels have one colour: a warp reads 32 neighbouring elements of a row of the
    padded tile, which are in 32 different banks wherever they begin.
    """
    _shared(sch)


def _shared(sch: Schedule) -> None:
    kernel = sch.cache_read(sch.get_sblock("out"), 1, "shared")
    block = _planes(sch)
    padded = sch.get_sblock("padded")
    sch.set_scope(padded, 0, "shared")
    for copy, depth in ((padded, 2), (kernel, 2)):
        sch.compute_at(copy, block, preserve_unit_loops=True)
        _, ty, tx = sch.split(sch.fuse(*sch.get_loops(copy)[-depth:]), [None, ROWS, COLUMNS])
        sch.bind(ty, "threadIdx.y")
        sch.bind(tx, "threadIdx.x")


@ladder.rung(expected=(1.1, 1.5))
def unroll(sch: Schedule, case: Case) -> None:
    """Unroll the taps of kernels of up to 8 x 8: no counters, addresses known in advance.

    Prediction: 3.7 instructions per multiply-add become 2.5 in the hot part of the PTX, 1.5 times
    fewer at most.
    """
    out = sch.get_sblock("out")
    _shared(sch)
    if case["K"] <= 8:
        for loop in sch.get_loops(out)[-2:]:
            sch.unroll(loop)


@separable.rung(name="naive", expected=(1, 1), kind="naive")
def separable_naive(sch: Schedule, case: Case) -> None:
    """Launch two kernels, each with a block of one thread for each result.

    Picture: All blocks step together. `deep`, the array between the kernels, is written by the
    first kernel, whose taps fill most of the picture. The second kernel, at the right, loads it
    once for each output channel.
    """
    for name in ("deep", "out"):
        b, c, y, x, *_ = sch.get_loops(sch.get_sblock(name))
        sch.bind(sch.fuse(b, c, y, x), "blockIdx.x")


@separable.rung(name="threads_2d", expected=(3, 9), claims=_halves_fit)
def separable_threads_2d(sch: Schedule, case: Case) -> None:
    """Use blocks of 8 x 32 threads in both kernels: whole warps, each reading part of a row.

    Prediction: as for `threads_2d` in the depthwise ladder: whole warps and less than one wave. The
    two launches remain.

    Picture: The requests come in the same order as in `naive`. Each column is now the work of whole
    warps.
    """
    for name in ("deep", "out"):
        _planes(sch, name)


@separable.rung(name="fuse", expected=(0.7, 2), claims=_channels_fit)
def separable_fuse(sch: Schedule, case: Case) -> None:
    """Fuse both halves into one kernel: a block computes the depthwise results of all channels for
    its tile into shared memory, then all output channels from there.

    There is one launch instead of two, and the array between the halves never reaches global
    memory. A warp reads part of a row, so the trace finds no bank conflict. (The sum over channels
    at a pixel reads values that the same thread wrote; shared memory has room for more channels
    than registers.)

    Prediction: one launch instead of two gains a factor of 2 at best. But 6 blocks on 108
    multiprocessors replace 24 and 48, and each computes four channels one after another.

    Picture: The channels are left of the dotted line (the barrier), one after another: nine taps
    each, and then one store to `deep_shared`. To the right of it, each output channel reads all
    channels and writes one image of `out`.
    """
    out, deep = sch.get_sblock("out"), sch.get_sblock("deep")
    b, o, y, x, _ = sch.get_loops(out)
    y_block, y_thread = sch.split(y, [None, ROWS])
    x_block, x_thread = sch.split(x, [None, COLUMNS])
    sch.reorder(b, y_block, x_block, y_thread, x_thread, o)
    sch.bind(b, "blockIdx.z")
    sch.bind(y_block, "blockIdx.y")
    sch.bind(x_block, "blockIdx.x")
    sch.bind(y_thread, "threadIdx.y")
    sch.bind(x_thread, "threadIdx.x")
    sch.set_scope(deep, 0, "shared")
    # Each sum stays in a register and is stored once. In shared memory, each step would read what a
    # thread wrote there, and at an edge TVM would put a barrier that only some threads reach.
    shared = sch.cache_write(deep, 0, "local")
    sch.compute_at(shared, x_block, preserve_unit_loops=True)
    *_, c, dy, dx = sch.get_loops(shared)
    sch.reorder(dy, dx, c)
    _, ty = sch.split(dy, [None, ROWS])
    _, tx = sch.split(dx, [None, COLUMNS])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")
    sch.compute_at(deep, c, preserve_unit_loops=True)
