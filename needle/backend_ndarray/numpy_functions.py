"""Array functions that NumPy lacks and the reference device needs."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np


def sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def erf(x: Any) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype("float64"))).astype(x.dtype)


def erfinv(x: Any) -> Any:
    return np.asarray(np.frompyfunc(_erfinv, 1, 1)(x.astype("float64"))).astype(x.dtype)


def _erfinv(x: float) -> float:
    """Start from a quantile of the normal distribution and take two Newton steps, which use erfc in
    the tails."""
    if not -1 < x < 1:
        return x * math.inf if abs(x) == 1 else math.nan
    tail = 1 - abs(x)
    y = -math.sqrt(0.5) * NormalDist().inv_cdf(tail / 2)
    for _ in range(2):
        error = math.erf(y) - abs(x) if tail > 0.5 else tail - math.erfc(y)
        y -= error * math.exp(y * y) * math.sqrt(math.pi) / 2
    return math.copysign(y, x)


def rint(x: Any) -> Any:
    return np.rint(x) if x.dtype.kind == "f" else x


def atan2(a: Any, b: Any) -> Any:
    whole = np.result_type(a, b).kind in "biu"  # NumPy would use a narrow float
    return np.arctan2(a, b, dtype="float64") if whole else np.arctan2(a, b)


def relu_grad(g: Any, y: Any) -> np.ndarray[Any, Any]:
    dtype = np.result_type(g, y)  # np.where would not convert Python numbers to this dtype
    g, y = np.asarray(g, dtype), np.asarray(y, dtype)
    return np.where(y > 0, g, np.zeros((), dtype))
