"""Converters of functions of one or two tensors. Most of them are a single needle op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value
from ...loops import scan
from ..operands import cast, computed
from ..program import Node
from ..registry import converter

# Functions of one tensor, computed in the dtype of the result: integers and bools become floats.
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": ops.abs,
    "acos": ops.acos,
    "acosh": ops.acosh,
    "asin": ops.asin,
    "asinh": ops.asinh,
    "atan": ops.atan,
    "atanh": ops.atanh,
    "ceil": ops.ceil,
    "cos": ops.cos,
    "cosh": ops.cosh,
    "erf": ops.erf,
    "erfinv": ops.erfinv,
    "exp": ops.exp,
    "exp2": ops.exp2,
    "expm1": ops.expm1,
    "floor": ops.floor,
    "log": ops.log,
    "log10": ops.log10,
    "log1p": ops.log1p,
    "log2": ops.log2,
    "neg": ops.negate,
    "reciprocal": ops.reciprocal,
    "rsqrt": ops.rsqrt,
    "sigmoid": ops.sigmoid,
    "sin": ops.sin,
    "sinh": ops.sinh,
    "sqrt": ops.sqrt,
    "tan": ops.tan,
    "tanh": ops.tanh,
    "trunc": ops.trunc,
}


@converter(*(f"{space}.{name}" for space in ("aten", "prims") for name in _FUNCTIONS))
def function(node: Node, x: Value) -> Tensor:
    return _FUNCTIONS[node.operator.split(".")[1]](cast(x, node.dtype))


@converter("aten.sign", "aten.sgn", "prims.sign")
def sign(node: Node, x: Value) -> Tensor:
    """Return the sign, which is 0 for NaN."""
    given = cast(x, node.dtype)
    if node.dtype == "bool":
        return given
    above, below = (ops.cast(ops.compare(kind, given, 0), node.dtype) for kind in _SIDES)
    return above if node.dtype.startswith("uint") else ops.subtract(above, below)


_SIDES = ("greater", "less")


@converter("aten.atan2", "prims.atan2")
def atan2(node: Node, y: Any, x: Any) -> Tensor:
    return ops.atan2(cast(y, node.dtype), cast(x, node.dtype))


@converter("aten.logaddexp")
def log_add_exp(node: Node, x: Any, y: Any) -> Tensor:
    def combined(a: Tensor, b: Tensor) -> Tensor:
        apart = ops.where(ops.equal(a, b), 0.0, ops.negate(ops.abs(ops.subtract(a, b))))
        return ops.add(ops.maximum(a, b), ops.log1p(ops.exp(apart)))  # 0 for equal infinities

    return computed(node, combined, x, y)


@converter("aten.hypot", "prims.hypot")
def hypot(node: Node, x: Any, y: Any) -> Tensor:
    """Return sqrt(x * x + y * y), computed from the ratio to the larger operand so that no square
    overflows."""

    def length(a: Tensor, b: Tensor) -> Tensor:
        a, b = ops.abs(a), ops.abs(b)
        large, small = ops.maximum(a, b), ops.minimum(a, b)
        ratio = ops.divide(small, ops.where(ops.equal(large, 0), 1.0, large))
        made = ops.multiply(large, ops.sqrt(ops.add(ops.multiply(ratio, ratio), 1.0)))
        infinite = ops.logical_or(ops.isinf(a), ops.isinf(b))
        return ops.where(infinite, float("inf"), made)

    return computed(node, length, x, y)


@converter("aten.ldexp")
def load_exponent(node: Node, x: Any, exponent: Any) -> Tensor:
    """Return x times a power of 2 that is itself rounded to the result's dtype, as in PyTorch."""
    powers = ops.exp2(cast(exponent, node.dtype))
    return ops.multiply(cast(x, node.dtype), powers)


@converter("aten.angle")
def angle(node: Node, x: Value) -> Tensor:
    """Return the angle of a real number: pi below 0, else 0."""
    given = cast(x, node.dtype)
    turned = ops.where(ops.less(given, 0), math.pi, 0.0)
    return ops.where(ops.isnan(given), given, ops.cast(turned, node.dtype))


@converter("aten.gcd", "prims.gcd")
def greatest_common_divisor(node: Node, x: Value, other: Value) -> Tensor:
    """Run Euclid's algorithm with the largest number of steps that numbers of the dtype may
    need."""
    a, b = (ops.abs(cast(each, node.dtype)) for each in (x, other))

    def step(state: tuple[Tensor, Tensor], _: None) -> tuple[tuple[Tensor, Tensor], None]:
        a, b = state
        done = ops.equal(b, 0)
        return (ops.where(done, a, b), ops.fmod(a, ops.where(done, 1, b))), None

    both = ops.add(a, ops.multiply(b, 0)), ops.add(b, ops.multiply(a, 0))  # in the result's shape
    (divisor, _), _ = scan(step, both, length=math.ceil(np.iinfo(node.dtype).bits * 1.45))
    return divisor


@converter("aten.sinc")
def sinc(node: Node, x: Value) -> Tensor:
    """Return sin(pi x) / (pi x), and 1 at 0."""

    def of(x: Tensor) -> Tensor:
        zero = ops.equal(x, 0)
        angle = ops.mul_scalar(ops.where(zero, 1.0, x), math.pi)
        return ops.where(zero, 1.0, ops.divide(ops.sin(angle), angle))

    return computed(node, of, x)


@converter("aten.xlogy", "aten.special_xlog1py")
def times_logarithm(node: Node, x: Any, y: Any) -> Tensor:
    """Return x * log(y), or x * log(1 + y), and 0 where x is 0, unless y is NaN."""
    is_plain = node.operator.startswith("aten.xlogy")
    logarithm, end = (ops.log, 0.0) if is_plain else (ops.log1p, -1.0)

    def product(x: Tensor, y: Tensor) -> Tensor:
        undefined = ops.logical_or(ops.less_equal(y, end), ops.equal(y, math.inf))
        zero = ops.logical_and(ops.equal(x, 0), undefined)
        return ops.where(zero, 0.0, ops.multiply(x, logarithm(ops.where(zero, 1.0, y))))

    return computed(node, product, x, y)
