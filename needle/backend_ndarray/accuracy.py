"""How far off the functions that are not correctly rounded may be: one table for all devices."""

from __future__ import annotations

# Largest distance from the exact value in units in the last place of the result, for (float32,
# float64). Every CPU device and instruction set keeps to it: see test_nd_accuracy.py.
# Movement, comparison and + - * / sqrt, square, reciprocal, floor, ceil, abs, sign are exact:
# correctly rounded, and the same bits on every device.
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
    "power": (2, 1),
}


# Where CUDA's library, by its documentation, is not within the table.
_CUDA_ULPS = {"sin": (2, 2), "cos": (2, 2), "power": (2, 2)}


def ulps(name: str, dtype: str, device: str = "cpu") -> int:
    """The table's bound for a function whose result is float32 or float64; 0 for exact ones."""
    bounds = ULPS.get(name, (0, 0))
    if device == "cuda":
        bounds = _CUDA_ULPS.get(name, bounds)
    return bounds[dtype == "float64"]
