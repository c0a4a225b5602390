"""Arithmetic of integers that converters compose of needle's ops."""

from __future__ import annotations

from .. import ops
from ..autograd.tensor import Tensor


def divide_towards_zero(a: Tensor, b: Tensor) -> Tensor:
    """The quotient of integers, rounded towards 0."""
    return ops.floor_divide(ops.subtract(a, ops.fmod(a, b)), b)


def integer_power(base: Tensor, exponent: Tensor, bits: int) -> Tensor:
    """Integers to the power of integers, by squaring, modulo the range of base's dtype; 0 for
    negative exponents of all but 1 and -1. Only the lowest bits of an exponent count, so many."""
    made, square = ops.add(ops.multiply(base, 0), 1), base
    for i in range(bits):
        taken = ops.equal(ops.bitwise_and(ops.right_shift(exponent, i), 1), 1)
        made = ops.where(taken, ops.multiply(made, square), made)
        if i + 1 < bits:
            square = ops.multiply(square, square)
    if exponent.dtype.startswith("uint"):
        return made
    is_unit = ops.equal(base, 1)
    if not base.dtype.startswith("uint"):
        is_unit = ops.logical_or(is_unit, ops.equal(base, -1))
    return ops.where(ops.logical_or(is_unit, ops.greater_equal(exponent, 0)), made, 0)
