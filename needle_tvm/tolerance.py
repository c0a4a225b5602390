"""How far a rounded result may lie from the exact one. No needle, no TVM."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

# A sum of K rounded products errs by about eps * sqrt(K) for random data (Higham, "Accuracy and
# Stability of Numerical Algorithms", 2nd ed., section 4.2 and its probabilistic remark); the factor
# covers the tail and the handful of roundings of an epilogue.
_FACTOR = 8.0


def relative_tolerance(dtype: str, reduction_length: int, layers: int = 1) -> float:
    """Allowed difference relative to the largest magnitude of the result.

    `reduction_length` is the longest sum's number of terms, `layers` how many such sums feed one
    another. Integers must be equal: 0.
    """
    kind = np.dtype(dtype)
    if kind.kind != "f" and kind.name != "bfloat16":
        return 0.0
    return _FACTOR * float(ml_dtypes.finfo(kind).eps) * math.sqrt(max(1, reduction_length)) * layers
