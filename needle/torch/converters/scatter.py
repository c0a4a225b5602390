"""Converters of the operators scatter, masked_scatter and put."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, normal_axis, shape_of, tensor
from ...sizes.extents import same
from ..operands import Number, cast
from ..program import Node
from ..registry import converter
from .index_helpers import (
    divided,
    index_tensor,
    line,
    masked,
    neutral,
    of_flags,
    put_slices,
    reduction,
)


@converter("aten.scatter.src")
def scatter(node: Node, x: Value, axis: int, index: Value, source: Value) -> Tensor:
    return put_along(node, x, axis, index, source, "set")


@converter("aten.scatter.value")
def scatter_value(node: Node, x: Value, axis: int, index: Value, value: Number) -> Tensor:
    return put_along(node, x, axis, index, value, "set")


@converter("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_reduced(
    node: Node, x: Value, axis: int, index: Value, source: Any, reduce: str
) -> Tensor:
    return put_along(node, x, axis, index, source, reduction(node, reduce))


@converter("aten.scatter_add")
def scatter_add(node: Node, x: Value, axis: int, index: Value, source: Value) -> Tensor:
    return put_along(node, x, axis, index, source, "add")


@converter("aten.scatter_reduce.two")
def scatter_reduce(
    node: Node,
    x: Value,
    axis: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    """Combine elements of `source` with x at positions along an axis. If not `include_self`, the
    elements of x at these positions do not take part."""
    how = reduction(node, reduce)
    base = tensor(x)
    if not include_self:
        base = put_along(node, base, axis, index, neutral(how, base.dtype), "set")
    made = put_along(node, base, axis, index, source, how)
    if reduce != "mean":
        return made
    ones = ops.broadcast_to(cast(1, "int64"), shape_of(x))
    if not include_self:
        ones = put_along(node, ones, axis, index, 0, "set")
    counts = put_along(node, ones, axis, index, 1, "add")
    return divided(made, counts)


def put_along(node: Node, x: Value, axis: int, index: Value, source: Any, how: str) -> Tensor:
    """Write elements of `source`, or a number, into `x` at the positions `index` along an `axis`.
    `how` is "set" or a reduction; errors name the `node`."""
    target, places = line(x), line(index_tensor(index))
    if any(same(n, 0) for n in places.shape):
        return tensor(x)
    axis = normal_axis(node, axis, target.ndim)
    dtype = "int32" if target.dtype == "bool" and how != "set" else target.dtype
    elements = cast(source, dtype)
    if elements.ndim or isinstance(source, Tensor):
        elements = line(elements)
        key = tuple(
            slice(None) if same(n, m) else slice(0, n)
            for n, m in zip(places.shape, elements.shape, strict=True)
        )
        elements = ops.slice(elements, key)
    scatter_of = {
        **{"set": ops.scatter, "add": ops.scatter_add, "mul": ops.scatter_mul},
        **{"max": ops.scatter_max, "min": ops.scatter_min},
    }[how]
    made = of_flags(target, how, lambda base: scatter_of(base, axis, places, elements))
    return ops.reshape(made, shape_of(x))


@converter("aten.masked_scatter")
def masked_scatter(node: Node, x: Value, mask: Value, source: Value) -> Tensor:
    """Write the elements of `source` in order into x where a mask is true."""
    base = ops.broadcast_to(tensor(x), node.shape)
    flags = ops.broadcast_to(cast(mask, "bool"), node.shape)
    values = ops.reshape(cast(source, base.dtype), (-1,))
    if same(values.shape[0], 0):
        return base
    return masked(base, flags, values)


@converter("aten.put")
def put(node: Node, x: Value, index: Value, source: Value, accumulate: bool = False) -> Tensor:
    """Replace, or add to, elements of x at positions in its flat order."""
    flat, places = ops.reshape(tensor(x), (-1,)), ops.reshape(index_tensor(index), (-1,))
    values = ops.reshape(tensor(source), (-1,))
    made = put_slices(node, flat, 0, places, values, "add" if accumulate else "set")
    return ops.reshape(made, shape_of(x))
