"""Convolutions as tensor expressions over packed weights and tiles, for `pack_conv`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import te, tirx
from needle_tvm.kernels.conv.cpu import ALIKE, CONV, DEPTHWISE, GROUP, ROWS
from needle_tvm.kernels.conv.cpu_tiles import ConvTile
from needle_tvm.tir.extents import Size, expr_of, exprs_of, extent_of, is_static, tiles_in


@dataclass(frozen=True)
class Geometry:
    """The parameters of a convolution that the shapes of its input and weight do not determine.
    Pairs are (rows, columns)."""

    counts: tuple[Size, Size]  # of the output
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]  # zeros above and left of the image
    after: tuple[int, int] = (0, 0)  # zeros below and right, needed for a symbolic count


@dataclass(frozen=True)
class Channels:
    """The input channels that output channels read, and the layout of the input."""

    inputs: int  # per group
    outputs: int  # per group
    depthwise: bool = False  # each channel by itself
    planar: bool = False  # (B, C, H, W), weights (C, kh, kw, N)

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The axes of an input, in the order image, row, column, channel."""
        return (0, 2, 3, 1) if self.planar else (0, 1, 2, 3)


def conv(
    x: te.Tensor,
    panels: te.Tensor,
    n: int,
    geometry: Geometry,
    channels: Channels,
    tile: ConvTile,
) -> te.Tensor:
    """Convolve (B, H, W, C) with panels of a (kh, kw, C / groups, n) weight into (B, rows, columns,
    n).

    The accumulator has the shape of the tiles, so that the schedule can keep one tile in registers.
    The write-back drops results past the output's edge. A tile's channels lie in one group.
    """
    names = ("c", "dy", "dx") if channels.planar else ("dy", "dx", "c")
    # All indices have one type: int64 if extents are symbolic.
    sized = int if is_static(x.shape) else expr_of
    axes = [
        te.reduce_axis((sized(0), sized(extent)), name=name)
        for extent, name in zip(panels.shape[1:4], names, strict=True)
    ]
    dy, dx, c = (axes[names.index(name)] for name in ("dy", "dx", "c"))
    (s, t), (d, e) = geometry.stride, geometry.dilation
    batch, height, width, _ = (extent_of(x.shape[axis]) for axis in channels.order)
    rows, columns = _counts(geometry, (height, width), (dy, dx))
    count = int(panels.shape[0])
    covered = (batch, tile.images), (rows, tile.rows), (columns, tile.columns)
    counts = exprs_of(tiles_in(*each)[0] for each in covered)
    reach = (
        counts[0] * tile.images,
        (counts[1] * tile.rows - 1) * s + (int(dy.dom.extent) - 1) * d + 1,
        (counts[2] * tile.columns - 1) * t + (int(dx.dom.extent) - 1) * e + 1,
        count * tile.channels if channels.depthwise else int(x.shape[1 if channels.planar else 3]),
    )
    read = _padded(x, reach, geometry.before, channels)
    if channels.depthwise:
        axes.remove(c)
    grouped = not channels.depthwise and channels.outputs < n

    def source(panel: Any, lane: Any) -> tuple[Any, Any]:
        """Return the group, and the channel in it, that a tile's channel reads."""
        if channels.depthwise:
            return 0, panel * tile.channels + lane
        return panel * tile.channels // channels.outputs if grouped else 0, c

    def product(a: Any, b: Any, z: Any, panel: Any, i: Any, j: Any, k: Any, lane: Any) -> Any:
        seen = read(
            a * tile.images + i,
            (b * tile.rows + j) * s + dy * d,
            (z * tile.columns + k) * t + dx * e,
            *source(panel, lane),
        )
        taps = [*axes, 0] if channels.depthwise else axes
        return te.sum(seen * panels(panel, *taps, lane), axis=axes)

    extents = tile.images, tile.rows, tile.columns, tile.channels
    details = {
        DEPTHWISE if channels.depthwise else CONV: list(extents),
        ROWS: [s, (int(dy.dom.extent) - 1) * d + 1],
    }
    if grouped:
        details[GROUP] = [channels.outputs // tile.channels]
    shape = [sized(extent) for extent in (*counts, count, *extents)]
    tiles = te.compute(shape, product, name="tiles", attrs=details)

    def result(*at: Any) -> Any:
        outer = [index // extent for index, extent in zip(at, extents, strict=True)]
        return tiles(*outer, *(index % extent for index, extent in zip(at, extents, strict=True)))

    return te.compute([sized(e) for e in exprs_of((batch, rows, columns, n))], result, name="conv")


def _counts(geometry: Geometry, sizes: tuple[Size, Size], taps: tuple[Any, Any]) -> list[Size]:
    """Return the rows and columns of the output for an input of `sizes`."""

    def count(axis: int) -> Size:
        reach = (int(taps[axis].dom.extent) - 1) * geometry.dilation[axis] + 1
        padded = expr_of(sizes[axis]) + (geometry.before[axis] + geometry.after[axis] - reach)
        return extent_of(tirx.floordiv(padded, geometry.stride[axis]) + 1)

    given = enumerate(geometry.counts)
    return [each if isinstance(each, int) else count(axis) for axis, each in given]


def _padded(
    x: te.Tensor, reach: tuple[int, int, int, int], before: tuple[int, int], channels: Channels
) -> Callable[..., Any]:
    """Return a function (image, row, column, group, channel) -> element of `x`, zero outside it.

    `reach` says how far images, rows, columns and channels are read. If all of them lie inside `x`
    and there is one group, `x` itself is read. A copy of several groups is laid out group by group,
    because pixels of a few channels among hundreds would map to the same sets of the cache.
    """
    batch, height, width, count = exprs_of(extent_of(x.shape[axis]) for axis in channels.order)
    group_channels = count if channels.depthwise else channels.inputs
    top, left = before

    def seen(b: Any, y: Any, z: Any, g: Any, c: Any) -> Any:
        channel = c if group_channels == count else g * group_channels + c
        return x(b, channel, y, z) if channels.planar else x(b, y, z, channel)

    ends = zip(reach[1:], (height, width, count), strict=True)
    more_images = isinstance(batch, int) and reach[0] > batch
    sized = is_static((height, width)) and not more_images
    inside = sized and all(end <= e for end, e in ends)
    if inside and not (top or left) and group_channels == count:
        return seen

    def position(b: Any, y: Any, z: Any, g: Any, c: Any) -> tuple[Any, ...]:
        """Return the index in the copy."""
        if channels.planar:
            return b, c, y, z
        return (b, y, z, c) if group_channels == count else (b, g, y, z, c)

    def element(*at: Any) -> Any:
        if channels.planar:
            (b, c, y, z), g = at, 0
        elif group_channels == count:
            (b, y, z, c), g = at, 0
        else:
            b, g, y, z, c = at
        conditions = [y >= top, y < height + top, z >= left, z < width + left]
        if more_images:
            conditions.append(b < batch)
        if reach[3] > count:
            conditions.append(c < count)
        return tirx.if_then_else(
            tirx.all(*conditions), seen(b, y - top, z - left, g, c), tirx.const(0, x.dtype)
        )

    alike = 1 if channels.planar or reach[3] > count else group_channels
    extents = position(
        *reach[:3], count // group_channels, group_channels if group_channels < count else reach[3]
    )
    if not is_static(x.shape):
        extents = tuple(map(expr_of, extents))
    padded = te.compute(extents, element, name="padded", attrs={ALIKE: alike})
    return lambda *at: padded(*position(*at))
