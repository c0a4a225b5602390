"""Error bounds of functions that are not correctly rounded, in one table for all devices."""

from __future__ import annotations

# Largest error in units in the last place of the result, for (float32, float64). Every CPU device
# and instruction set stays within these bounds (test_nd_accuracy.py). Moves, comparisons, bitwise
# operations, + - * / sqrt, square, reciprocal, floor, ceil, round, trunc, abs, sign, remainders and
# integer quotients are exact: results are correctly rounded and have the same bits on every device.
ULPS: dict[str, tuple[int, int]] = {
    "exp": (4, 1),
    "expm1": (3, 1),
    "log": (4, 1),
    "log1p": (3, 1),
    "sin": (2, 1),
    "cos": (2, 1),
    "tanh": (3, 3),
    "sigmoid": (4, 3),
    "erf": (2, 2),
    "rsqrt": (2, 2),
    "exp2": (3, 1),
    "log2": (2, 1),
    "log10": (3, 2),
    "tan": (4, 1),
    "asin": (3, 1),
    "acos": (2, 1),
    "atan": (2, 1),
    "atan2": (3, 1),
    "sinh": (2, 2),
    "cosh": (3, 2),
    "asinh": (2, 2),
    "acosh": (2, 2),
    "atanh": (2, 2),
    "erfinv": (1, 6),
    "power": (2, 1),
}


# Bounds documented for CUDA's math library, where they exceed the table above.
_CUDA_ULPS = {
    "sin": (2, 2),
    "cos": (2, 2),
    "power": (2, 2),
    "tan": (4, 2),
    "asin": (3, 2),
    "acos": (2, 2),
    "atan": (2, 2),
    "atan2": (3, 2),
    "sinh": (3, 2),
    "asinh": (3, 3),
    "acosh": (4, 3),
    "atanh": (3, 2),
}


def ulps(name: str, dtype: str, device: str = "cpu") -> int:
    """Return the error bound of the function `name` with a result of `dtype` (float32 or float64)
    on `device`; 0 for exact functions."""
    bounds = ULPS.get(name, (0, 0))
    if device == "cuda":
        bounds = _CUDA_ULPS.get(name, bounds)
    return bounds[dtype == "float64"]
