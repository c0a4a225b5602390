"""How far a rounded result may lie from the exact one. No needle, no TVM."""

from __future__ import annotations

import math
from collections.abc import Iterable

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


def accumulated_tolerance(dtypes: Iterable[str], sums: Iterable[tuple[str, int]]) -> float:
    """Allowed difference of a function's result relative to its largest magnitude.

    `dtypes` are those its results and intermediate values are rounded to, `sums` its reductions,
    each the dtype it accumulates in and its number of terms: their errors add up. Integers alone:
    0. The bound for a sum is the one of `relative_tolerance`; rounding each value once more counts
    as a sum of one term in its dtype.
    """
    rounding = max((relative_tolerance(dtype, 1) for dtype in dtypes), default=0.0)
    return rounding + sum(relative_tolerance(dtype, terms) for dtype, terms in sums if terms > 1)
