"""Convolutions on packed weights, in register tiles of output pixels by output channels.

Every core takes *tasks*. A task computes some panels of output channels for a strip of rows of some
images. It first copies the rows that its strip reads into its own buffer, zero-padded if the
convolution pads. It then walks over register tiles (images x rows x columns x channels) whose
accumulators stay in vector registers during the whole reduction. The pixels of a tile lie at
constant distances from each other, so that a multiply-add needs no separate address computation
(Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD architectures",
SC 2018, section 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import Schedule, Target, tirx
from needle_tvm.kernels import blocks
from needle_tvm.kernels.blocks import (
    PARALLEL_WORK,
    after,
    block_work,
    blocks_of,
    can_fuse,
    extent,
    is_symbolic,
    item_bytes,
    lanes_of,
    least_extent,
    share_out,
    sum_in_registers,
    vector_side,
    write_back,
)
from needle_tvm.kernels.conv.cpu_tiles import ConvTile, Copied, tasks
from needle_tvm.kernels.rule import annotated
from needle_tvm.target.info import target_info
from needle_tvm.tir.extents import is_static
from needle_tvm.tir.functions import written_dtype

CONV = "needle.conv"  # block annotation: [images, rows, columns, channels] of the register tile
DEPTHWISE = "needle.depthwise"  # the same for a depthwise convolution
ROWS = "needle.rows"  # on the same block: [input rows per output row, input rows in a window]
GROUP = "needle.group"  # on the same block, if channels form groups: [panels per group]
PLANES = "needle.planes"  # on the block that permutes the result to channels first (`write_planes`)
TAPS = "needle.taps"  # on the block that permutes the result to (row, column, image, channel)
ALIKE = (
    "needle.alike"  # on the padded input: number of neighbours all inside the image or all outside
)

_LEAST_UNROLLED = 4  # steps of the reduction in the innermost loop's body
_MOST_UNROLLED = 32


@dataclass(frozen=True)
class ConvKnobs:
    """The choices that these rules leave to a search; the defaults need no search."""

    unroll: int = _LEAST_UNROLLED
    strips: int | None = None  # tasks along the rows; None: chosen by size and number of cores


CONV_VARIANTS = tuple(  # without measurements, the first is used
    ConvKnobs(unroll=unroll, strips=strips)
    for strips in (None, 1, 2, 4)
    for unroll in (_LEAST_UNROLLED, 1, 2, 8)
)
DEPTHWISE_VARIANTS = tuple(ConvKnobs(strips=strips) for strips in (None, 1, 2, 4, 8, 16))


@annotated(CONV, CONV_VARIANTS)
def conv(sch: Schedule, tiles: Any, target: Target, knobs: ConvKnobs) -> bool:
    """Schedule a convolution of `kernels.conv.pack_conv` with its fused epilogue."""
    planes = blocks.annotated(sch, PLANES)
    if planes is None and _is_broadcast(sch, tiles):
        return False
    if planes is None:
        _around_tiles(sch, tiles, target, knobs, CONV)
    else:
        _into_planes(sch, tiles, planes, target, knobs)
    pixel, vector, taps = _loops_of(sch, tiles)
    around, unrolled = _innermost(sch, taps, knobs.unroll)
    sch.reorder(*around, *unrolled, *pixel, vector)
    sum_in_registers(sch, tiles, around[0], [*unrolled, *pixel], vector)
    return True


@annotated(DEPTHWISE, DEPTHWISE_VARIANTS)
def depthwise(sch: Schedule, tiles: Any, target: Target, knobs: ConvKnobs) -> bool:
    """Schedule a depthwise convolution of `kernels.conv.pack_conv` with its fused epilogue.

    A depthwise convolution does so little with each input that copying the inputs would cost more
    than everything else. So the image's bounds are checked as each input is read. All channels of a
    few pixels come before the next pixels, since memory is fetched in larger units than the one
    vector of a tile. Neighbouring pixels of a row read the same inputs in sequence: an input is
    loaded once, and its last use comes before its register is needed again. The loop over the
    window's rows is not unrolled, since LLVM would keep an input in a register until the next row
    reads it again.
    """
    if _is_broadcast(sch, tiles):
        return False
    _around_tiles(sch, tiles, target, knobs, DEPTHWISE)
    pixel, vector, (row, column) = _loops_of(sch, tiles)
    sum_in_registers(sch, tiles, row, [*pixel, column], vector)
    return True


def _is_broadcast(sch: Schedule, tiles: Any) -> bool:
    """Return whether the epilogue broadcasts the convolution's result to a larger shape."""
    (result,) = sch.get_consumers(tiles)
    had, has = (sch.get(block).writes[0].source.shape for block in (result, blocks_of(sch)[-1]))
    if len(had) != len(has):
        return True
    known = is_static(had) and is_static(has)
    return known and math.prod(map(int, had)) != math.prod(map(int, has))


def _around_tiles(
    sch: Schedule, tiles: Any, target: Target, knobs: ConvKnobs, annotation: str
) -> None:
    """Schedule the tasks, their copies, the loops over tiles, and a vectorised write-back."""
    details = sch.get(tiles).annotations
    tile = ConvTile(*(int(size) for size in details[annotation]))
    cores = target_info(target).cores
    channelwise = annotation == DEPTHWISE
    copies = sch.get_producers(tiles)
    if channelwise:
        copies = [copy for copy in copies if not _inlined(sch, copy)]
    taps_first = blocks.annotated(sch, TAPS) is not None
    between, last = after(sch, [tiles, *copies])
    work = block_work(sch, tiles)
    if work < PARALLEL_WORK:
        cores = 1

    image, row, column, channel = sch.get_loops(last)
    if taps_first:
        row, column, image = image, row, column
    image_tile, i = sch.split(image, [None, tile.images])
    row_tile, j = sch.split(row, [None, tile.rows])
    column_tile, k = sch.split(column, [None, tile.columns])
    panel, lane = sch.split(channel, [None, tile.channels])
    grouped = GROUP in details
    # All panels of a group read the same inputs, which are copied for that group only.
    panel, *of_group = sch.split(panel, [None, *details[GROUP]]) if grouped else [panel]
    # If the batch is symbolic, even the fewest images must give enough tasks for all cores.
    images = max(1, least_extent(sch, image_tile))
    symbolic = is_symbolic(sch, row_tile)
    panels, rows = (extent(sch, loop) for loop in (panel, row_tile))
    separate, copied = channelwise or grouped, None
    for copy in copies:  # at most one
        copied = _copied(sch, tiles, copy, images, rows * tile.rows, shared=separate)
    chunks, strips = tasks(
        (panels, images, rows),
        tile.rows,
        work,
        _weights(sch, tiles),
        copied,
        cores,
        whole_pixels=separate,
    )
    if knobs.strips is not None and rows % knobs.strips == 0:
        strips = knobs.strips
    # A strip of a symbolic number of rows is one tile: a longer strip would check where it ends.
    panel_chunk, panel = sch.split(panel, [1 if symbolic else chunks, None])
    strip, row_tile = sch.split(row_tile, [None, 1] if symbolic else [strips, None])
    inner = [panel, *of_group, row_tile, column_tile]
    if channelwise:
        inner = [row_tile, column_tile, panel]
    counts = [strip, image_tile] if symbolic else [panel_chunk, image_tile, strip]
    sch.reorder(*counts, *inner, i, j, k, lane)
    if can_fuse(sch, counts):
        task = sch.fuse(*counts)
        share_out(sch, task, tiles, target)
    else:
        task = image_tile
        share_out(sch, strip, tiles, target)
    write_back(sch, tiles, between, last, inner[-1], [i, j, k, lane], target)
    sch.compute_at(tiles, inner[-1], preserve_unit_loops=True)
    for block in copies:
        sch.compute_at(block, panel if grouped else task, preserve_unit_loops=True)
        _vectorize_copy(sch, block, target)


def _into_planes(sch: Schedule, tiles: Any, planes: Any, target: Target, knobs: ConvKnobs) -> None:
    """Schedule the tasks, their copies and the loops over tiles of a convolution whose result is
    permuted to channels first (`write_planes`). A task computes one row of tiles after another, and
    permutes each row while it is in the cache."""
    tile = ConvTile(*(int(size) for size in sch.get(tiles).annotations[CONV]))
    copies = sch.get_producers(tiles)
    (result,) = sch.get_producers(planes)
    others, last = after(sch, [tiles, *copies, result])
    names = [sch.get(block).name_hint for block in blocks_of(sch)]
    place = names.index(sch.get(result).name_hint)
    between = [block for block in others if names.index(sch.get(block).name_hint) < place]
    work = block_work(sch, tiles)

    batch, channel, *depth, row, column = sch.get_loops(last)
    row_tile, j = sch.split(row, [None, tile.rows])
    sch.reorder(batch, *depth, row_tile, j, channel, column)
    image = sch.fuse(batch, *depth)
    images, rows = extent(sch, image), extent(sch, row_tile)
    copied = None
    for copy in copies:  # at most one
        copied = _copied(sch, tiles, copy, images, rows * tile.rows, shared=False)
    counts, weights = (1, images, rows), _weights(sch, tiles)
    cores = target_info(target).cores
    _, strips = tasks(counts, tile.rows, work, weights, copied, cores, whole_pixels=True)
    if knobs.strips is not None and rows % knobs.strips == 0:
        strips = knobs.strips
    strip, row_tile = sch.split(row_tile, [strips, None])
    task = sch.fuse(image, strip)
    share_out(sch, task, tiles, target)
    for block in reversed([each for each in others if each not in between]):
        sch.compute_at(block, row_tile, preserve_unit_loops=True)
        _vectorize_rows(sch, block, target)
    _in_squares(sch, last, channel, column, target)

    sch.compute_at(result, row_tile, preserve_unit_loops=True)
    i, j, column, channel = sch.get_loops(result)[-4:]
    column_tile, k = sch.split(column, [None, tile.columns])
    panel, lane = sch.split(channel, [None, tile.channels])
    sch.reorder(panel, column_tile, i, j, k, lane)
    write_back(sch, tiles, between, result, column_tile, [i, j, k, lane], target)
    sch.compute_at(tiles, column_tile, preserve_unit_loops=True)
    for block in copies:
        sch.compute_at(block, task, preserve_unit_loops=True)
        _vectorize_copy(sch, block, target)


def _in_squares(sch: Schedule, block: Any, channel: Any, column: Any, target: Target) -> None:
    """Permute in squares: LLVM reads the channels of a square together."""
    lanes = lanes_of(sch, block, target)
    channel, inner = sch.split(channel, [None, vector_side(sch, channel, lanes)])
    column, vector = sch.split(column, [None, vector_side(sch, column, lanes)])
    sch.reorder(channel, column, inner, vector)
    sch.vectorize(vector)


def _vectorize_rows(sch: Schedule, block: Any, target: Target) -> None:
    """Vectorise a block along the last axis, in parts that divide it if they are long enough."""
    loop, lanes = sch.get_loops(block)[-1], lanes_of(sch, block, target)
    _, vector = sch.split(loop, [None, vector_side(sch, loop, lanes)])
    sch.vectorize(vector)


def _inlined(sch: Schedule, copy: Any) -> bool:
    """Inline a copy that pads the image with zeros, and return whether it was inlined. A copy that
    also pads the last vector of channels is not inlined: its lanes would have to be checked one by
    one."""
    alike = int(sch.get(copy).annotations[ALIKE]) > 1
    if alike:
        sch.compute_inline(copy)
    return alike


def _weights(sch: Schedule, tiles: Any) -> tuple[int, int]:
    """Return the number of weights, and the bytes of each."""
    panels = sch.get(tiles).reads[-1].source
    return math.prod(int(extent) for extent in panels.shape), item_bytes(str(panels.dtype))


def _copied(
    sch: Schedule, tiles: Any, copy: Any, images: int, rows: int, *, shared: bool
) -> Copied:
    """Describe the input that tasks copy, for `images` tiles of images with `rows` output rows."""
    step, window = (int(number) for number in sch.get(tiles).annotations[ROWS])
    all_images, *of_image = sch.get_loops(copy)
    count = images if is_symbolic(sch, all_images) else extent(sch, all_images)
    elements = count * math.prod(extent(sch, loop) for loop in of_image)
    row = elements // (images * ((rows - 1) * step + window))
    return Copied(step, window, row, item_bytes(written_dtype(sch.get(copy))), shared)


def _loops_of(sch: Schedule, tiles: Any) -> tuple[list[Any], Any, list[Any]]:
    """Return a tile's loops over pixels (images, rows, columns), the loop over its channels, and
    its reduction loops."""
    count = sum(a.iter_type == tirx.IterVar.CommReduce for a in sch.get(tiles).iter_vars)
    *pixel, vector = sch.get_loops(tiles)[-4 - count : -count]
    return pixel, vector, sch.get_loops(tiles)[-count:]


def _vectorize_copy(sch: Schedule, block: Any, target: Target) -> None:
    """Vectorise a copy along channels, in vectors that divide them; planes' columns stay scalar."""
    loop = sch.get_loops(block)[-1]
    lanes = math.gcd(int(sch.get(block).annotations[ALIKE]), lanes_of(sch, block, target))
    if lanes > 1:
        _, vector = sch.split(loop, [None, lanes])
        sch.vectorize(vector)


def _innermost(sch: Schedule, taps: list[Any], least: int) -> tuple[list[Any], list[Any]]:
    """Split the reduction loops into loops that stay (at least one) and loops to unroll."""
    unrolled: list[Any] = []
    steps, around = 1, list(taps)
    while steps < least and around:
        last = around.pop()
        if len(around) and steps * extent(sch, last) <= _MOST_UNROLLED and extent(sch, last) <= 8:
            unrolled.insert(0, last)
            steps *= extent(sch, last)
            continue
        factor = next(
            f for f in range(min(least, extent(sch, last)), 0, -1) if extent(sch, last) % f == 0
        )
        outer, inner = sch.split(last, [None, factor])
        around.append(outer)
        unrolled.insert(0, inner)
        break
    return around, unrolled
