"""Converters of pooling."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import finfo, is_floating
from ...conversion.budget import bounded
from ...conversion.convolutions import Sides, padded
from ...conversion.values import Value, known_integers, tensor
from ...init import zeros
from ...nn import functional as F
from ...sizes.dims import Expression
from ..geometry import Windows, windows
from ..graph import Node
from ..registry import converter
from .index import counting

_MAX: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _spatial(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    if not 3 <= x.ndim <= 5:
        raise node.unsupported(f"pooling of {x.spec}; needle pools over 1, 2 or 3 axes")
    return x


def _in_few_axes(node: Node, data: Value, pool: Callable[[Node, Tensor], Any]) -> Any:
    """Pool over more axes than needle supports, if the windows are single elements along some of
    them. These axes are merged into the batch axis."""
    x = tensor(data)
    if x.ndim <= 5 or node.wants(1):
        return pool(node, x)
    over = windows(node, x.shape[2:])
    parts = list(zip(over.kernel, over.strides, over.pads, strict=True))
    still = [i for i, part in enumerate(parts) if part == (1, 1, (0, 0))]
    moving = [i for i in range(len(parts)) if i not in still]
    if not still or not moving:
        return pool(node, x)
    order = [0, *(2 + i for i in still), 1, *(2 + i for i in moving)]
    turned = ops.permute(x, order)
    lead, rest = turned.shape[: 1 + len(still)], turned.shape[1 + len(still) :]
    sides = [over.pads[i] for i in moving]
    attributes = {
        **node.attributes,
        **{"kernel_shape": tuple(over.kernel[i] for i in moving)},
        **{"strides": tuple(over.strides[i] for i in moving)},
        **{"dilations": tuple(over.dilations[i] for i in moving)},
        **{"pads": (*(low for low, _ in sides), *(high for _, high in sides))},
        "auto_pad": "NOTSET",
    }
    alike = dataclasses.replace(node, attributes=attributes)
    made = pool(alike, ops.reshape(turned, (prod(lead), *rest)))
    made = ops.reshape(made, (*lead, *made.shape[1:]))
    return ops.permute(made, [order.index(axis) for axis in range(len(order))])


def _counted(node: Node, x: Tensor, over: Windows) -> list[Any]:
    """Return the number of windows along each axis."""
    ceil = node.flag("ceil_mode", False)
    out = []
    for n, span, stride, (low, high) in zip(
        x.shape[2:], over.spans, over.strides, over.pads, strict=True
    ):
        rest = n + low + high - span
        count = (rest + stride - 1) // stride + 1 if ceil else rest // stride + 1
        if ceil and (count - 1) * stride >= n + low:  # the last window would begin beyond the input
            count -= 1
        out.append(count)
    return out


def _filled(x: Tensor, over: Windows, counts: list[Any], value: float) -> Tensor:
    """Pad x with a value so that `counts` windows fit exactly."""
    sides: Sides = []
    for n, count, span, stride, (low, _) in zip(
        x.shape[2:], counts, over.spans, over.strides, over.pads, strict=True
    ):
        sides.append((low, (count - 1) * stride + span - n - low))
    return padded(x, sides, value)


@converter("MaxPool", since=1)
def max_pool(node: Node, data: Value) -> Any:
    return _in_few_axes(node, data, _max_pool)


def _max_pool(node: Node, data: Tensor) -> Any:
    x = _spatial(node, data)
    over = windows(node, x.shape[2:])
    function = _MAX[len(over.kernel)]
    plain = all(
        low == high and 2 * low <= k for (low, high), k in zip(over.pads, over.kernel, strict=True)
    )
    if plain and not node.flag("ceil_mode", False) and not node.wants(1):
        padding = tuple(low for low, _ in over.pads)
        return function(x, over.kernel, over.strides, padding, over.dilations)
    filled = _filled(x, over, _counted(node, x, over), _lowest(x.dtype))
    made = function(filled, over.kernel, over.strides, 0, over.dilations, False, node.wants(1))
    if not node.wants(1):
        return made
    values, places = made
    return values, _flat_places(node, places, x, filled, over)


def _lowest(dtype: str) -> float:
    if dtype == "float16" or dtype == "bfloat16":
        return float(finfo(dtype).min)
    return float("-inf") if is_floating(dtype) else int(np.iinfo(dtype).min)


def _flat_places(node: Node, places: Tensor, x: Tensor, filled: Tensor, over: Windows) -> Tensor:
    """Convert positions in each flattened image of `filled` to positions in the whole flattened
    x."""
    row_major = not node.integer("storage_order", 0)
    extents, whole = list(x.shape[2:]), list(filled.shape[2:])
    found: list[Tensor] = []  # along each axis
    rest = places
    for n in reversed(whole):
        found.insert(0, ops.remainder(rest, n))
        rest = ops.floor_divide(rest, n)
    total: Any = 0
    order = range(len(extents)) if row_major else reversed(range(len(extents)))
    for axis in order:
        at = ops.subtract(found[axis], over.pads[axis][0])
        total = ops.add(at, ops.multiply(total, extents[axis]) if isinstance(total, Tensor) else 0)
    images = ops.reshape(counting(x.shape[0] * x.shape[1]), (*x.shape[:2], *(1,) * len(extents)))
    return ops.add(total, ops.multiply(images, prod(extents)))


@converter("AveragePool", since=1)
def average_pool(node: Node, data: Value) -> Tensor:
    return _in_few_axes(node, data, _average_pool)


def _average_pool(node: Node, data: Tensor) -> Tensor:
    x = _spatial(node, data)
    over = windows(node, x.shape[2:])
    counts = _counted(node, x, over)
    summed = _summed(_filled(x, over, counts, 0.0), over)
    taken = _taken(node, x, over, counts)
    if taken is None:
        return ops.divide(summed, float(prod(over.kernel)))
    return ops.divide(summed, Tensor(taken.astype(np.dtype(x.dtype)), requires_grad=False))


def _summed(x: Tensor, over: Windows) -> Tensor:
    """Return the sums of windows that fit exactly."""
    if all(d == 1 for d in over.dilations):
        mean = _MEAN[len(over.kernel)](x, over.kernel, over.strides)
        return ops.mul_scalar(mean, float(prod(over.kernel)))
    total = None
    for taps in itertools.product(*map(range, over.kernel)):
        key: list[slice] = [slice(None), slice(None)]
        for tap, n, span, stride, dilation in zip(
            taps, x.shape[2:], over.spans, over.strides, over.dilations, strict=True
        ):
            first = tap * dilation
            key.append(slice(first, first + n - span + 1, stride))
        total = x[tuple(key)] if total is None else ops.add(total, x[tuple(key)])
    assert total is not None  # a kernel has at least one tap
    return total


def _taken(node: Node, x: Tensor, over: Windows, counts: list[Any]) -> np.ndarray | None:
    """Return the number of elements that each window averages, or None if all windows are
    complete."""
    include = node.flag("count_include_pad", False)
    sizes = np.ones((), np.int64)
    for axis, (n, count) in enumerate(zip(x.shape[2:], counts, strict=True)):
        low, high = over.pads[axis]
        if isinstance(n, Expression) or isinstance(count, Expression):
            if include or not (low or high):
                if not node.flag("ceil_mode", False):
                    sizes = np.multiply.outer(sizes, np.full(1, over.kernel[axis]))
                    continue
            raise node.unsupported("windows that are partly filled, along an axis of open size")
        first, last = (0, low + n + high) if include else (low, low + n)
        bounded((count, over.kernel[axis]))
        at = np.arange(count)[:, None] * over.strides[axis]
        at = at + np.arange(over.kernel[axis]) * over.dilations[axis]
        sizes = np.multiply.outer(sizes, ((at >= first) & (at < last)).sum(1))
    return None if np.all(sizes == prod(over.kernel)) else sizes


@converter("LpPool", since=2)
def lp_pool(node: Node, data: Value) -> Tensor:
    return _in_few_axes(node, data, _lp_pool)


def _lp_pool(node: Node, data: Tensor) -> Tensor:
    x = _spatial(node, data)
    over, p = windows(node, x.shape[2:]), node.integer("p")
    powered = ops.power_scalar(ops.abs(x), float(p))
    filled = _filled(powered, over, _counted(node, x, over), 0.0)
    return ops.power_scalar(_summed(filled, over), 1.0 / p)


@converter("GlobalAveragePool", since=1)
def global_average_pool(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    return ops.mean(x, tuple(range(2, x.ndim)), keepdims=True)


@converter("GlobalMaxPool", since=1)
def global_max_pool(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    return ops.max(x, tuple(range(2, x.ndim)), keepdims=True)


@converter("GlobalLpPool", since=2)
def global_lp_pool(node: Node, data: Value) -> Tensor:
    x, p = tensor(data), node.integer("p")
    powered = ops.power_scalar(ops.abs(x), float(p))
    summed = ops.sum(powered, tuple(range(2, x.ndim)), keepdims=True)
    return ops.power_scalar(summed, 1.0 / p)


@converter("MaxUnpool", since=9, known=(2,))
def max_unpool(node: Node, data: Value, places: Value, shape: Value | None = None) -> Tensor:
    x = _spatial(node, data)
    over = windows(node, x.shape[2:])
    extents = [
        (n - 1) * stride - low - high + k
        for n, stride, k, (low, high) in zip(
            x.shape[2:], over.strides, over.kernel, over.pads, strict=True
        )
    ]
    whole = bounded((*x.shape[:2], *extents))
    flat = zeros(prod(whole), dtype=x.dtype, requires_grad=False)
    index = ops.reshape(tensor(places), (-1,))
    made = ops.reshape(ops.scatter(flat, 0, index, ops.reshape(x, (-1,))), whole)
    if shape is None:
        return made
    asked = known_integers(node, shape, "the output's shape")
    return padded(made, [(0, n - m) for n, m in zip(asked, whole, strict=True)])
