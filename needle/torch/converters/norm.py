"""Converters of normalizations."""

from __future__ import annotations

from math import prod
from typing import Any

from ... import init, ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import finfo
from ...conversion.values import Value, tensor
from ...nn import functional as F
from ..operands import cast, wide
from ..program import Node
from ..registry import converter


def _optional(value: Value | None, dtype: str) -> Tensor | None:
    return None if value is None else cast(value, dtype)


@converter("aten.layer_norm")
def layer_norm(
    node: Node,
    x: Value,
    shape: tuple[Any, ...],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    source = wide(x)
    w, b = (_optional(each, source.dtype) for each in (weight, bias))
    if eps >= 0 and not _is_empty(source):
        return ops.cast(F.layer_norm(source, shape, w, b, eps), node.dtype)
    made = _normalized(source, tuple(range(-len(shape), 0)), eps)
    made = made if w is None else ops.multiply(made, w)
    return ops.cast(made if b is None else ops.add(made, b), node.dtype)


def _normalized(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Normalize like `ops.normalize`, for any eps and extent."""
    centred = ops.subtract(x, ops.mean(x, axes, True))
    variance = ops.mean(ops.square(centred), axes, True)
    return ops.multiply(centred, ops.rsqrt(ops.add_scalar(variance, eps)))


def _is_empty(x: Tensor) -> bool:
    return any(isinstance(n, int) and n == 0 for n in x.shape)


@converter("aten.native_layer_norm")
def native_layer_norm(
    node: Node,
    x: Value,
    shape: tuple[Any, ...],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized x, its mean, and 1 / its standard deviation."""
    source = wide(x)
    made = layer_norm(node, source, shape, weight, bias, eps)
    return made, *_moments(node, source, tuple(range(-len(shape), 0)), eps)


def _moments(
    node: Node, source: Tensor, axes: tuple[int, ...], eps: float
) -> tuple[Tensor, Tensor]:
    """Return the mean and 1 / the standard deviation, the other results of a norm's node."""
    inverse = ops.rsqrt(ops.add_scalar(ops.var(source, axes, True), eps))
    mean = ops.mean(source, axes, True)
    return tuple(  # type: ignore[return-value]
        ops.reshape(ops.cast(each, wanted.dtype), wanted.shape)
        for each, wanted in ((mean, node.result(1)), (inverse, node.result(2)))
    )


@converter("aten.group_norm")
def group_norm(
    node: Node,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    source = wide(x)
    w, b = (_optional(each, source.dtype) for each in (weight, bias))
    if eps >= 0 and not _is_empty(source):
        return ops.cast(F.group_norm(source, groups, w, b, eps), node.dtype)
    if _is_empty(source):
        return ops.cast(source, node.dtype)
    rows = ops.reshape(source, (source.shape[0], groups, -1))
    made = ops.reshape(_normalized(rows, (2,), eps), source.shape)
    column = (source.shape[1], *[1] * (source.ndim - 2))
    made = made if w is None else ops.multiply(made, ops.reshape(w, column))
    return ops.cast(made if b is None else ops.add(made, ops.reshape(b, column)), node.dtype)


@converter("aten.native_group_norm")
def native_group_norm(
    node: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Any,
    channels: Any,
    positions: Any,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized x, the mean of each group, and 1 / its standard deviation."""
    source = wide(x)
    made = group_norm(node, source, groups, weight, bias, eps)
    grouped = ops.reshape(source, (batch, groups, channels // groups * positions))
    return made, *_moments(node, grouped, (2,), eps)


@converter("aten.rms_norm", "aten._fused_rms_norm")
def rms_norm(
    node: Node,
    x: Value,
    shape: tuple[Any, ...],
    weight: Value | None = None,
    eps: float | None = None,
) -> Any:
    """Divide x by the root of its mean square. `_fused_rms_norm` also returns 1 / the root."""
    source = wide(x)
    w = _optional(weight, source.dtype)
    if eps is None:
        eps = float(finfo(source.dtype).eps)
    if eps >= 0 and not node.several:
        return ops.cast(F.rms_norm(source, shape, w, eps), node.dtype)
    square = ops.mean(ops.square(source), tuple(range(-len(shape), 0)), True)
    inverse = ops.rsqrt(ops.add_scalar(square, eps))
    made = ops.multiply(source, inverse)
    made = ops.cast(made if w is None else ops.multiply(made, w), node.dtype)
    if not node.several:
        return made
    return made, ops.cast(inverse, node.result(1).dtype)


# Batch norm


def _by_statistics(
    node: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> Tensor:
    """Apply batch norm with given statistics."""
    source = wide(x)
    m, v = (cast(each, source.dtype) for each in (mean, variance))
    w, b = (_optional(each, source.dtype) for each in (weight, bias))
    return ops.cast(F.batch_norm(source, m, v, w, b, eps=eps), node.dtype)


@converter("aten._native_batch_norm_legit_no_training")
def batch_norm(
    node: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = ops.cast(ops.reshape(tensor(mean), (-1,))[:0], node.result(1).dtype)
    return _by_statistics(node, x, weight, bias, mean, variance, eps), nothing, nothing


@converter("aten._native_batch_norm_legit.no_stats")
def own_statistics(
    node: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply batch norm with the statistics of the batch. Return the result, the mean, and 1 / the
    standard deviation."""
    made, mean, variance = _trained(node, x, weight, bias, eps)
    return made, *_saved(node, mean, variance, eps)


@converter("aten._native_batch_norm_legit_functional")
def batch_norm_training(
    node: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_variance: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Return the result, the mean, 1 / the standard deviation, the new running mean, and the new
    running variance."""
    if not training:
        made = _by_statistics(node, x, weight, bias, running_mean, running_variance, eps)
        nothing = ops.cast(tensor(running_mean)[:0], node.result(1).dtype)
        return made, nothing, nothing, tensor(running_mean), tensor(running_variance)
    made, mean, variance = _trained(node, x, weight, bias, eps)
    source = tensor(x)
    count = prod((source.shape[0], *source.shape[2:]))
    unbiased = ops.divide(ops.mul_scalar(variance, count), count - 1) if count != 1 else variance
    return (
        made,
        *_saved(node, mean, variance, eps),
        _tracked(running_mean, mean, momentum),
        _tracked(running_variance, unbiased, momentum),
    )


def _trained(
    node: Node, x: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply batch norm with the statistics of the batch. Return the result, the mean, and the
    biased variance."""
    source = wide(x)
    channels = source.shape[1]
    w, b = (_optional(each, source.dtype) for each in (weight, bias))
    w = init.ones(channels, dtype=source.dtype) if w is None else w
    b = init.zeros(channels, dtype=source.dtype) if b is None else b
    made, mean, variance = ops.batch_norm_train(source, w, b, 1, eps).tuple()
    return ops.cast(made, node.dtype), mean, variance


def _saved(node: Node, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    inverse = ops.rsqrt(ops.add_scalar(variance, eps))
    return ops.cast(mean, node.result(1).dtype), ops.cast(inverse, node.result(2).dtype)


def _tracked(running: Value, batch: Tensor, momentum: float) -> Tensor:
    """Return a running statistic, updated with a batch's statistic."""
    old = tensor(running)
    kept = ops.mul_scalar(ops.cast(old, batch.dtype), 1 - momentum)
    return ops.cast(ops.add(kept, ops.mul_scalar(batch, momentum)), old.dtype)
