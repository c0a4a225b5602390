"""Converters of operators that write elements by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, normal_axis, shape_of, tensor
from ...sizes.extents import same
from ..operands import Number, cast, category
from ..program import Node
from ..registry import converter
from .index import index_key, index_tensor, is_mask, line

# What needle's ops call a reduction.
_HOW = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul"} | {
    "amax": "max",
    "amin": "min",
}


def of_flags(x: Tensor, how: str, write: Callable[[Tensor], Tensor]) -> Tensor:
    """What `write` makes of x; of int32 for a reduction of booleans."""
    if x.dtype != "bool" or how == "set":
        return write(x)
    return ops.cast(write(ops.cast(x, "int32")), "bool")


# Along an axis, an element at a position each


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
    return put_along(node, x, axis, index, source, _how(node, reduce))


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
    """x with elements combined at positions; without x's own if not `include_self`."""
    how = _how(node, reduce)
    base = tensor(x)
    if not include_self:
        base = put_along(node, base, axis, index, _neutral(how, base.dtype), "set")
    made = put_along(node, base, axis, index, source, how)
    if reduce != "mean":
        return made
    ones = ops.broadcast_to(cast(1, "int64"), shape_of(x))
    if not include_self:
        ones = put_along(node, ones, axis, index, 0, "set")
    counts = put_along(node, ones, axis, index, 1, "add")
    return _divided(made, counts)


def _how(node: Node, reduce: str) -> str:
    if reduce not in _HOW:
        raise node.unsupported(f"reduce={reduce!r}")
    return _HOW[reduce]


def _neutral(how: str, dtype: str) -> Any:
    """The number that a reduction leaves out."""
    if how == "add":
        return 0
    if how == "mul":
        return 1
    if category(dtype) == "float":
        return float("-inf") if how == "max" else float("inf")
    if dtype == "bool":
        return how == "min"
    bounds = np.iinfo(dtype)
    return bounds.max if how == "min" else bounds.min


def _divided(total: Tensor, counts: Tensor) -> Tensor:
    """A sum by how many were added (at least one)."""
    counts = ops.where(ops.equal(counts, 0), 1, counts)
    if category(total.dtype) == "float":
        return ops.divide(total, ops.cast(counts, total.dtype))
    return ops.cast(ops.floor_divide(ops.cast(total, "int64"), counts), total.dtype)


def put_along(node: Node, x: Value, axis: int, index: Value, source: Any, how: str) -> Tensor:
    """x with elements of `source`, or a number, at positions along an axis."""
    found, places = line(x), line(index_tensor(index))
    if any(same(n, 0) for n in places.shape):
        return tensor(x)
    axis = normal_axis(node, axis, found.ndim)
    dtype = "int32" if found.dtype == "bool" and how != "set" else found.dtype
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
    made = of_flags(found, how, lambda base: scatter_of(base, axis, places, elements))
    return ops.reshape(made, shape_of(x))


# Whole slices along an axis


@converter("aten.index_add")
def index_add(
    node: Node, x: Value, axis: int, index: Value, source: Value, alpha: Number = 1
) -> Tensor:
    added = line(source)
    if alpha != 1:
        added = ops.multiply(added, cast(alpha, added.dtype))
    return put_slices(node, x, axis, index, added, "add")


@converter("aten.index_copy")
def index_copy(node: Node, x: Value, axis: int, index: Value, source: Value) -> Tensor:
    return put_slices(node, x, axis, index, line(source), "set")


@converter("aten.index_fill")
def index_fill(node: Node, x: Value, axis: int, index: Value, value: Any) -> Tensor:
    return put_slices(node, x, axis, index, cast(value, tensor(x).dtype), "set")


@converter("aten.index_reduce")
def index_reduce(
    node: Node,
    x: Value,
    axis: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    how, base = _how(node, reduce), tensor(x)
    if not include_self:
        neutral = cast(_neutral(how, base.dtype), base.dtype)
        base = put_slices(node, base, axis, index, neutral, "set")
    made = put_slices(node, base, axis, index, line(source), how)
    if reduce != "mean":
        return made
    counts = ops.broadcast_to(cast(1, "int64"), base.shape)
    if not include_self:
        counts = put_slices(node, counts, axis, index, cast(0, "int64"), "set")
    counts = put_slices(node, counts, axis, index, cast(1, "int64"), "add")
    return _divided(made, counts)


def put_slices(node: Node, x: Value, axis: int, index: Value, source: Tensor, how: str) -> Tensor:
    """x with slices along an axis, which `source` holds or is one number for, at an index."""
    found, places = line(x), line(index_tensor(index))
    axis = normal_axis(node, axis, found.ndim)
    shape = (*found.shape[:axis], places.shape[0], *found.shape[axis + 1 :])
    if source.ndim and not same(source.shape, shape):
        source = ops.reshape(source, shape)  # an axis that is left out
    source = cast(source, "int32" if found.dtype == "bool" and how != "set" else found.dtype)
    made = of_flags(found, how, lambda base: ops.put(base, places, source, axis, how))
    return ops.reshape(made, shape_of(x))


# By a key


@converter("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(
    node: Node,
    x: Value,
    indices: tuple[Value | None, ...],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    base = tensor(x)
    how = "add" if accumulate else "set"
    source = cast(values, "int32" if base.dtype == "bool" and accumulate else base.dtype)
    masks = [each for each in indices if each is not None and is_mask(each)]
    if masks:
        return of_flags(base, how, lambda base: _at_mask(node, base, indices, source, accumulate))
    write = ops.add_at if accumulate else ops.set_at
    key = index_key(indices)
    if all(same(n, 1) for n in source.shape):  # also for an index of no elements
        source = ops.reshape(source, ())
    return of_flags(base, how, lambda base: write(base, key, source))


def _at_mask(
    node: Node, x: Tensor, indices: tuple[Value | None, ...], source: Tensor, accumulate: bool
) -> Tensor:
    """x where a mask, the only index, is false, and `source`, which is one element along the axes
    of the mask, where it is true."""
    (at,) = [i for i, each in enumerate(indices) if each is not None][:1]
    given = indices[at]
    if given is None or sum(each is not None for each in indices) > 1:
        raise node.unsupported("a mask beside another index")
    mask = cast(given, "bool")
    behind = x.ndim - at - mask.ndim
    mask = ops.reshape(mask, (*mask.shape, *[1] * behind))
    if source.ndim > behind:
        place = source.ndim - behind - 1
        if not same(source.shape[place], 1):
            if at or accumulate:
                raise node.unsupported("a mask as an index for values that differ along its axes")
            return masked(x, mask, source)
        extents = (*source.shape[:place], *[1] * (mask.ndim - behind), *source.shape[place + 1 :])
        source = ops.reshape(source, extents)
    return ops.where(mask, ops.add(x, source) if accumulate else source, x)


def masked(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x with the rows of `source`, one after the other, where a mask, whose last axes are those of
    a row and 1, is true."""
    lead = mask.ndim - (source.ndim - 1)
    flags = ops.reshape(mask, (-1,))
    last = source.shape[0] - 1
    number = ops.subtract(ops.cumsum(ops.cast(flags, "int64"), 0), 1)
    number = ops.minimum(ops.maximum(number, 0), last)
    rows = ops.take(source, number, 0)
    return ops.where(mask, ops.reshape(rows, (*x.shape[:lead], *source.shape[1:])), x)


@converter("aten.masked_scatter")
def masked_scatter(node: Node, x: Value, mask: Value, source: Value) -> Tensor:
    """x with the elements of `source`, in their order, where a mask is true."""
    base = ops.broadcast_to(tensor(x), node.shape)
    flags = ops.broadcast_to(cast(mask, "bool"), node.shape)
    values = ops.reshape(cast(source, base.dtype), (-1,))
    if same(values.shape[0], 0):
        return base
    return masked(base, flags, values)


# Parts


@converter("aten.put")
def put(node: Node, x: Value, index: Value, source: Value, accumulate: bool = False) -> Tensor:
    """x with elements of its own flat order replaced, or added to."""
    flat, places = ops.reshape(tensor(x), (-1,)), ops.reshape(index_tensor(index), (-1,))
    values = ops.reshape(tensor(source), (-1,))
    made = put_slices(node, flat, 0, places, values, "add" if accumulate else "set")
    return ops.reshape(made, shape_of(x))
