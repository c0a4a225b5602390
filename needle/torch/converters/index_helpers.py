"""Helpers for the converters that read or write elements by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, dtype_of, normal_axis, shape_of, tensor
from ...sizes.extents import same
from ..operands import cast, category
from ..program import Node


def index_tensor(value: Value) -> Tensor:
    """Return a `value` as int64 or int32 indices."""
    found = tensor(value)
    return found if found.dtype in ("int64", "int32") else ops.cast(found, "int64")


def line(x: Value) -> Tensor:
    """Return a 0-d tensor `x` with shape (1,); return other tensors unchanged."""
    found = tensor(x)
    return found if found.ndim else ops.reshape(found, (1,))


def is_mask(index: Value) -> bool:
    return dtype_of(index) in ("bool", "uint8")


def index_key(indices: tuple[Value | None, ...]) -> tuple[Any, ...]:
    """Return the key that applies `indices` to the first axes. None stands for a whole axis."""
    return tuple(slice(None) if each is None else index_tensor(each) for each in indices)


# The reductions' names in needle's ops.
_HOW = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul"} | {
    "amax": "max",
    "amin": "min",
}


def of_flags(x: Tensor, how: str, write: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `write` to `x`. If `how` is a reduction, booleans are reduced in int32."""
    if x.dtype != "bool" or how == "set":
        return write(x)
    return ops.cast(write(ops.cast(x, "int32")), "bool")


def reduction(node: Node, reduce: str) -> str:
    if reduce not in _HOW:
        raise node.unsupported(f"reduce={reduce!r}")
    return _HOW[reduce]


def neutral(how: str, dtype: str) -> Any:
    """Return the neutral element of the reduction `how` in `dtype`."""
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


def divided(total: Tensor, counts: Tensor) -> Tensor:
    """Divide a sum (`total`) by the number of its terms, `counts` (0 counts as 1)."""
    counts = ops.where(ops.equal(counts, 0), 1, counts)
    if category(total.dtype) == "float":
        return ops.divide(total, ops.cast(counts, total.dtype))
    return ops.cast(ops.floor_divide(ops.cast(total, "int64"), counts), total.dtype)


def put_slices(node: Node, x: Value, axis: int, index: Value, source: Tensor, how: str) -> Tensor:
    """Write slices of `source`, or one number, into `x` at an `index` along an `axis`. `how` is
    "set" or a reduction; errors name the `node`."""
    found, places = line(x), line(index_tensor(index))
    axis = normal_axis(node, axis, found.ndim)
    shape = (*found.shape[:axis], places.shape[0], *found.shape[axis + 1 :])
    if source.ndim and not same(source.shape, shape):
        source = ops.reshape(source, shape)  # inserts an omitted axis
    source = cast(source, "int32" if found.dtype == "bool" and how != "set" else found.dtype)
    made = of_flags(found, how, lambda base: ops.put(base, places, source, axis, how))
    return ops.reshape(made, shape_of(x))


def masked(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the rows of `source` in order into `x` where a `mask` is true. The last axes of the
    mask are the axes of a row and have extent 1."""
    lead = mask.ndim - (source.ndim - 1)
    flags = ops.reshape(mask, (-1,))
    last = source.shape[0] - 1
    number = ops.subtract(ops.cumsum(ops.cast(flags, "int64"), 0), 1)
    number = ops.minimum(ops.maximum(number, 0), last)
    rows = ops.take(source, number, 0)
    return ops.where(mask, ops.reshape(rows, (*x.shape[:lead], *source.shape[1:])), x)
