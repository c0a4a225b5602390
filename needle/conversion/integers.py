"""Integer arithmetic that converters compose from needle's ops."""

from __future__ import annotations

from .. import ops
from ..autograd.tensor import Tensor
from ..loops import scan


def divide_towards_zero(a: Tensor, b: Tensor) -> Tensor:
    """Return the quotient of integers, rounded towards 0."""
    return ops.floor_divide(ops.subtract(a, ops.fmod(a, b)), b)


def integer_power(base: Tensor, exponent: Tensor, bits: int) -> Tensor:
    """Return `base` to the power of `exponent`, both integers, by repeated squaring. Products wrap
    around in base's dtype. A negative exponent gives 0 unless the base is 1 or -1. Only the lowest
    `bits` bits of an exponent count."""
    first = ops.add(base, ops.cast(ops.multiply(exponent, 0), base.dtype))  # has the result's shape
    exponents = ops.add(exponent, ops.cast(ops.multiply(base, 0), exponent.dtype))

    def step(state: tuple[Tensor, Tensor, Tensor], _: None) -> tuple[tuple[Tensor, ...], None]:
        product, square, left = state
        taken = ops.equal(ops.bitwise_and(left, 1), 1)
        product = ops.where(taken, ops.multiply(product, square), product)
        return (product, ops.multiply(square, square), ops.right_shift(left, 1)), None

    one = ops.add(ops.multiply(first, 0), 1)
    # This is a loop because LLVM needs eight seconds to compile 63 squarings as one expression.
    (product, _, _), _ = scan(step, (one, first, exponents), length=bits)
    if exponent.dtype.startswith("uint"):
        return product
    is_unit = ops.equal(base, 1)
    if not base.dtype.startswith("uint"):
        is_unit = ops.logical_or(is_unit, ops.equal(base, -1))
    return ops.where(ops.logical_or(is_unit, ops.greater_equal(exponent, 0)), product, 0)
