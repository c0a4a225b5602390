"""Normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ... import init, ops
from ...autograd.tensor import Tensor, overwrite
from ...backend_ndarray.arguments import count, counts, not_negative
from ...backend_ndarray.dtypes import finfo, is_floating
from ...common.state import state
from ...errors import ShapeError
from ...sizes.dims import Expression


def normalized_axes(owner: str, normalized_shape: Any) -> tuple[int, ...]:
    """Return `normalized_shape`, an int or a sequence, as a tuple. Raises TypeError or ValueError
    unless all extents are integers of at least 1."""
    shape = (
        tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    )
    for i, extent in enumerate(shape):
        if not isinstance(extent, Expression):
            counts(owner, **{f"normalized_shape[{i}]": extent})
    if not shape:
        raise ValueError(f"{owner}: normalized_shape () has no axes; it must have one or more")
    return shape


def _check_last(owner: str, x: Tensor, shape: tuple[int, ...], **given: Tensor | None) -> None:
    if x.shape[-len(shape) :] != shape:
        raise ShapeError(f"{owner}: x has shape {x.shape}; its last axes must be {shape}")
    for what, tensor in given.items():
        if tensor is not None and tensor.shape != shape:
            raise ShapeError(f"{owner}: {what} has shape {tensor.shape}, not {shape}")


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last axes of x.
    `normalized_shape` is the shape of these axes and of weight and bias (None: 1 and 0). Raises
    ShapeError for shapes that do not fit (Ba et al. 2016).

    >>> F.layer_norm(ndl.Tensor([[1.0, 3.0]]), 2).numpy().round(2).tolist()
    [[-1.0, 1.0]]
    """
    shape = normalized_axes("layer_norm", normalized_shape)
    _check_last("layer_norm", x, shape, weight=weight, bias=bias)
    if weight is None and bias is None:
        return ops.normalize(x, tuple(range(-len(shape), 0)), eps)
    count = prod(shape)
    where: dict[str, Any] = {"device": x.device, "dtype": x.dtype}
    weight = init.ones(count, **where) if weight is None else ops.reshape(weight, (count,))
    bias = init.zeros(count, **where) if bias is None else ops.reshape(bias, (count,))
    flat = ops.reshape(x, (*x.shape[: x.ndim - len(shape)], count))
    return ops.reshape(ops.layer_norm(flat, weight, bias, eps), x.shape)


def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Return x / sqrt(mean(x * x) + eps) * weight over the last axes of x. `normalized_shape` is
    the shape of these axes and of weight (None: 1). eps None means the dtype's machine epsilon.
    Raises ShapeError for shapes that do not fit (Zhang and Sennrich 2019)."""
    shape = normalized_axes("rms_norm", normalized_shape)
    _check_last("rms_norm", x, shape, weight=weight)
    if eps is None:
        eps = float(finfo(x.dtype).eps) if is_floating(x.dtype) else 0.0
    not_negative("rms_norm", "eps", eps)
    square = ops.mean(x * x, tuple(range(-len(shape), 0)), keepdims=True)
    y = x * ops.rsqrt(square + eps)
    return y if weight is None else y * weight


def _per_channel(x: Tensor, vector: Tensor) -> Tensor:
    """Return `vector` (channels,), reshaped to broadcast along the second axis of x."""
    return ops.reshape(vector, (vector.shape[0], *[1] * (x.ndim - 2)))


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Split the channels of each sample of x (N, channels, ...) into `num_groups` groups of
    adjacent channels, and normalize each group to mean 0 and variance 1. Return the result times
    weight plus bias, each (channels,) (None: 1 and 0). Raises ShapeError unless num_groups divides
    the number of channels (Wu and He 2018)."""
    counts("group_norm", num_groups=num_groups)
    if x.ndim < 2 or x.shape[1] % num_groups:
        raise ShapeError(
            f"group_norm: x has shape {x.shape}, not (N, channels, ...) with channels in "
            f"{num_groups} equal groups"
        )
    shape, channels = x.shape, x.shape[1]
    for what, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and vector.shape != (channels,):
            raise ShapeError(f"group_norm: {what} has shape {vector.shape}, not ({channels},)")
    each = channels // num_groups
    if state.trace is None:  # a trace records smaller ops, which the compiler fuses
        dtype = x.dtype if is_floating(x.dtype) else "float32"
        where: dict[str, Any] = {"device": x.device, "dtype": dtype}
        weight = init.ones(channels, **where) if weight is None else weight
        bias = init.zeros(channels, **where) if bias is None else bias
        return ops.group_norm(x, weight, bias, num_groups, eps)
    grouped = ops.reshape(x, (shape[0], num_groups, each * prod(shape[2:])))
    y = ops.reshape(ops.normalize(grouped, 2, eps), shape)
    y = y if weight is None else y * _per_channel(x, weight)
    return y if bias is None else y + _per_channel(x, bias)


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel of each sample of x (N, channels, ...) to mean 0 and variance 1.
    Return the result times weight plus bias (None: 1 and 0). All vectors are (channels,) (Ulyanov
    et al. 2016).

    With use_input_stats, running_mean and running_var, if given, are updated in place with the
    samples' average statistics, as in `batch_norm`. Otherwise they replace the samples' own
    statistics; this raises ValueError if either is None. Raises ShapeError if the vectors do not
    fit.
    """
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: x has shape {x.shape}, not (N, channels, ...)")
    given = {"running_mean": running_mean, "running_var": running_var}
    for what, vector in given.items():
        if vector is not None and vector.shape != (x.shape[1],):
            raise ShapeError(f"instance_norm: {what} has shape {vector.shape}, not {x.shape[1:2]}")
    if running_mean is None or running_var is None:
        if not use_input_stats:
            raise ValueError(
                "instance_norm: without use_input_stats, give running_mean and running_var"
            )
    elif not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
    else:
        _track_instances(x, running_mean, running_var, momentum)
    return group_norm(x, x.shape[1], weight, bias, eps)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel of x (N, channels, ...) over all other axes. Return the result times
    weight plus bias (None: 1 and 0). All vectors are (channels,) (Ioffe and Szegedy 2015).

    With `training`, or if running_mean or running_var is None, x is normalized by its own mean and
    biased variance. Otherwise it is normalized by running_mean and running_var. With `training`,
    these vectors are updated in place with the mean and the unbiased variance of x: running = (1 -
    momentum) * running + momentum * batch. Raises ShapeError for shapes that do not fit, and for an
    update from a single value per channel.
    """
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: x has shape {x.shape}, not (N, channels, ...)")
    channels = x.shape[1]
    where: dict[str, Any] = {"device": x.device, "dtype": x.dtype}
    weight = init.ones(channels, **where) if weight is None else weight
    bias = init.zeros(channels, **where) if bias is None else bias
    if training or running_mean is None or running_var is None:
        y, mean, variance = ops.batch_norm_train(x, weight, bias, 1, eps)
        if training and running_mean is not None and running_var is not None:
            unbiased = unbiased_variance("batch_norm", variance.detach(), x.size // channels)
            _track(running_mean, mean.detach(), momentum)
            _track(running_var, unbiased, momentum)
        return y
    if x.ndim == 2:
        return ops.batch_norm(x, weight, bias, running_mean, running_var, eps)
    # Put channels last, as convolutions do, so that the permutations cancel out.
    last = ops.permute(x, (0, *range(2, x.ndim), 1))
    y = ops.batch_norm(last, weight, bias, running_mean, running_var, eps)
    return ops.permute(y, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def _track_instances(x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
    """Update running statistics (channels,) with the average mean and variance of the instances of
    x (N, channels, ...)."""
    x, over = x.detach(), tuple(range(2, x.ndim))
    size = prod(x.shape[2:])
    variance = unbiased_variance("instance_norm", ops.mean(ops.var(x, over), 0), size)
    _track(running_mean, ops.mean(ops.mean(x, over), 0), momentum)
    _track(running_var, variance, momentum)


def unbiased_variance(name: str, variance: Tensor, count: int) -> Tensor:
    """Return the unbiased variance of `count` values from their biased `variance`. Raises
    ShapeError if there is only one value."""
    if count == 1:
        raise ShapeError(
            f"{name}: there is one value per channel, and one value has no variance for "
            "running_var; train with more values, or use eval mode"
        )
    return variance * (count / (count - 1))


def _track(running: Tensor, batch: Tensor, momentum: float) -> None:
    if state.recomputing:  # `checkpoint` has already counted this batch
        return
    new = running * (1 - momentum) + batch.astype(running.dtype) * momentum
    overwrite(running, new)


def normalize(x: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12) -> Any:
    """Return x / max(norm, eps), where norm is (sum of |x| ** p) ** (1 / p) along `dim`. p may be
    inf. Raises ValueError unless p is above 0.

    >>> F.normalize(ndl.Tensor([[3.0, 4.0]])).numpy().round(2)
    array([[0.6, 0.8]], dtype=float32)
    """
    if not p > 0:
        raise ValueError(f"normalize: p {p} is not above 0")
    return x / _above(ops.norm(x, p, dim, keepdims=True), eps)


def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Return x / (k + alpha * m) ** beta, where m is the mean square of `size` neighbouring
    channels of x (N, channels, ...); channels beyond the ends count as 0 (Krizhevsky et al. 2012).
    Raises ShapeError for fewer than three axes."""
    count("local_response_norm", "size", size)
    if x.ndim < 3:
        raise ShapeError(f"local_response_norm: x has shape {x.shape}, not (N, channels, ...)")
    squares = ops.pad(x * x, ((0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (x.ndim - 2)))
    means = ops.mean(ops.windows(squares, 1, size), -1)
    return x / (means * alpha + k) ** float(beta)


def _above(x: Tensor, least: float) -> Tensor:
    """Return max(x, least). No gradient flows to elements of x below least."""
    bound = init.constant(c=least, device=x.device, dtype=x.dtype)
    return ops.where(x < bound, bound, x)
