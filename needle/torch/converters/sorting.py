"""Converters of sorting, searching, medians and modes."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...conversion.values import Value, normal_axis, shape_of, tensor
from ..operands import Number, axes_of, cast, is_tensor, promoted, with_axis
from ..program import Node
from ..registry import converter
from .index_helpers import line


@converter("aten.sort.default")
def sort(node: Node, x: Value, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    found = line(x)
    values, places = ops.sort(found, normal_axis(node, axis, found.ndim), descending)
    return ops.reshape(values, shape_of(x)), ops.reshape(places, shape_of(x))


@converter("aten.sort.stable")
def sort_stable(
    node: Node, x: Value, stable: bool | None, axis: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort. needle's sort is always stable."""
    return sort(node, x, axis, descending)


@converter("aten.topk")
def topk(
    node: Node, x: Value, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements, always in order."""
    found = line(x)
    values, places = ops.topk(found, k, normal_axis(node, axis, found.ndim), largest)
    return ops.reshape(values, node.shape), ops.reshape(places, node.shape)


@converter("aten.kthvalue")
def kthvalue(
    node: Node, x: Value, k: int, axis: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    found = line(x)
    values, places = ops.kthvalue(found, k, normal_axis(node, axis, found.ndim))
    return ops.reshape(values, node.shape), ops.reshape(places, node.shape)


@converter("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    node: Node,
    ordered: Value,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Tensor:
    lines = tensor(ordered)
    sought = cast(values, lines.dtype) if not is_tensor(values) else tensor(values)
    order = None if sorter is None else tensor(sorter)
    if right and side is None:
        side = "right"
    return ops.searchsorted(lines, sought, side=side, sorter=order, out_int32=out_int32)


@converter("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    node: Node, x: Any, boundaries: Value, out_int32: bool = False, right: bool = False
) -> Tensor:
    sought, ends = promoted(node, x, boundaries)
    return ops.bucketize(sought, ends, right, out_int32=out_int32)


@converter("aten.histc")
def histc(node: Node, x: Value, bins: int = 100, low: Number = 0, high: Number = 0) -> Tensor:
    """Count the elements in each of `bins` bins of equal width from `low` to `high`. If `low`
    equals `high`, the bins go from the least to the largest element."""
    flat = ops.reshape(tensor(x), (-1,))
    ends = [cast(each, flat.dtype) for each in (low, high)]
    if low == high and flat.size:
        ends = [ops.min(flat), ops.max(flat)]
    alone = ops.equal(ends[0], ends[1])
    ends = [ops.where(alone, end + by, end) for end, by in zip(ends, (-1, 1), strict=True)]
    share = ops.divide(ops.multiply(flat - ends[0], bins), ends[1] - ends[0])
    inside = ops.logical_and(ops.greater_equal(flat, ends[0]), ops.less_equal(flat, ends[1]))
    number = ops.cast(ops.where(inside, share, 0), "int64")
    number = ops.where(inside, ops.minimum(number, bins - 1), bins)
    ones = ops.broadcast_to(cast(1, "int64"), number.shape)
    zeros = ops.broadcast_to(cast(0, "int64"), (bins + 1,))
    counts = ops.put(zeros, number, ones, 0, "add")
    return cast(ops.slice(counts, slice(0, bins)), node.dtype)


@converter("aten.nonzero_static")
def nonzero_static(node: Node, x: Value, size: int, fill_value: int = -1) -> Tensor:
    """Return the positions of the first `size` nonzero elements as rows. Remaining rows are filled
    with `fill_value`."""
    found = tensor(x)
    flags = ops.reshape(cast(found, "bool"), (-1,))
    count = flags.shape[0]
    rank = ops.subtract(ops.cumsum(ops.cast(flags, "int64"), 0), 1)
    taken = ops.logical_and(flags, ops.less(rank, size))
    empty = ops.broadcast_to(cast(-1, "int64"), (size + 1,))
    flat = ops.put(empty, ops.where(taken, rank, size), ops.arange(count, dtype="int64"))
    flat = ops.slice(flat, slice(0, size))
    columns = []
    for n in reversed(found.shape):
        columns.append(ops.remainder(flat, n))
        flat = ops.floor_divide(flat, n)
    if not columns:
        return ops.broadcast_to(cast(fill_value, "int64"), node.shape)
    places = ops.stack(columns[::-1], 1)
    return ops.where(ops.less(ops.unsqueeze(flat, 1), 0), fill_value, places)


def _is_nan(x: Tensor) -> Tensor | None:
    return ops.isnan(x) if is_floating(x.dtype) else None


def _chosen(x: Value, place: Tensor, axis: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the elements at positions (..., 1, ...) along an axis, and the positions."""
    source = tensor(x)
    value = ops.take_along_axis(with_axis(source), place, axis)
    if not source.ndim:
        return ops.reshape(value, ()), ops.reshape(place, ())
    return (value, place) if keepdim else (ops.squeeze(value, axis), ops.squeeze(place, axis))


def _middle(x: Value, axis: int, ignores_nan: bool) -> Tensor:
    """Return the position (..., 1, ...) of the lower median along an axis, or of the first NaN,
    unless NaN is ignored."""
    source = with_axis(x)
    places = ops.sort(source, axis)[1]  # NaN is last
    nan, count = _is_nan(source), source.shape[axis]
    if ignores_nan and nan is not None:
        valid = ops.summation(ops.logical_not(nan), axis, True)
        rank = ops.maximum(ops.floor_divide(ops.add_scalar(valid, -1), 2), 0)
        return ops.take_along_axis(places, rank, axis)
    middle = (count - 1) // 2
    key: Any = (*[slice(None)] * axis, slice(middle, middle + 1))
    place = places[key]
    if nan is None:
        return place
    return ops.where(ops.any(nan, axis, True), ops.argmax(nan, axis, True), place)


@converter("aten.median.dim", "aten.nanmedian.dim")
def median_along(node: Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    axis = (axes_of(x, dim) or (0,))[0]
    return _chosen(x, _middle(x, axis, "nan" in node.operator), axis, keepdim)


@converter("aten.median.default", "aten.nanmedian.default")
def median(node: Node, x: Value) -> Tensor:
    flat = ops.reshape(tensor(x), (-1,))
    if isinstance(flat.shape[0], int) and flat.shape[0] == 0:
        return ops.mean(flat)  # NaN
    return _chosen(flat, _middle(flat, 0, "nan" in node.operator), 0, False)[0]


@converter("aten.mode")
def mode(node: Node, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the least of the most frequent elements, and its last position."""
    axis = (axes_of(x, dim) or (0,))[0]
    ordered, places = ops.sort(with_axis(x), axis).tuple()
    lines = ops.swapaxes(ordered, axis, -1)
    count = lines.shape[-1]
    at = ops.arange(count, dtype="int64")
    differs = ops.not_equal(lines[..., 1:], lines[..., :-1])
    starts = ops.pad(ops.where(differs, at[1:], 0), [(0, 0)] * (lines.ndim - 1) + [(1, 0)])
    lengths = ops.subtract(at, ops.cummax(starts, -1)[0])  # length of the run so far, minus 1
    end = ops.swapaxes(ops.argmax(lengths, -1, True), axis, -1)
    return _chosen(x, ops.take_along_axis(places, end, axis), axis, keepdim)
