"""Converters of operators that move elements or replace a part of a tensor."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, along, normal_axis, shape_of, tensor
from ..operands import cast
from ..program import Node
from ..registry import converter
from .index_helpers import index_tensor, line
from .views import part_of

_FARTHEST = 1 << 31  # a diagonal outside any matrix


@converter("aten.flip")
def flip(node: Node, x: Value, axes: tuple[int, ...]) -> Tensor:
    return ops.reshape(ops.flip(line(x), axes), shape_of(x))


@converter("aten.roll")
def roll(node: Node, x: Value, shifts: tuple[Any, ...], axes: tuple[int, ...] = ()) -> Tensor:
    """Shift elements along axes; without axes, shift the flat tensor."""
    rolled = ops.roll(line(x), shifts, axes) if axes else ops.roll(line(x), shifts[0])
    return ops.reshape(rolled, shape_of(x))


@converter("aten.tril")
def tril(node: Node, x: Value, diagonal: Any = 0) -> Tensor:
    return ops.tril(tensor(x), max(-_FARTHEST, min(_FARTHEST, diagonal)))


@converter("aten.triu")
def triu(node: Node, x: Value, diagonal: Any = 0) -> Tensor:
    return ops.triu(tensor(x), max(-_FARTHEST, min(_FARTHEST, diagonal)))


@converter("aten.diagonal", "aten.diagonal_copy")
def diagonal(node: Node, x: Value, offset: int = 0, axis: int = 0, other: int = 1) -> Tensor:
    found = ops.diagonal(tensor(x), offset, axis, other)
    return ops.reshape(found, node.shape)


@converter("aten.unfold", "aten.unfold_copy")
def unfold(node: Node, x: Value, axis: int, size: int, step: int) -> Tensor:
    """Return windows along an axis, with the positions in a window as the last axis."""
    found = line(x)
    axis = normal_axis(node, axis, found.ndim)
    if not tensor(x).ndim:
        return ops.slice(found, slice(0, size))
    count = node.shape[axis]
    starts = ops.multiply(ops.arange(count, dtype="int64"), step)
    places = ops.add(ops.reshape(starts, (count, 1)), ops.arange(size, dtype="int64"))
    return ops.moveaxis(ops.take(found, places, axis), axis + 1, -1)


@converter("aten.take")
def take(node: Node, x: Value, index: Value) -> Tensor:
    return ops.take(ops.reshape(tensor(x), (-1,)), index_tensor(index), 0)


# Operators that replace a part


@converter("aten.select_scatter")
def select_scatter(node: Node, x: Value, source: Value, axis: int, index: Any) -> Tensor:
    base = tensor(x)
    key = along(normal_axis(node, axis, base.ndim), index)
    return ops.set_slice(base, cast(source, base.dtype), key)


@converter("aten.slice_scatter")
def slice_scatter(
    node: Node,
    x: Value,
    source: Value,
    axis: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Tensor:
    base, part = tensor(x), cast(source, node.dtype)
    axis = normal_axis(node, axis, base.ndim)
    key = along(axis, part_of(base.shape[axis], part.shape[axis], start, end, step))
    return ops.set_slice(base, part, key)


@converter("aten.diagonal_scatter")
def diagonal_scatter(
    node: Node, x: Value, source: Value, offset: int = 0, axis: int = 0, other: int = 1
) -> Tensor:
    """Replace a diagonal of x by `source`, which becomes a column that a mask selects from."""
    base = tensor(x)
    first, second = (normal_axis(node, each, base.ndim) for each in (axis, other))
    turned = ops.moveaxis(base, (first, second), (-2, -1))
    rows, columns = turned.shape[-2:]
    part = cast(source, base.dtype)
    before = max(-offset, 0)
    behind = rows - before - part.shape[-1]
    column = ops.pad(part, (*[(0, 0)] * (part.ndim - 1), (before, behind)))
    mask = ops.eye(rows, columns, offset, dtype="bool")
    made = ops.where(mask, ops.unsqueeze(column, -1), turned)
    return ops.moveaxis(made, (-2, -1), (first, second))
