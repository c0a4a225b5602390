"""Elementwise methods and operators of Tensor. binding.py binds them; needle.ops documents them."""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Operand, Tensor
from ..ops._operands import binary
from . import unchecked_ops as ops


class ElementwiseMethods:
    """Methods of Tensor with PyTorch's names."""

    add = ops.add
    sub = subtract = ops.subtract
    mul = multiply = ops.multiply
    div = divide = true_divide = ops.divide
    pow = power = ops.power
    neg = negate = negative = ops.negate
    eq = ops.equal
    ne = not_equal = ops.not_equal
    lt = less = ops.less
    le = less_equal = ops.less_equal
    gt = greater = ops.greater
    ge = greater_equal = ops.greater_equal
    abs = absolute = ops.abs
    sign = ops.sign
    exp = ops.exp
    log = ops.log
    tanh = ops.tanh
    sqrt = ops.sqrt
    exp2 = ops.exp2
    expm1 = ops.expm1
    log2 = ops.log2
    log10 = ops.log10
    log1p = ops.log1p
    rsqrt = ops.rsqrt
    square = ops.square
    reciprocal = ops.reciprocal
    sin = ops.sin
    cos = ops.cos
    tan = ops.tan
    asin = arcsin = ops.asin
    acos = arccos = ops.acos
    atan = arctan = ops.atan
    atan2 = arctan2 = ops.atan2
    sinh = ops.sinh
    cosh = ops.cosh
    asinh = arcsinh = ops.asinh
    acosh = arccosh = ops.acosh
    atanh = arctanh = ops.atanh
    sigmoid = ops.sigmoid
    erf = ops.erf
    erfinv = ops.erfinv
    relu = ops.relu
    floor = ops.floor
    ceil = ops.ceil
    round = ops.round
    trunc = ops.trunc
    frac = ops.frac
    clip = clamp = ops.clip
    logit = ops.logit
    logaddexp = ops.logaddexp
    addcmul = ops.addcmul
    addcdiv = ops.addcdiv
    maximum = ops.maximum
    minimum = ops.minimum
    remainder = ops.remainder
    fmod = ops.fmod
    floor_divide = ops.floor_divide
    lerp = ops.lerp
    isnan = ops.isnan
    isinf = ops.isinf
    isfinite = ops.isfinite
    nan_to_num = ops.nan_to_num
    logical_and = ops.logical_and
    logical_or = ops.logical_or
    logical_xor = ops.logical_xor
    logical_not = ops.logical_not
    bitwise_and = ops.bitwise_and
    bitwise_or = ops.bitwise_or
    bitwise_xor = ops.bitwise_xor
    bitwise_not = ops.bitwise_not
    left_shift = ops.left_shift
    right_shift = ops.right_shift

    def clamp_min(self: Tensor, min: Operand) -> Tensor:
        """Return the elements clipped from below at `min`, as `clip` does."""
        return ops.clip(self, min)

    def clamp_max(self: Tensor, max: Operand) -> Tensor:
        """Return the elements clipped from above at `max`, as `clip` does."""
        return ops.clip(self, None, max)

    def where(self: Tensor, condition: Tensor, other: Operand) -> Tensor:
        """Return this tensor's elements where `condition` holds, and `other` elsewhere."""
        return ops.where(condition, self, other)

    def __abs__(self: Tensor) -> Tensor:
        return ops.abs(self)

    def __invert__(self: Tensor) -> Tensor:
        return ops.bitwise_not(self)

    def __floordiv__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.FLOOR_DIVIDE, self, other)

    def __rfloordiv__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.FLOOR_DIVIDE, self, other, swap=True)

    def __mod__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.REMAINDER, self, other)

    def __rmod__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.REMAINDER, self, other, swap=True)

    def __and__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.BITWISE_AND, self, other)

    def __rand__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.BITWISE_AND, self, other, swap=True)

    def __or__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.BITWISE_OR, self, other)

    def __ror__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.BITWISE_OR, self, other, swap=True)

    def __xor__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.BITWISE_XOR, self, other)

    def __rxor__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.BITWISE_XOR, self, other, swap=True)

    def __lshift__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.LEFT_SHIFT, self, other)

    def __rlshift__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.LEFT_SHIFT, self, other, swap=True)

    def __rshift__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.RIGHT_SHIFT, self, other)

    def __rrshift__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.RIGHT_SHIFT, self, other, swap=True)
