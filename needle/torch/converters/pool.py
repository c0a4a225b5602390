"""Converters of pooling."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...conversion.values import Value, size_tensor, tensor
from ...init import zeros
from ...nn import functional as F
from ...ops._windows import lowest
from ...sizes.extents import same
from ..operands import cast, in_float32
from ..program import Node
from ..registry import converter
from ..windows import Parts, batched, chosen_of, each_axis, equal_parts, gathered

_MAX: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _axes(node: Node) -> int:
    """Return the number of axes of an operator's windows from its name, such as
    "aten.max_pool2d"."""
    found = re.search(r"([123])d", node.operator)
    assert found is not None, "converters of pooling are registered for names with a number"
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
    return _max_pool(node, x, kernel, stride, padding, dilation, ceil_mode, False)


@converter(*(f"aten.max_pool{n}d_with_indices" for n in (1, 2, 3)))
def max_pool_with_indices(
    node: Node,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    return _max_pool(node, x, kernel, stride, padding, dilation, ceil_mode, True)


def _max_pool(
    node: Node,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    places: bool,
) -> Any:
    count = _axes(node)
    sizes = each_axis(kernel, count)
    strides = each_axis(stride, count) if stride else sizes
    window = sizes, strides, each_axis(padding, count), each_axis(dilation, count)
    return batched(tensor(x), count, lambda batch: _MAX[count](batch, *window, ceil_mode, places))


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
    count, found = _axes(node), tensor(x)
    sizes = each_axis(kernel, count)
    window = sizes, each_axis(stride, count) if stride else sizes, each_axis(padding, count)
    if is_floating(found.dtype) and divisor is None:

        def mean(batch: Tensor) -> Tensor:
            return _MEAN[count](batch, *window, ceil_mode, count_include_pad)

        return in_float32(lambda each: batched(each, count, mean), found)

    def quotient(batch: Tensor) -> Tensor:
        summed = _summed(batch, window, ceil_mode)
        if divisor is not None:
            return _divided(summed, divisor, found.dtype)
        counts = _counts(batch.shape[2:], summed.shape[2:], window, count_include_pad)
        return _divided(summed, counts, found.dtype)

    return in_float32(lambda each: batched(each, count, quotient), found)


def _summed(x: Tensor, window: Any, ceil_mode: bool) -> Tensor:
    """Return the sums of windows; sums of integers are float64."""
    if x.ndim == 3:  # an image of one row
        kernel, stride, padding = ((n, *each) for n, each in zip((1, 1, 0), window, strict=True))
        rows = F.avg_pool2d(ops.unsqueeze(x, 2), kernel, stride, padding, ceil_mode, True, 1)
        return ops.squeeze(rows, 2)
    return _MEAN[x.ndim - 2](x, *window, ceil_mode, True, 1)


def _divided(summed: Tensor, by: Any, dtype: str) -> Tensor:
    """Divide sums and return quotients of `dtype`. For integers, the sums are float64 and the
    quotients are truncated."""
    if is_floating(dtype):
        return ops.divide(summed, by)
    return ops.cast(ops.trunc(ops.divide(ops.round(summed), by)), dtype)


def _counts(extents: Any, results: Any, window: Any, with_padding: bool) -> Tensor:
    """Return the number of elements that count in each window."""
    counts: Any = None
    for n, m, k, s, p in zip(extents, results, *window, strict=True):
        low, high = (-p, p) if with_padding else (0, 0)
        first = ops.add_scalar(ops.mul_scalar(ops.arange(m, dtype="int64"), s), -p)
        end = ops.minimum(ops.add_scalar(first, k), size_tensor(n + high))
        own = ops.subtract(end, ops.maximum(first, size_tensor(low)))
        counts = own if counts is None else ops.multiply(ops.unsqueeze(counts, -1), own)
    return ops.cast(counts, "float64")


@converter("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d")
def adaptive_avg_pool(node: Node, x: Value, size: Any) -> Tensor:
    count = _axes(node)
    sizes = each_axis(size, count)

    def of_batch(batch: Tensor) -> Tensor:
        if all(same(n, 1) for n in sizes):
            return ops.mean(batch, tuple(range(2, batch.ndim)), keepdims=True)
        kernel = equal_parts(batch.shape[2:], sizes)
        if kernel is not None:
            return _MEAN[count](batch, kernel)
        parts = [Parts.dividing(n, m) for n, m in zip(batch.shape[2:], sizes, strict=True)]
        seen, inside, _ = gathered(batch, parts)
        made = ops.sum(ops.where(inside, seen, 0.0), _of_windows(seen))
        for axis, part in enumerate(parts):
            length = ops.reshape(part.lengths, (*part.lengths.shape, *(1,) * (count - 1 - axis)))
            made = ops.divide(made, cast(length, batch.dtype))
        return made

    return in_float32(lambda each: batched(each, count, of_batch), tensor(x))


def _of_windows(seen: Tensor) -> tuple[int, ...]:
    """Return the axes of a result of `gathered` that run within the windows."""
    return tuple(range(3, seen.ndim, 2))


@converter("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def adaptive_max_pool(node: Node, x: Value, size: Any) -> tuple[Tensor, Tensor]:
    count = _axes(node)
    sizes = each_axis(size, count)

    def of_batch(batch: Tensor) -> tuple[Tensor, Tensor]:
        parts = [Parts.dividing(n, m) for n, m in zip(batch.shape[2:], sizes, strict=True)]
        seen, inside, places = gathered(batch, parts)
        return chosen_of(
            _taps_last(ops.where(inside, seen, lowest(seen.dtype))), _taps_last(places)
        )

    return batched(tensor(x), count, of_batch)


def _fractional(sample: Tensor, n: Any, m: Any, k: int) -> Tensor:
    """Return the first positions (N, C, m) of m windows of k elements on an axis of n, for samples
    (N, C)."""
    step = Tensor(np.array(n - k, sample.dtype) / np.array(max(m - 1, 1), sample.dtype))
    sample = ops.unsqueeze(sample, -1)
    at = ops.multiply(ops.add(ops.arange(m, dtype=sample.dtype), sample), step)
    begin = ops.subtract(ops.trunc(at), ops.trunc(ops.multiply(sample, step)))
    is_last = ops.arange(m, dtype="int64") == m - 1
    return ops.where(is_last, n - k, ops.cast(begin, "int64"))


def _taps_last(seen: Tensor) -> Tensor:
    """Rearrange a result of `gathered` (N, C, size, longest, ...) to (N, C, sizes, elements of a
    window)."""
    longest = _of_windows(seen)
    sizes = tuple(axis - 1 for axis in longest)
    turned = ops.permute(seen, (0, 1, *sizes, *longest))
    extents = turned.shape[: 2 + len(sizes)]
    return ops.reshape(turned, (*extents, prod(turned.shape[2 + len(sizes) :])))


@converter("aten.fractional_max_pool2d", "aten.fractional_max_pool3d")
def fractional_max_pool(
    node: Node, x: Value, kernel: Any, size: Any, samples: Value
) -> tuple[Tensor, Tensor]:
    """Return the largest elements of windows whose positions depend on samples (N, C, axes) (Graham
    2014)."""
    count, drawn = _axes(node), tensor(samples)
    sizes, kernels = each_axis(size, count), each_axis(kernel, count)

    def of_batch(batch: Tensor) -> tuple[Tensor, Tensor]:
        if any(same(n, 0) for n in batch.shape):
            raise node.unsupported("an input without elements")
        lead, flat = batch.shape[:2], tensor(np.zeros((), np.int64))
        for axis, (n, m, k) in enumerate(zip(batch.shape[2:], sizes, kernels, strict=True)):
            # PyTorch's samples of two axes have the order (columns, rows).
            sample = drawn[..., count - 1 - axis if count == 2 else axis]
            first = _fractional(sample, n, m, k)
            places = ops.add(ops.unsqueeze(first, -1), ops.arange(k, dtype="int64"))
            shape = [*drawn.shape[:2], *(1,) * (2 * count)]
            shape[2 + axis], shape[2 + count + axis] = m, k
            flat = ops.add(ops.multiply(flat, size_tensor(n)), ops.reshape(places, shape))
        wide = ops.broadcast_to(flat, (*lead, *flat.shape[2:]))
        places = ops.reshape(wide, (*lead, prod(sizes) * prod(kernels)))
        values = ops.gather(ops.reshape(batch, (*lead, prod(batch.shape[2:]))), 2, places)
        seen, places = (ops.reshape(e, (*lead, *sizes, prod(kernels))) for e in (values, places))
        return chosen_of(seen, places)

    return batched(tensor(x), count, of_batch)


@converter("aten.max_unpool2d", "aten.max_unpool3d")
def max_unpool(
    node: Node, x: Value, indices: Value, size: Any, stride: Any = (), padding: Any = ()
) -> Tensor:
    """Write the elements of x (N, C, ...) into images of zeros, at positions in each flattened
    image. `size` is the images' size; strides and padding are not needed."""
    found, places = tensor(x), tensor(indices)
    count = len(size)
    images, whole = prod(found.shape[:-count]), prod(size)
    plane = prod(found.shape[-count:])
    empty = zeros(1, 1, dtype=found.dtype, device=found.device, requires_grad=False)
    made = ops.scatter(
        ops.broadcast_to(empty, (images, whole)),
        1,
        ops.reshape(places, (images, plane)),
        ops.reshape(found, (images, plane)),
    )
    return ops.reshape(made, (*found.shape[:-count], *size))
