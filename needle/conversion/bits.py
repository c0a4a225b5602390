"""Conversions between elements and integers with the same bits."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import FLOATING

INTEGER_OF = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # by the number of bytes
_MANTISSA = {"float32": 23, "float64": 52}


def bits_of(x: Tensor) -> Tensor:
    """Return the bits of the elements as integers of the same width (uint8 for one byte)."""
    if x.dtype == "float16":
        return ops.cast(_bits_of_half(ops.cast(x, "float32")), "int16")
    if x.dtype == "bfloat16":
        return ops.cast(ops.right_shift(ops.bitcast(ops.cast(x, "float32")), 16), "int16")
    if x.dtype in FLOATING:
        return ops.bitcast(x)
    return ops.cast(x, INTEGER_OF[np.dtype(x.dtype).itemsize])


def of_bits(bits: Tensor, dtype: str) -> Tensor:
    """Return the elements of `dtype` with these bits; the inverse of `bits_of`."""
    if dtype == "float16":
        return ops.cast(_half_of_bits(ops.cast(bits, "int32")), dtype)
    if dtype == "bfloat16":
        wide = ops.left_shift(ops.cast(bits, "int32"), 16)
        return ops.cast(ops.bitcast(wide), dtype)
    return ops.bitcast(bits) if dtype in FLOATING else ops.cast(bits, dtype)


def _bits_of_half(x: Tensor) -> Tensor:
    """Return the float16 bits of `x` as int32. `x` holds float16 values in float32."""
    bits = ops.bitcast(x)
    size = ops.bitwise_and(bits, 0x7FFFFFFF)
    normal = ops.right_shift(ops.subtract(size, 112 << 23), 13)
    tiny = ops.cast(ops.multiply(ops.clip(ops.abs(x), 0.0, 1.0), 2.0**24), "int32")
    special = ops.bitwise_or(ops.bitwise_and(ops.right_shift(size, 13), 0x3FF), 0x7C00)
    found = ops.where(ops.less(size, 113 << 23), tiny, normal)
    found = ops.where(ops.greater_equal(size, 0x7F800000), special, found)
    return ops.bitwise_or(found, ops.bitwise_and(ops.right_shift(bits, 16), 0x8000))


def _half_of_bits(bits: Tensor) -> Tensor:
    """Return the float16 values with these bits, as float32."""
    exponent = ops.bitwise_and(ops.right_shift(bits, 10), 31)
    fraction = ops.bitwise_and(bits, 0x3FF)
    wide = ops.where(ops.equal(exponent, 31), 255, ops.add(exponent, 112))
    normal = ops.bitcast(ops.bitwise_or(ops.left_shift(wide, 23), ops.left_shift(fraction, 13)))
    tiny = ops.multiply(ops.cast(fraction, "float32"), 2.0**-24)
    found = ops.where(ops.equal(exponent, 0), tiny, normal)
    return ops.where(is_negative(ops.cast(bits, "int16")), ops.negate(found), found)


def is_negative(x: Tensor) -> Tensor:
    """Return whether the sign bit of each number is set, as it is in -0.0 and in some NaNs."""
    if x.dtype in FLOATING:
        x = ops.bitcast(x if x.dtype in _MANTISSA else ops.cast(x, "float32"))
    return ops.less(x, 0)


def power_of_two(exponent: Tensor, dtype: str) -> Tensor:
    """Return 2 to the power of `exponent`, which holds integers. The results must be normal numbers
    of `dtype`."""
    bits = np.dtype(dtype).itemsize * 8
    biased = ops.add(ops.cast(exponent, f"int{bits}"), np.finfo(dtype).maxexp - 1)
    return ops.bitcast(ops.left_shift(biased, _MANTISSA[dtype]))


def exponent_of(x: Tensor) -> Tensor:
    """Return the int32 exponents for which |x| / 2 ** exponent is in [1/2, 1); 0 if x is 0 or not
    finite."""
    mantissa, limits = _MANTISSA[x.dtype], np.finfo(x.dtype)
    tiny = ops.less(ops.abs(x), float(limits.tiny))
    scaled = ops.where(tiny, ops.multiply(x, 2.0 ** (mantissa + 1)), x)
    biased = ops.bitwise_and(ops.right_shift(ops.bitcast(scaled), mantissa), 2 * limits.maxexp - 1)
    found = ops.subtract(ops.cast(biased, "int32"), limits.maxexp - 2)
    found = ops.where(tiny, ops.subtract(found, mantissa + 1), found)
    usual = ops.logical_and(ops.isfinite(x), ops.not_equal(x, 0))
    return ops.where(usual, found, 0)
