"""Converters of operators that join, repeat and split tensors."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, normal_axis, shape_of, tensor
from ...sizes.extents import same
from ..operands import cast
from ..program import Node
from ..registry import converter

_SLICED = 8  # most parts that are taken as slices


@converter("aten.cat", "aten.concat", "aten.concatenate")
def cat(node: Node, parts: tuple[Value, ...], axis: int = 0) -> Tensor:
    """Join the parts in their common dtype. Parts of shape (0,) are ignored if there are others."""
    some = [each for each in parts if not same(shape_of(each), (0,))] or [*parts[:1]]
    joined = [cast(each, node.dtype) for each in some]
    return ops.concat(joined, axis) if len(joined) > 1 else joined[0]


@converter("aten.stack", "aten._stack")
def stack(node: Node, parts: tuple[Value, ...], axis: int = 0) -> Tensor:
    return ops.stack([cast(each, node.dtype) for each in parts], axis)


@converter("aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes", "aten.unsafe_split")
@converter("aten.unsafe_split_with_sizes", "aten.split_copy", "aten.split_with_sizes_copy")
@converter("aten.chunk", "aten.unsafe_chunk")
def split(node: Node, x: Value, sizes: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """Split along an axis into parts with the extents that PyTorch recorded."""
    found = tensor(x)
    axis = normal_axis(node, axis, found.ndim)
    extents = [node.result(i).shape[axis] for i in range(len(node.results))]
    return ops.split_sizes(found, extents, axis)


@converter("aten.unbind.int", "aten.unbind_copy.int")
def unbind(node: Node, x: Value, axis: int = 0) -> tuple[Tensor, ...]:
    """Split x into its elements along an axis. If there are only a few parts, they are slices, so
    that the ops that use them can read `x` itself."""
    found = tensor(x)
    axis, count = normal_axis(node, axis, found.ndim), len(node.results)
    if not 0 < count <= _SLICED:
        return ops.unbind(found, axis).tuple() if count else ()
    return tuple(ops.squeeze(part, axis) for part in ops.split_sizes(found, 1, axis))


@converter("aten.repeat")
def repeat(node: Node, x: Value, times: tuple[Any, ...]) -> Tensor:
    return ops.repeat(tensor(x), *times) if times else tensor(x)


@converter("aten.repeat_interleave.Tensor")
def repeated_places(node: Node, times: Value, output_size: Any = None) -> Tensor:
    """Return 0 repeated `times[0]` times, then 1 repeated `times[1]` times, and so on.
    `output_size` is the sum of `times`."""
    ends = ops.cumsum(cast(times, "int64"), 0)
    return cast(ops.searchsorted(ends, ops.arange(node.shape[0]), True), node.dtype)
