"""Converters of reductions along axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod as product
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...common.state import state
from ...conversion.values import Value, size_tensor, tensor
from ...sizes.dims import Expression
from ..operands import axes_of, cast, wide
from ..program import Node
from ..registry import converter

Axes = Any  # an axis, a tuple of axes, or None


def _count(x: Tensor, axes: tuple[int, ...]) -> Any:
    """Return the number of elements that each result is computed from."""
    return product(x.shape[axis] for axis in axes)


def _is_empty(count: Any) -> bool:
    return isinstance(count, int) and count == 0


# Sums and products


@converter("aten.sum.default")
def sum_all(node: Node, x: Value, dtype: str | None = None) -> Tensor:
    return sum_along(node, x, None, False, dtype)


@converter("aten.sum.dim_IntList")
def sum_along(
    node: Node, x: Value, dim: Axes, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    source = tensor(x) if dtype is None else cast(x, dtype)
    return ops.cast(ops.summation(source, axes_of(source, dim), keepdim), node.dtype)


@converter("aten.nansum")
def nansum(
    node: Node, x: Value, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    """Return the sum of the elements that are not NaN."""
    found = tensor(x)
    if is_floating(found.dtype):
        found = ops.where(ops.isnan(found), 0.0, found)
    return sum_along(node, found, dim, keepdim, dtype)


@converter("aten.mean.default")
def mean_all(node: Node, x: Value, dtype: str | None = None) -> Tensor:
    return mean_along(node, x, None, False, dtype)


@converter("aten.mean.dim")
def mean_along(
    node: Node, x: Value, dim: Axes, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    source = cast(x, node.dtype)
    return ops.mean(source, axes_of(source, dim), keepdim)


@converter("aten.nanmean")
def nanmean(
    node: Node, x: Value, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    """Return the mean of the elements that are not NaN."""
    source = wide(cast(x, node.dtype))
    axes, missing = axes_of(source, dim), ops.isnan(source)
    total = ops.summation(ops.where(missing, 0.0, source), axes, keepdim)
    count = ops.summation(ops.logical_not(missing), axes, keepdim)
    return ops.cast(ops.divide(total, ops.cast(count, total.dtype)), node.dtype)


@converter("aten.prod.default")
def prod_all(node: Node, x: Value, dtype: str | None = None) -> Tensor:
    return prod_along(node, x, None, False, dtype)


@converter("aten.prod.dim_int")
def prod_along(
    node: Node, x: Value, dim: Axes, keepdim: bool = False, dtype: str | None = None
) -> Tensor:
    """Return the product in the result's dtype, which is int64 for integers."""
    source = cast(x, node.dtype)
    return ops.cast(ops.prod(wide(source), axes_of(source, dim), keepdim), node.dtype)


# Any and all


@converter("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_of(node: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return ops.cast(ops.any(tensor(x), axes_of(x, dim), keepdim), node.dtype)


@converter("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_of(node: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return ops.cast(ops.all(tensor(x), axes_of(x, dim), keepdim), node.dtype)


@converter("aten.count_nonzero")
def count_nonzero(node: Node, x: Value, dim: Axes = None) -> Tensor:
    return ops.count_nonzero(tensor(x), axes_of(x, dim))


# Extremes


def _largest(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.any(x, axes, keep) if x.dtype == "bool" else ops.max(x, axes, keep)


def _least(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return ops.all(x, axes, keep) if x.dtype == "bool" else ops.min(x, axes, keep)


@converter("aten.amax", "aten.max.default")
def amax(node: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _largest(tensor(x), axes_of(x, dim), keepdim)


@converter("aten.amin", "aten.min.default")
def amin(node: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _least(tensor(x), axes_of(x, dim), keepdim)


@converter("aten.aminmax")
def aminmax(node: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    axes = axes_of(x, dim)
    return _least(tensor(x), axes, keepdim), _largest(tensor(x), axes, keepdim)


def _placed(
    x: Tensor,
    dim: int,
    keepdim: bool,
    extreme: Callable[[Tensor, tuple[int, ...], bool], Tensor],
    place: Callable[..., Tensor],
) -> tuple[Tensor, Tensor]:
    """Return the extreme elements along an axis, and their first positions."""
    if not x.ndim:
        return x, ops.cast(ops.mul_scalar(ops.cast(x, "bool"), 0), "int64")
    (axis,) = axes_of(x, dim)
    where = place(x, axis, keepdim)
    if not (x.requires_grad and state.grad):
        return extreme(x, (axis,), keepdim), where
    # Only this position gets the gradient, even if other elements are equal.
    rows = where if keepdim else ops.unsqueeze(where, axis)
    found = ops.take_along_axis(x, rows, axis)
    return found if keepdim else ops.squeeze(found, axis), where


@converter("aten.max.dim")
def max_along(node: Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _placed(tensor(x), dim, keepdim, _largest, ops.argmax)


@converter("aten.min.dim")
def min_along(node: Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _placed(tensor(x), dim, keepdim, _least, ops.argmin)


def _place(x: Value, dim: int | None, keepdim: bool, find: Callable[..., Tensor]) -> Tensor:
    source = tensor(x)
    if not source.ndim:
        return ops.reshape(find(ops.reshape(source, (1,)), 0), ())
    if dim is not None:
        return find(source, dim % source.ndim, keepdim)
    found = find(source)
    return ops.reshape(found, (1,) * source.ndim) if keepdim else found


@converter("aten.argmax")
def argmax(node: Node, x: Value, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place(x, dim, keepdim, ops.argmax)


@converter("aten.argmin")
def argmin(node: Node, x: Value, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place(x, dim, keepdim, ops.argmin)


# Variances


def _variance(x: Tensor, axes: tuple[int, ...], keepdim: bool, correction: Any) -> Tensor:
    """Return the sum of squared distances from the mean, divided by max(0, n - correction)."""
    count, lost = _count(x, axes), 1 if correction is None else correction
    whole = int(lost) == lost
    if whole and isinstance(count, int) and count > lost >= 0:
        return ops.var(x, axes, keepdim, int(lost))
    if whole and isinstance(count, Expression) and count.bounds[0] > lost >= 0:
        return ops.var(x, axes, keepdim, int(lost))
    centred = ops.subtract(x, ops.mean(x, axes, True))
    total = ops.summation(ops.square(centred), axes, keepdim)
    divisor = ops.add_scalar(ops.cast(size_tensor(count), x.dtype), -float(lost))
    return ops.divide(total, ops.maximum(divisor, 0.0))


def _var(
    node: Node, x: Value, dim: Axes, correction: Any, keepdim: bool
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    source = wide(x)
    axes = axes_of(source, dim)
    return _variance(source, axes, keepdim, correction), source, axes


@converter("aten.var.correction")
def var(
    node: Node, x: Value, dim: Axes = None, correction: Any = None, keepdim: bool = False
) -> Tensor:
    return ops.cast(_var(node, x, dim, correction, keepdim)[0], node.dtype)


@converter("aten.std.correction")
def std(
    node: Node, x: Value, dim: Axes = None, correction: Any = None, keepdim: bool = False
) -> Tensor:
    return ops.cast(root(_var(node, x, dim, correction, keepdim)[0]), node.dtype)


@converter("aten.var_mean.correction", "aten.std_mean.correction")
def spread_and_mean(
    node: Node, x: Value, dim: Axes = None, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    spread, source, axes = _var(node, x, dim, correction, keepdim)
    spread = root(spread) if "std" in node.operator else spread
    mean = ops.mean(source, axes, keepdim)
    return ops.cast(spread, node.dtype), ops.cast(mean, node.dtype)


def root(x: Tensor) -> Tensor:
    """Return the square root of `x`. Its gradient at 0 is 0, not infinity."""
    zero = ops.equal(x, 0.0)
    return ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, x)))


# Norms and sums of exponentials


@converter("aten.linalg_vector_norm")
def vector_norm(
    node: Node,
    x: Value,
    ord: float = 2.0,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: str | None = None,
) -> Tensor:
    source = wide(x if dtype is None else cast(x, dtype))
    axes = axes_of(source, dim)
    if ord > 0 and _is_empty(_count(source, axes)):
        return ops.cast(ops.summation(source, axes, keepdim), node.dtype)
    return ops.cast(ops.norm(source, float(ord), axes, keepdim), node.dtype)


@converter("aten.logsumexp")
def logsumexp(node: Node, x: Value, dim: Axes, keepdim: bool = False) -> Tensor:
    source = cast(x, node.dtype)
    axes = axes_of(source, dim)
    if _is_empty(_count(source, axes)):
        return ops.log(ops.summation(source, axes, keepdim))
    return ops.logsumexp(source, axes, keepdim)
