"""Arithmetic of integers that converters compose of needle's ops."""

from __future__ import annotations

from .. import ops
from ..tensor import Tensor


def divide_towards_zero(a: Tensor, b: Tensor) -> Tensor:
    """The quotient of integers, rounded towards 0."""
    return ops.floor_divide(ops.subtract(a, ops.fmod(a, b)), b)


def integer_power(base: Tensor, exponent: Tensor, bits: int) -> Tensor:
    """Integers to the power of exponents of at least 0 and of so many bits, by squaring, modulo the
    range of base's dtype."""
    made = ops.add(ops.multiply(base, 0), 1)
    for i in range(bits):
        taken = ops.equal(ops.bitwise_and(ops.right_shift(exponent, i), 1), 1)
        made = ops.where(taken, ops.multiply(made, base), made)
        if i + 1 < bits:
            base = ops.multiply(base, base)
    return made
