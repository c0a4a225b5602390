"""Converters of operators that sample images at given positions, and of NonMaxSuppression."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ... import ops
from ...autograd.dispatch import apply
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray.dtypes import is_floating
from ...common.state import state
from ...conversion.budget import bounded
from ...conversion.values import Value, known_integers, tensor
from ...nn import functional as F
from ...nn.functional.grid import sampled
from ...ops.weighted_elements import WeightedElements
from ..geometry import explicit_pads, of_axes
from ..graph import Node
from ..registry import converter
from .index import data_dependent, index_tensor

_GRID_MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


@converter("GridSample", since=16)
def grid_sample(node: Node, data: Value, grid: Value) -> Tensor:
    x, points = tensor(data), tensor(grid)
    mode = node.text("mode")
    mode, padding = _GRID_MODES.get(mode, mode), node.text("padding_mode")
    if mode not in _GRID_MODES.values() or padding not in ("zeros", "border", "reflection"):
        raise node.invalid(f"mode {node.text('mode')!r} or padding_mode {padding!r} is unknown")
    axes = x.ndim - 2
    if axes < 1 or points.ndim != x.ndim or points.shape[-1] != axes:
        raise node.invalid(f"an input {x.spec} and a grid {points.spec} do not match")
    dtype, wide = x.dtype, x.dtype if is_floating(x.dtype) else "float64"
    # `F.grid_sample` supports two axes, and three unless the mode is bicubic. `sampled` takes any
    # number of axes, in any mode.
    is_layer = axes == 2 or (axes == 3 and mode != "bicubic")
    read = F.grid_sample if is_layer else sampled
    corners = node.flag("align_corners")
    made = read(ops.cast(x, wide), ops.cast(points, wide), mode, padding, corners)
    return made if made.dtype == dtype else ops.cast(made, dtype)


@converter("AffineGrid", since=20, known=(1,))
def affine_grid(node: Node, theta: Value, size: Value) -> Tensor:
    extents = known_integers(node, size, "the size")
    bounded((*extents[:1], *extents[2:], len(extents) - 1))
    return F.affine_grid(tensor(theta), extents, node.flag("align_corners"))


# Regions of interest


@converter("RoiAlign", since=10)
def roi_align(node: Node, data: Value, rois: Value, batch_indices: Value) -> Tensor:
    """Return the mean or maximum of values at points in each region's cells (He et al. 2017)."""
    x, mode = tensor(data), node.text("mode")
    if mode not in ("avg", "max"):
        raise node.invalid(f"mode {mode!r} is neither avg nor max")
    wide = "float64" if x.dtype == "float64" else "float32"
    # Known regions stay NumPy arrays while tracing, so the numbers of points are known too.
    regions: Any = rois.astype(wide)
    half_pixel = node.text("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    regions = regions * node.number("spatial_scale") - (0.5 if half_pixel else 0.0)
    cells = node.integer("output_height"), node.integer("output_width")
    taps, counts = [], []
    for i, (n, parts) in enumerate(zip(x.shape[2:], cells, strict=True)):
        start, end = regions[:, 1 - i], regions[:, 3 - i]
        step = _at_least(end - start, -math.inf if half_pixel else 1.0) / parts
        used = _points(node, step)
        bounded((regions.shape[0], parts, int(np.max(used, initial=1))))
        counts.append(used)
        taps.append(_cell_taps(start, step, used, parts, n, mode))
    bounded((*taps[0][0][0].shape, *taps[1][0][0].shape[1:]))
    bounded((regions.shape[0], x.shape[1], *cells))
    return _pooled(x, taps, counts, index_tensor(batch_indices), mode)


def _at_least(x: Any, least: float) -> Any:
    return np.maximum(x, least) if isinstance(x, np.ndarray) else ops.maximum(x, least)


def _points(node: Node, step: Any) -> int | np.ndarray:
    """Return the number of points of each cell along an axis: one number, or one per region."""
    given = node.integer("sampling_ratio")
    if given > 0:
        return given
    if isinstance(step, Tensor):
        if state.trace is not None:
            raise node.unsupported(
                "sampling_ratio 0 makes the number of points depend on the regions, whose values "
                "only a call knows; if they come from an input of the model, give that input a "
                "value with fixed={...}"
            )
        step = step.numpy()
    return np.maximum(np.ceil(step), 0).astype("int64")


Taps = list[tuple[Tensor, Tensor, Tensor]]


def _cell_taps(
    start: Any, step: Any, used: int | np.ndarray, cells: int, n: Any, mode: str
) -> Taps:
    """Return two tuples for an axis of n elements: one for the element before each point, one for
    the element after it. A tuple holds the elements' positions, their weights, and whether they
    count, each of shape (regions, cells, points)."""
    count, dtype = start.shape[0], str(start.dtype)
    start, step = (tensor(t.reshape((count, 1, 1))) for t in (start, step))
    cell = make_const(np.arange(cells, dtype=dtype)[None, :, None])
    point = np.arange(np.max(used, initial=1))[None, None, :]
    each = np.reshape(used, (-1, 1, 1))  # the number of points per region
    counts = point < (each if mode == "avg" else np.minimum(each, 1) * point.size)
    point = np.minimum(point, np.maximum(each - 1, 0))  # repeating does not change the maximum
    share_of_cell = ((point + 0.5) / np.maximum(each, 1)).astype(dtype)
    place = start + cell * step + make_const(share_of_cell) * step
    inside = (place >= -1.0) & (place <= n)
    if not counts.all():
        inside = inside & make_const(counts)
    place = ops.minimum(ops.maximum(place, 0.0), n - 1)
    low = ops.floor(place)
    share = place - low
    return [(low, 1.0 - share, inside), (ops.minimum(low + 1.0, n - 1), share, inside)]


def _pooled(x: Tensor, taps: list[Taps], counts: list[Any], images: Tensor, mode: str) -> Tensor:
    """Return the mean or the maximum of the elements at the points of each cell: (regions, C, rows,
    columns)."""
    batch, channels, height, width = x.shape
    planes = ops.reshape(ops.permute(x, (1, 0, 2, 3)), (1, channels, batch * height * width))
    (count, up, tall), (_, across, wide) = (each[0][0].shape for each in taps)
    begin = ops.reshape(images * (height * width), (count, 1, 1, 1, 1))
    indices, weights = [], []
    for (y, y_share, y_in), (x_, x_share, x_in) in itertools.product(*taps):
        y, y_share, y_in = (ops.reshape(t, (count, up, 1, tall, 1)) for t in (y, y_share, y_in))
        x_, x_share, x_in = (
            ops.reshape(t, (count, 1, across, 1, wide)) for t in (x_, x_share, x_in)
        )
        index = y.astype("int64") * width + x_.astype("int64") + begin
        indices.append(ops.where(y_in & x_in, index, -1))
        weights.append((y_share * x_share).astype(x.dtype))
    # (4, regions, rows, columns, points) becomes (1, 4 * points, regions * rows * columns)
    index, weight = (
        ops.reshape(ops.permute(ops.stack(each, 0), (0, 4, 5, 1, 2, 3)), (1, 4 * tall * wide, -1))
        for each in (indices, weights)
    )
    if mode == "avg":
        made = apply(WeightedElements(), (planes, index, weight))
        made = made / make_const(_cell_points(counts, up * across).astype(x.dtype))
    else:
        every = (1, 1, index.shape[1] * index.shape[2])
        index_of, weight_of = (ops.reshape(t, every) for t in (index, weight))
        found = apply(WeightedElements(), (planes, index_of, weight_of))
        made = ops.max(ops.reshape(found, (channels, *index.shape[1:])), 1)
    return ops.permute(ops.reshape(made, (channels, count, up, across)), (1, 0, 2, 3))


def _cell_points(counts: list[Any], cells: int) -> np.ndarray:
    """Return the number of points in each cell, which divides the cell's sum: (regions * cells,),
    or (1,) if it is the same for all regions."""
    points = np.maximum(np.multiply(*counts), 1)
    return np.repeat(points.reshape(-1), cells if points.ndim else 1)


@converter("MaxRoiPool", since=1)
def max_roi_pool(node: Node, data: Value, rois: Value) -> Tensor:
    """Return the largest element of each cell; cells have integer borders (Girshick 2015)."""
    x, regions = tensor(data), tensor(rois)
    extents, cells = x.shape[2:], node.integers("pooled_shape")
    if len(cells) != 2 or x.ndim != 4:
        raise node.invalid(f"an input {x.spec} and pooled_shape {cells} do not have two axes")
    bounded((regions.shape[0], x.shape[1], *cells))
    x = ops.take(x, ops.cast(regions[:, 0], "int64"), 0)  # the image of each region
    scaled = regions[:, 1:] * node.number("spatial_scale")
    borders = ops.floor(ops.abs(scaled) + 0.5) * ops.sign(scaled)  # round halves away from 0
    empty: Any = None
    for i, (n, parts) in enumerate(zip(extents, cells, strict=True)):
        first, last = borders[:, 1 - i], borders[:, 3 - i]
        step = ops.maximum(last - first + 1.0, 1.0) / float(parts)
        found, is_empty = [], []
        for part in range(parts):
            begin = _clamped(ops.floor(step * float(part)) + first, n)
            end = _clamped(ops.ceil(step * float(part + 1)) + first, n)
            at = make_const(np.arange(n, dtype=regions.dtype))
            begin, end = ops.unsqueeze(begin, 1), ops.unsqueeze(end, 1)
            inside = (at >= begin) & (at < end)  # (regions, n)
            shape = (inside.shape[0], 1, n, 1) if i == 0 else (inside.shape[0], 1, 1, n)
            masked = ops.where(ops.reshape(inside, shape), x, -math.inf)
            found.append(ops.max(masked, 2 + i, keepdims=True))
            is_empty.append(ops.reshape(end <= begin, (-1, 1, 1, 1)))
        x = ops.concat(found, 2 + i)
        without = ops.concat(is_empty, 2 + i)
        empty = without if empty is None else empty | without
    return ops.where(empty, 0.0, x)


def _clamped(x: Tensor, n: int) -> Tensor:
    return ops.minimum(ops.maximum(x, 0.0), float(n))


@converter("NonMaxSuppression", since=10)
def non_max_suppression(
    node: Node,
    boxes: Value,
    scores: Value,
    most: Value | None = None,
    iou_threshold: Value | None = None,
    score_threshold: Value | None = None,
) -> np.ndarray:
    """Return the indices (batch, class, box) of the boxes that do not overlap too much with a
    better box of their class."""
    data_dependent(node)
    corners, found = (tensor(v).numpy().astype("float32") for v in (boxes, scores))
    count, overlap, least = (
        default if v is None or v.shape == (0,) else tensor(v).numpy().reshape(-1)[0]
        for v, default in ((most, 0), (iou_threshold, 0.0), (score_threshold, -math.inf))
    )
    corners = _corners(corners, node.flag("center_point_box"))
    chosen = []
    for image, label in itertools.product(*map(range, found.shape[:2])):
        values = found[image, label]
        kept: list[int] = []
        for box in np.argsort(-values, kind="stable"):
            if len(kept) >= count or not values[box] > least:
                break
            if np.all(_overlaps(corners[image, box], corners[image, kept]) <= overlap):
                kept.append(int(box))
        chosen += [(image, label, box) for box in kept]
    return np.array(chosen, "int64").reshape(-1, 3)


def _corners(boxes: np.ndarray, is_centre: bool) -> np.ndarray:
    """Return each box as its two lower coordinates, then its two upper ones."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_centre:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the ratios of intersection to union of a box with each of `others`; 0 if either box
    has no area."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    both = np.prod(np.maximum(sides, 0), 1)
    area, areas = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], 1)
    whole = area + areas - both
    return np.where((area > 0) & (areas > 0), both / np.where(whole > 0, whole, 1), 0)


# Convolution at displaced positions


@converter("DeformConv", since=19)
def deform_conv(
    node: Node,
    data: Value,
    weight: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
) -> Tensor:
    """Convolve with taps that the offsets displace; the input is interpolated between its elements
    (Dai et al. 2017, Zhu et al. 2019)."""
    x, w, moved = tensor(data), tensor(weight), tensor(offset)
    if x.ndim != 4 or w.ndim != 4:
        raise node.unsupported(
            f"an input {x.spec} and a weight {w.spec}; needle supports only two spatial axes"
        )
    batch, channels, *size = x.shape
    kernel, parts = tuple(w.shape[2:]), node.integer("offset_group")
    taps, out = math.prod(kernel), tuple(moved.shape[2:])
    if moved.shape[1] != parts * taps * 2 or channels % parts:
        raise node.invalid(
            f"offsets {moved.spec} for {channels} channels do not hold {parts} groups of {taps} "
            "taps"
        )
    moved = ops.reshape(moved, (batch, parts, taps, 2, *out))
    places = [
        moved[:, :, :, i] + make_const(p) for i, p in enumerate(_tap_places(node, x, kernel, out))
    ]
    factor = None if mask is None else ops.reshape(tensor(mask), (batch, parts, taps, *out))
    images = ops.reshape(x, (batch, parts, channels // parts, *size))
    read = _read(images, places, factor)  # (batch, parts, channels / parts, taps, rows, columns)
    groups, points = node.integer("group"), math.prod(out)
    columns = ops.reshape(read, (batch, groups, channels // groups * taps, points))
    flat = ops.reshape(w, (groups, w.shape[0] // groups, channels // groups * taps))
    made = ops.reshape(ops.matmul(flat, columns), (batch, w.shape[0], *out))
    return made if bias is None else made + ops.reshape(tensor(bias), (-1, 1, 1))


def _tap_places(node: Node, x: Tensor, kernel: tuple[int, ...], out: tuple[int, ...]) -> Any:
    """Yield the rows and then the columns of all taps before displacement, each (taps, *out)."""
    strides, dilations = of_axes(node, "strides", 2), of_axes(node, "dilations", 2)
    tap = np.indices(kernel).reshape(2, -1, 1, 1)
    cell = np.indices(out)[:, None]
    for i, (low, _) in enumerate(explicit_pads(node, 2)):
        yield (tap[i] * dilations[i] + cell[i] * strides[i] - low).astype(x.dtype)


def _read(images: Tensor, places: list[Tensor], factor: Tensor | None) -> Tensor:
    """Interpolate images (N, parts, C, H, W) bilinearly at positions (N, parts, ...), and multiply
    by `factor`. Return (N, parts, C, ...). Elements outside the image are 0."""
    batch, parts, channels, height, width = images.shape
    indices, weights = [], []
    lows = [ops.floor(place) for place in places]
    for corner in itertools.product((0.0, 1.0), repeat=2):
        (y, x), shares = zip(
            *(
                (low + side, 1.0 - (place - low) if side == 0 else place - low)
                for low, place, side in zip(lows, places, corner, strict=True)
            ),
            strict=True,
        )
        inside = (y >= 0.0) & (y <= height - 1) & (x >= 0.0) & (x <= width - 1)
        y, x = (ops.where(inside, at, 0.0).astype("int64") for at in (y, x))
        indices.append(ops.where(inside, y * width + x, -1))
        weight = shares[0] * shares[1]
        weights.append(weight if factor is None else weight * factor)
    size = batch * parts
    index, weight = (ops.reshape(ops.stack(t, 2), (size, 4, -1)) for t in (indices, weights))
    planes = ops.reshape(images, (size, channels, height * width))
    made = apply(WeightedElements(), (planes, index, weight))
    return ops.reshape(made, (batch, parts, channels, *places[0].shape[2:]))
