"""Converters of normalizations, and of softmax and related functions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_half
from ...conversion.convolutions import padded
from ...conversion.values import Value, normal_axes, normal_axis, tensor
from ...nn import functional as F
from ..graph import Node
from ..registry import converter


@converter("BatchNormalization", since=6)
def batch_norm(
    node: Node, data: Value, scale: Value, shift: Value, mean: Value, variance: Value
) -> Any:
    x, eps = tensor(data), node.number("epsilon")
    taken = [tensor(each) for each in (mean, variance, scale, shift)]
    if node.flag("training_mode", False):
        return _by_own_statistics(node, x, *taken)
    if not node.flag("is_test", True) or any(node.wants(i) for i in range(1, 5)):
        raise node.unsupported("batch norm in the training mode of an opset below 14")
    if any(each.dtype != x.dtype for each in taken):
        x, taken = ops.cast(x, "float32"), [ops.cast(each, "float32") for each in taken]
    mean, variance, weight, bias = taken
    made = F.batch_norm(x, mean, variance, weight, bias, eps=eps)
    return ops.cast(made, tensor(data).dtype)


def _by_own_statistics(
    node: Node, data: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    """Apply batch norm with the statistics of the batch. Return the result and the new running
    statistics. Networks with standardized weights have such a node per weight."""
    x = _wide(data)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    found = ops.mean(x, axes), ops.var(x, axes)
    weight, bias = ops.cast(scale, x.dtype), ops.cast(shift, x.dtype)
    made = F.batch_norm(x, found[0], found[1], weight, bias, eps=node.number("epsilon"))
    kept = node.number("momentum")
    running = (
        ops.add(ops.mul_scalar(old, kept), ops.cast(ops.mul_scalar(new, 1 - kept), old.dtype))
        for old, new in zip((mean, variance), found, strict=True)
    )
    return ops.cast(made, data.dtype), *running


@converter("InstanceNormalization", since=6)
def instance_norm(node: Node, data: Value, scale: Value, shift: Value) -> Tensor:
    eps = node.number("epsilon")
    return F.instance_norm(tensor(data), weight=tensor(scale), bias=tensor(shift), eps=eps)


def standardized(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Standardize `x` along `axes`: subtract the mean and divide by the standard deviation, where
    `eps` is added to the variance. Return the result, the mean, and the inverse of the standard
    deviation."""
    mean = ops.mean(x, axes, keepdims=True)
    centred = ops.subtract(x, mean)
    variance = ops.mean(ops.square(centred), axes, keepdims=True)
    inverse = ops.rsqrt(ops.add_scalar(variance, eps))
    return ops.multiply(centred, inverse), mean, inverse


@converter("LayerNormalization", since=17)
def layer_norm(node: Node, data: Value, scale: Value, shift: Value | None = None) -> Any:
    x, weight = tensor(data), tensor(scale)
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    bias = None if shift is None else tensor(shift)
    eps = node.number("epsilon")
    whole = weight.shape == x.shape[axis:] and (bias is None or bias.shape == weight.shape)
    if whole and not node.wants(1) and not node.wants(2):
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    made, mean, inverse = standardized(_wide(x), tuple(range(axis, x.ndim)), eps)
    made = ops.multiply(ops.cast(made, x.dtype), weight)
    made = made if bias is None else ops.add(made, bias)
    if node.integer("stash_type") == 1:  # mean and inverse are float32 for any x
        mean, inverse = (ops.cast(each, "float32") for each in (mean, inverse))
    return made, mean, inverse


def _wide(x: Tensor) -> Tensor:
    return ops.cast(x, "float32") if is_half(x.dtype) else x


@converter("RMSNormalization", since=23)
def rms_norm(node: Node, data: Value, scale: Value) -> Tensor:
    x, weight = tensor(data), tensor(scale)
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    eps = node.number("epsilon")
    if weight.shape == x.shape[axis:] and weight.dtype == x.dtype:
        return F.rms_norm(x, weight.shape, weight, eps)
    wide = _wide(x)
    square = ops.mean(ops.square(wide), tuple(range(axis, x.ndim)), keepdims=True)
    made = ops.multiply(wide, ops.rsqrt(ops.add_scalar(square, eps)))
    return ops.multiply(ops.cast(made, weight.dtype), weight)


@converter("GroupNormalization", since=18)
def group_norm_by_groups(node: Node, data: Value, scale: Value, shift: Value) -> Tensor:
    x = tensor(data)
    each = x.shape[1] // node.integer("num_groups")
    weight, bias = (ops.repeat_interleave(tensor(value), each, 0) for value in (scale, shift))
    return F.group_norm(x, node.integer("num_groups"), weight, bias, node.number("epsilon"))


@converter("GroupNormalization", since=21)
def group_norm(node: Node, data: Value, scale: Value, shift: Value) -> Tensor:
    groups, eps = node.integer("num_groups"), node.number("epsilon")
    return F.group_norm(tensor(data), groups, tensor(scale), tensor(shift), eps)


@converter("MeanVarianceNormalization", since=9)
def mean_variance_norm(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    axes = normal_axes(node, node.integers("axes", (0, 2, 3)), x.ndim)
    centred = ops.subtract(x, ops.mean(x, axes, keepdims=True))
    variance = ops.mean(ops.square(centred), axes, keepdims=True)
    return ops.divide(centred, ops.add_scalar(ops.sqrt(variance), 1e-9))


@converter("LpNormalization", since=1)
def lp_norm(node: Node, data: Value) -> Tensor:
    x, p = tensor(data), node.integer("p")
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    if p not in (1, 2):
        raise node.invalid(f"p is {p}, not 1 or 2")
    size = ops.sum(ops.abs(x) if p == 1 else ops.square(x), axis, keepdims=True)
    size = size if p == 1 else ops.sqrt(size)
    empty = ops.equal(size, 0.0)  # a vector of zeros stays a vector of zeros
    return ops.divide(x, ops.where(empty, ops.add_scalar(size, 1.0), size))


@converter("LRN", since=1)
def local_response_norm(node: Node, data: Value) -> Tensor:
    x, size = tensor(data), node.integer("size")
    alpha, beta, bias = (node.number(name) for name in ("alpha", "beta", "bias"))
    sides = (size - 1) // 2, size - 1 - (size - 1) // 2
    if isinstance(x.shape[1], int):  # there are no channels further away
        sides = min(sides[0], x.shape[1]), min(sides[1], x.shape[1])
    squares = padded(ops.square(x), [sides, *[(0, 0)] * (x.ndim - 2)])
    total = squares[:, : x.shape[1]]
    for i in range(1, sum(sides) + 1):
        total = ops.add(total, squares[:, i : i + x.shape[1]])
    scale = ops.add_scalar(ops.mul_scalar(total, alpha / size), bias)
    return ops.divide(x, ops.power_scalar(scale, beta))


# Softmax and related functions


def hardmax_of(x: Tensor, axis: int) -> Tensor:
    """Return 1 at the first largest element of `x` along `axis`, 0 elsewhere."""
    if x.shape[axis] == 0:  # there is no largest element
        return x
    moved = ops.swapaxes(x, axis, -1)
    hot = ops.one_hot(ops.argmax(moved, -1), x.shape[axis], x.dtype)
    return ops.swapaxes(hot, axis, -1)


_ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    "Softmax": ops.softmax,
    "LogSoftmax": ops.logsoftmax,
    "Hardmax": hardmax_of,
}


@converter(*_ALONG, since=1)
def along_matrix_rows(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    if axis == x.ndim - 1:
        return _ALONG[node.op_type](x, axis)
    rows = ops.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return ops.reshape(_ALONG[node.op_type](rows, 1), x.shape)


@converter(*_ALONG, since=13)
def along_axis(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    return _ALONG[node.op_type](x, normal_axis(node, node.integer("axis"), x.ndim))
