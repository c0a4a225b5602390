"""Converters of elementwise arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import FLOATING
from ...conversion.integers import divide_towards_zero, integer_power
from ...conversion.values import Value
from ...sizes.dims import Expression
from ..operands import Number, arithmetic, cast, computed, is_tensor
from ..program import Node
from ..registry import converter


@converter("aten.add", "prims.add")
def add(node: Node, x: Any, other: Any, alpha: Number = 1) -> Tensor:
    if node.dtype == "bool":
        a, b = (cast(each, "bool") for each in (x, other))
        return ops.logical_or(a, b) if alpha else a
    if alpha == 1:
        return arithmetic(node, ops.add, x, other)
    return computed(node, lambda a, b: ops.add(a, ops.multiply(b, cast(alpha, b.dtype))), x, other)


@converter("aten.sub", "prims.sub")
def subtract(node: Node, x: Any, other: Any, alpha: Number = 1) -> Tensor:
    if alpha == 1:
        return arithmetic(node, ops.subtract, x, other)
    return computed(
        node, lambda a, b: ops.subtract(a, ops.multiply(b, cast(alpha, b.dtype))), x, other
    )


@converter("aten.rsub")
def subtract_from(node: Node, x: Any, other: Any, alpha: Number = 1) -> Tensor:
    return subtract(node, other, x, alpha)


@converter("prims.fma")
def multiply_add(node: Node, x: Value, y: Value, z: Value) -> Tensor:
    """Return x * y + z."""
    a, b, c = (cast(each, node.dtype) for each in (x, y, z))
    return ops.add(ops.multiply(a, b), c)


@converter("aten.mul", "prims.mul")
def multiply(node: Node, x: Any, other: Any) -> Tensor:
    if node.dtype == "bool":
        return ops.logical_and(cast(x, "bool"), cast(other, "bool"))
    return arithmetic(node, ops.multiply, x, other)


@converter("aten.div", "aten.true_divide")
def divide(node: Node, x: Any, other: Any, rounding_mode: str | None = None) -> Tensor:
    """Return the float quotient, or with a `rounding_mode` the quotient rounded towards 0 or -inf,
    in the operands' dtype."""
    if rounding_mode is None:
        return arithmetic(node, ops.divide, x, other)
    if rounding_mode == "floor":
        return floor_divide(node, x, other)
    if node.dtype in FLOATING:
        return computed(node, lambda a, b: ops.trunc(ops.divide(a, b)), x, other)
    return divide_towards_zero(cast(x, node.dtype), cast(other, node.dtype))


@converter("prims.div")
def divide_in_dtype(node: Node, x: Any, other: Any) -> Tensor:
    return divide(node, x, other, None if node.dtype in FLOATING else "trunc")


@converter("aten.floor_divide")
def floor_divide(node: Node, x: Any, other: Any) -> Tensor:
    return arithmetic(node, ops.floor_divide, x, other)


@converter("aten.remainder", "prims.remainder")
def remainder(node: Node, x: Any, other: Any) -> Tensor:
    """Return the remainder. The operands are first rounded to the result's dtype, even a number
    that is combined with a half-precision tensor."""
    return ops.remainder(cast(x, node.dtype), cast(other, node.dtype))


@converter("aten.fmod", "prims.fmod")
def fmod(node: Node, x: Any, other: Any) -> Tensor:
    return ops.fmod(cast(x, node.dtype), cast(other, node.dtype))


@converter("aten.square")
def square(node: Node, x: Value) -> Tensor:
    given = cast(x, node.dtype)
    return ops.multiply(given, given)


@converter("aten.pow", "prims.pow")
def power(node: Node, base: Any, exponent: Any) -> Tensor:
    """Raise to powers. Integer powers wrap around; a negative exponent gives 0 for all integer
    bases except 1 and -1."""
    if node.dtype not in FLOATING:
        return _integer_power(cast(base, node.dtype), exponent)
    if isinstance(exponent, (bool, int, float)):
        if abs(exponent) == 0.5 and node.dtype == "float16":
            # PyTorch calls pow for float16, whose result at -inf differs from sqrt's.
            given = cast(base, node.dtype)
            made = ops.sqrt(given) if exponent > 0 else ops.rsqrt(given)
            return ops.where(ops.isinf(given), float("inf") if exponent > 0 else 0.0, made)
        if exponent == -0.5:
            return ops.rsqrt(cast(base, node.dtype))
        if exponent == -1:
            return ops.reciprocal(cast(base, node.dtype))
        return computed(node, lambda x: ops.power_scalar(x, float(exponent)), base)
    return computed(node, ops.power, base, exponent)


def _integer_power(base: Tensor, exponent: Any) -> Tensor:
    if not is_tensor(exponent) and not isinstance(exponent, Expression):
        return ops.power_scalar(base, int(exponent))
    powers = cast(exponent, base.dtype)
    return integer_power(base, powers, int(np.iinfo(base.dtype).max).bit_length())


@converter("aten.maximum", "aten.max.other", "prims.maximum")
def maximum(node: Node, x: Value, other: Value) -> Tensor:
    return ops.maximum(cast(x, node.dtype), cast(other, node.dtype))


@converter("aten.minimum", "aten.min.other", "prims.minimum")
def minimum(node: Node, x: Value, other: Value) -> Tensor:
    return ops.minimum(cast(x, node.dtype), cast(other, node.dtype))


@converter("aten.fmax", "prims.fmax")
def fmax(node: Node, x: Value, other: Value) -> Tensor:
    """Return the larger of two elements; if one is NaN, the other."""
    a, b = (cast(each, node.dtype) for each in (x, other))
    return ops.where(ops.logical_or(ops.greater_equal(a, b), ops.isnan(b)), a, b)


@converter("aten.fmin", "prims.fmin")
def fmin(node: Node, x: Value, other: Value) -> Tensor:
    """Return the smaller of two elements; if one is NaN, the other."""
    a, b = (cast(each, node.dtype) for each in (x, other))
    return ops.where(ops.logical_or(ops.less_equal(a, b), ops.isnan(b)), a, b)


@converter("aten.clamp", "aten.clip")
def clamp(node: Node, x: Value, low: Any = None, high: Any = None) -> Tensor:
    """Clip x to bounds. The result is NaN where x or a bound is NaN, and `high` where `high` is
    below `low`."""
    made = cast(x, node.dtype)
    if low is not None:
        made = _bounded("greater_equal", made, low)
    return made if high is None else _bounded("less_equal", made, high)


@converter("aten.clamp_min")
def clamp_min(node: Node, x: Value, low: Any) -> Tensor:
    return clamp(node, x, low)


@converter("aten.clamp_max")
def clamp_max(node: Node, x: Value, high: Any) -> Tensor:
    return clamp(node, x, None, high)


def _bounded(side: str, x: Tensor, bound: Any) -> Tensor:
    if not is_tensor(bound) and bound == bound and x.dtype in FLOATING:
        limits = (bound, None) if side == "greater_equal" else (None, bound)
        return ops.clip(x, *map(_number, limits))
    limit = cast(bound, x.dtype)
    kept = ops.compare(side, x, limit)
    if x.dtype in FLOATING:
        kept = ops.logical_or(kept, ops.isnan(x))
    return ops.where(kept, x, limit)


def _number(bound: Any) -> float | None:
    return None if bound is None else float(bound)


@converter("aten.lerp")
def lerp(node: Node, start: Value, end: Value, weight: Any) -> Tensor:
    """Return start + weight * (end - start), computed from the nearer end like PyTorch."""

    def mixed(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        apart = ops.subtract(b, a)
        near = ops.add(a, ops.multiply(w, apart))
        far = ops.subtract(b, ops.multiply(apart, ops.subtract(1.0, w)))
        if not is_tensor(weight):
            return near if abs(weight) < 0.5 else far
        return ops.where(ops.less(ops.abs(w), 0.5), near, far)

    return computed(node, mixed, start, end, weight)
