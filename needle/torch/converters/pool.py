"""Converters of pools."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ... import ops
from ...conversion.values import Value, along, size_tensor, tensor
from ...extents import is_symbolic, same
from ...nn import functional as F
from ...tensor import Tensor
from ..operands import in_float32
from ..program import Node
from ..registry import converter
from ..windows import batched, each_axis

_MAX: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _axes(node: Node) -> int:
    """The number of axes of an operator's windows, which is in its name: "aten.max_pool2d"."""
    found = re.search(r"([123])d", node.operator)
    assert found is not None, "converters of pools are registered for names with a number"
    return int(found[1])


@converter("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d")
def max_pool(
    node: Node,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    count = _axes(node)
    sizes = each_axis(kernel, count)
    strides = each_axis(stride, count) if stride else sizes
    window = sizes, strides, each_axis(padding, count), each_axis(dilation, count)
    return batched(tensor(x), count, lambda batch: _MAX[count](batch, *window, ceil_mode))


@converter("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def avg_pool(
    node: Node,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:
    count = _axes(node)
    sizes = each_axis(kernel, count)
    window = sizes, each_axis(stride, count) if stride else sizes, each_axis(padding, count)
    rest = () if divisor is None else (divisor,)

    def of_batch(batch: Tensor) -> Tensor:
        return _MEAN[count](batch, *window, ceil_mode, count_include_pad, *rest)

    return in_float32(lambda each: batched(each, count, of_batch), tensor(x))


@converter("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d")
def adaptive_avg_pool(node: Node, x: Value, size: Any) -> Tensor:
    count = _axes(node)
    sizes = each_axis(size, count)

    def of_batch(batch: Tensor) -> Tensor:
        if all(same(n, 1) for n in sizes):
            return ops.mean(batch, tuple(range(2, batch.ndim)), keepdims=True)
        kernel = _equal_parts(batch.shape[2:], sizes)
        if kernel is not None:
            return _MEAN[count](batch, kernel)
        parts = [_parts(n, m) for n, m in zip(batch.shape[2:], sizes, strict=True)]
        seen, inside, lengths = _gathered(batch, parts)
        summed = ops.sum(ops.where(inside, seen, 0.0), _of_windows(seen))
        for axis, each in enumerate(lengths):
            each = ops.reshape(each, (*each.shape, *(1,) * (count - 1 - axis)))
            summed = ops.divide(summed, ops.cast(each, batch.dtype))
        return summed

    return in_float32(lambda each: batched(each, count, of_batch), tensor(x))


def _equal_parts(extents: Sequence[Any], sizes: Sequence[Any]) -> tuple[int, ...] | None:
    """The kernel of windows that divide axes evenly; None if they do not, or extents are open."""
    if is_symbolic(extents) or is_symbolic(sizes):
        return None
    if any(not m or n % m or not n for n, m in zip(extents, sizes, strict=True)):
        return None
    return tuple(n // m for n, m in zip(extents, sizes, strict=True))


def _parts(extent: Any, size: Any) -> tuple[Tensor, Any, Tensor]:
    """The windows that divide an axis into `size` parts: their first places (size,), the extent of
    the longest, and how long each is (size,)."""
    number = ops.arange(size, dtype="int64")
    first = ops.floor_divide(ops.multiply(number, size_tensor(extent)), size_tensor(size))
    after = ops.multiply(ops.add_scalar(number, 1), size_tensor(extent))
    ends = ops.floor_divide(ops.add(after, size_tensor(size - 1)), size_tensor(size))
    return first, (extent + size - 1) // size + 1, ops.subtract(ends, first)


def _gathered(
    x: Tensor, parts: Sequence[tuple[Tensor, Any, Tensor]]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """All windows of x (N, C, ...) as (N, C, size, longest, size, longest, ...), which elements
    there are of a window, and how long windows are along each axis."""
    inside: Tensor | None = None
    for number, (first, longest, lengths) in enumerate(parts):
        axis, rest = 2 + 2 * number, len(parts) - 1 - number
        step = ops.arange(longest, dtype="int64")
        places = ops.add(ops.unsqueeze(first, 1), step)
        last = size_tensor(x.shape[axis] - 1)
        x = x[along(axis, ops.minimum(places, last))]
        of_axis = ops.less(step, ops.unsqueeze(lengths, 1))
        of_axis = ops.reshape(of_axis, (*of_axis.shape, *(1,) * (2 * rest)))
        inside = of_axis if inside is None else ops.logical_and(inside, of_axis)
    assert inside is not None, "a pool has an axis"
    return x, inside, [lengths for _, _, lengths in parts]


def _of_windows(seen: Tensor) -> tuple[int, ...]:
    """The axes of elements in windows, of what `_gathered` made."""
    return tuple(range(3, seen.ndim, 2))
