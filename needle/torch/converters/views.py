"""Converters of operators that show the same elements in another shape.

The shape of a result is known (`node.shape`); its extents may be expressions of dims.
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, along, normal_axis, tensor
from ...ops._keys import Span
from ...sizes.dims import Expression
from ...sizes.extents import is_symbolic, same
from ..operands import cast, is_tensor, permuted
from ..program import Node
from ..registry import converter

_FAR = 1 << 31  # a slice's end beyond this means the end of the axis


@converter("aten.view.default", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias")
@converter("aten.view_copy.default", "aten._reshape_copy", "aten.reshape_as", "aten.view_as")
@converter("aten.flatten", "aten.unflatten", "aten.ravel")
def reshape(node: Node, x: Value, *_: Any) -> Tensor:
    return ops.reshape(tensor(x), node.shape)


@converter("aten.alias", "aten.alias_copy", "aten.contiguous", "aten.clone", "aten.lift")
@converter("aten.lift_fresh", "aten.lift_fresh_copy")
def same_elements(node: Node, x: Value, *_: Any) -> Value:
    return x


@converter("aten.detach", "aten.detach_copy")
def detach(node: Node, x: Value) -> Tensor:
    return ops.detach(tensor(x))


@converter("aten.expand", "aten.expand_copy", "aten.expand_as", "aten.broadcast_to")
def expand(node: Node, x: Value, *_: Any) -> Tensor:
    return ops.broadcast_to(tensor(x), node.shape)


@converter("aten.permute", "aten.permute_copy")
def permute(node: Node, x: Value, axes: Any) -> Tensor:
    found = tensor(x)
    return permuted(found, axes) if found.ndim else found


@converter("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes", "aten.swapdims")
def transpose(node: Node, x: Value, axis: int, other: int) -> Tensor:
    found = tensor(x)
    if not found.ndim:
        return found
    order = list(range(found.ndim))
    order[axis], order[other] = order[other], order[axis]
    return permuted(found, order)


@converter("aten.t", "aten.t_copy", "aten.numpy_T", "aten.matrix_H", "aten.mT", "aten.mH")
@converter("aten.adjoint")
def matrix_transpose(node: Node, x: Value) -> Tensor:
    found = tensor(x)
    return ops.transpose(found) if found.ndim >= 2 else found


@converter("aten.movedim", "aten.moveaxis")
def movedim(node: Node, x: Value, source: Any, destination: Any) -> Tensor:
    found = tensor(x)
    return ops.moveaxis(found, source, destination) if found.ndim else found


@converter("aten.unsqueeze", "aten.unsqueeze_copy")
def unsqueeze(node: Node, x: Value, axis: int) -> Tensor:
    return ops.unsqueeze(tensor(x), axis)


@converter("aten.squeeze", "aten.squeeze_copy")
def squeeze(node: Node, x: Value, axes: Any = None) -> Tensor:
    """Remove the axes of extent 1 among `axes` (None: all)."""
    found = tensor(x)
    if not found.ndim:
        return found
    chosen = range(found.ndim) if axes is None else axes if isinstance(axes, tuple) else (axes,)
    wanted = {normal_axis(node, axis, found.ndim) for axis in chosen}
    gone = tuple(axis for axis in sorted(wanted) if same(found.shape[axis], 1))
    return ops.squeeze(found, gone) if gone else found


@converter("aten.select.int", "aten.select_copy.int")
def select(node: Node, x: Value, axis: int, index: Any) -> Tensor:
    found = tensor(x)
    axis = normal_axis(node, axis, found.ndim)
    if is_tensor(index):
        return ops.take(found, ops.reshape(cast(index, "int64"), ()), axis)
    return ops.getitem(found, along(axis, index))


@converter("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    node: Node, x: Value, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    found = tensor(x)
    axis = normal_axis(node, axis, found.ndim)
    return ops.slice(
        found, along(axis, part_of(found.shape[axis], node.shape[axis], start, end, step))
    )


def part_of(n: Any, length: Any, start: Any, end: Any, step: Any) -> slice | Span:
    """Return the key of a slice of an axis of extent `n`. The slice has `length` elements and goes
    from `start` to `end` by `step`; bounds far beyond the axis stand for its ends."""
    start, end = _near(start), _near(end)
    if not is_symbolic((n, start, end, step)):
        return slice(start, end, step)
    first = 0 if start is None else start
    if first < 0:
        first = first + n
        first = 0 if first < 0 else first
    return Span(first, step, length)


def _near(place: Any) -> Any:
    if isinstance(place, int) and place >= _FAR:
        return None
    return 0 if isinstance(place, int) and place < -_FAR else place


@converter("aten.narrow", "aten.narrow_copy")
def narrow(node: Node, x: Value, axis: int, start: Any, length: Any) -> Tensor:
    found = tensor(x)
    axis, n = normal_axis(node, axis, found.ndim), node.shape[axis]
    if not isinstance(start, (int, Expression)):
        raise node.unsupported("its start is a tensor")
    first: Any = start + found.shape[axis] if start < 0 else start
    if not is_symbolic((first, n, found.shape[axis])):
        return ops.slice(found, along(axis, slice(first, first + n)))
    return ops.slice(found, along(axis, Span(first, 1, n)))
