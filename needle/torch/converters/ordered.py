"""Converters of what the order of elements decides: medians and modes."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...conversion.values import Value, tensor
from ..operands import axes_of, with_axis
from ..program import Node
from ..registry import converter


def _is_nan(x: Tensor) -> Tensor | None:
    return ops.isnan(x) if is_floating(x.dtype) else None


def _chosen(x: Value, place: Tensor, axis: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The elements at places (..., 1, ...) along an axis, and the places."""
    source = tensor(x)
    value = ops.take_along_axis(with_axis(source), place, axis)
    if not source.ndim:
        return ops.reshape(value, ()), ops.reshape(place, ())
    return (value, place) if keepdim else (ops.squeeze(value, axis), ops.squeeze(place, axis))


def _middle(x: Value, axis: int, ignores_nan: bool) -> Tensor:
    """The place (..., 1, ...) of the lower median along an axis: of the first NaN if there is one,
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
    """The least of the most frequent elements, and the last place that has it."""
    axis = (axes_of(x, dim) or (0,))[0]
    ordered, places = ops.sort(with_axis(x), axis).tuple()
    lines = ops.swapaxes(ordered, axis, -1)
    count = lines.shape[-1]
    at = ops.arange(count, dtype="int64")
    differs = ops.not_equal(lines[..., 1:], lines[..., :-1])
    starts = ops.pad(ops.where(differs, at[1:], 0), [(0, 0)] * (lines.ndim - 1) + [(1, 0)])
    lengths = ops.subtract(at, ops.cummax(starts, -1)[0])  # of the run so far, less 1
    end = ops.swapaxes(ops.argmax(lengths, -1, True), axis, -1)
    return _chosen(x, ops.take_along_axis(places, end, axis), axis, keepdim)
