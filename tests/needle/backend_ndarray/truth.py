"""Accurate values of the functions that are not correctly rounded, and distances from them.

float32 is compared with float64, and float64 with NumPy's long double (64 bits of mantissa on
x86-64, 113 on most others), whose own errors are below a thousandth of a unit in the last place.
"""

from statistics import NormalDist

import numpy as np


def wider(dtype):
    """The type in which the true values of results of `dtype` are computed."""
    return np.float64 if dtype == np.float32 else np.longdouble


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def erf(x):
    """erf by a series of positive terms (Abramowitz and Stegun, 7.1.6), where nothing cancels."""
    near = np.where(np.abs(x) < 6.5, x, 0)
    square, term = near * near, near.copy()
    total = term.copy()
    for n in range(1, 200):
        term = term * square * 2 / (2 * n + 1)
        total += term
    value = total * np.exp(-square) * 2 / np.sqrt(np.arccos(np.full((), -1, x.dtype)))
    return np.where(np.isnan(x) | (np.abs(x) < 6.5), np.where(np.isnan(x), x, value), np.sign(x))


def erfc(x):
    """1 - erf for x above 2, by a continued fraction (Abramowitz and Stegun, 7.1.14)."""
    far = np.maximum(x, 2)
    value = far
    for n in range(300, 0, -1):
        value = far + n / (2 * value)
    return np.exp(-far * far) / (value * np.sqrt(np.arccos(np.full((), -1, x.dtype))))


def erfinv(x):
    """Newton's method, from what `erf` and `erfc` say of AS 241's quantile of p in float64."""
    inside = np.abs(x) < 1
    size = np.abs(np.where(inside, x, 0))
    tail = 1 - size
    normal = np.frompyfunc(NormalDist().inv_cdf, 1, 1)
    y = -np.sqrt(0.5) * normal(tail.astype(np.float64) / 2).astype(x.dtype)
    for _ in range(3):
        error = np.where(y < 2.1, erf(y) - size, tail - erfc(y))
        y = y - error * np.exp(y * y) * np.sqrt(np.arccos(np.full((), -1, x.dtype))) / 2
    return np.where(inside, np.copysign(y, x), np.where(np.abs(x) == 1, x * np.inf, np.nan))


TRUTH = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "sigmoid": sigmoid, "erf": erf,
    "exp2": np.exp2, "log2": np.log2, "log10": np.log10, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erfinv": erfinv,
    "atan2": np.arctan2, "rsqrt": lambda x: 1 / np.sqrt(x), "power": np.power,
}  # fmt: skip


def truth(name, *operands):
    """The function's value for operands of one floating-point dtype, in the wider type."""
    with np.errstate(all="ignore"):
        return TRUTH[name](*(x.astype(wider(x.dtype)) for x in operands))


def ulps(got, exact):
    """Distance of each element from the exact value in units in the last place of got's dtype.

    It is infinite where one is NaN or infinite and the other is not the same.
    """
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        unit = np.spacing(np.abs(rounded)).astype(exact.dtype)
        # An overflow may also round to the largest number, and the other way round.
        largest = np.finfo(got.dtype).max
        unit = np.where(np.isinf(rounded), np.spacing(largest), unit)
        finite = np.where(np.isinf(got), np.copysign(exact.dtype.type(largest), got), got)
        error = np.abs(finite.astype(exact.dtype) - exact) / unit
    error = np.where(same & ~np.isfinite(error), 0, error)
    return np.where(np.isnan(error), np.inf, error).astype(np.float64)


def sweep(dtype, count):
    """About `count` numbers: all exponents and signs evenly, and more where functions bend."""
    rng = np.random.default_rng(0)
    bits = np.dtype(dtype).itemsize * 8
    any_bits = rng.integers(0, 2**bits, count // 2, dtype=f"uint{bits}").view(dtype)
    bends = [rng.uniform(-r, r, count // 8).astype(dtype) for r in (1, 5, 25, 750)]
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5]
    extremes = [getattr(np.finfo(dtype), n) for n in ("max", "min", "tiny", "smallest_subnormal")]
    return np.concatenate([any_bits, *bends, np.array([*special, *extremes], dtype)])


def pairs(dtype, count):
    """Bases and exponents whose powers are mostly finite, and any others."""
    rng = np.random.default_rng(1)
    base = np.exp(rng.uniform(-20, 20, count // 2))
    exponent = rng.uniform(-1, 1, count // 2) * np.log(np.finfo(dtype).max) / np.log(base)
    x, y = sweep(dtype, count // 2), rng.permutation(sweep(dtype, count // 2))
    return np.concatenate([base.astype(dtype), x]), np.concatenate([exponent.astype(dtype), y])
