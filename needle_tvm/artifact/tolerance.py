"""Differences between rounded results, and how large they may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from needle_tvm.target.precision import FLOAT32

# A sum of K rounded products errs by about eps * sqrt(K) for random data (Higham, "Accuracy and
# Stability of Numerical Algorithms", 2nd ed., section 4.2 and its probabilistic remark); the factor
# covers the tail and the handful of roundings of an epilogue.
_FACTOR = 8.0

_BFLOAT16_EPS = 2.0**-7  # NumPy knows the type only through ml_dtypes, which may be missing


def relative_tolerance(dtype: str, reduction_length: int, layers: int = 1) -> float:
    """Allowed difference relative to the largest magnitude of the result.

    `reduction_length` is the number of terms of the longest sum, `layers` the number of such sums
    that feed one another. Integers must be equal: 0.
    """
    kind = None if dtype == "bfloat16" else np.dtype(dtype)
    if kind is not None and kind.kind != "f":
        return 0.0
    eps = _BFLOAT16_EPS if kind is None else float(np.finfo(kind).eps)
    return _FACTOR * eps * math.sqrt(max(1, reduction_length)) * layers


def accumulated_tolerance(dtypes: Iterable[str], sums: Iterable[tuple[str, int]]) -> float:
    """Allowed difference of a function's result relative to its largest magnitude.

    `dtypes` are the dtypes its results and intermediate values are rounded to. `sums` are its
    reductions, each the dtype it accumulates in and its number of terms; their errors add up. The
    bound for a sum is that of `relative_tolerance`; rounding each value once more counts as a sum
    of one term in its dtype. Functions of integers alone get 0.
    """
    rounding = max((relative_tolerance(dtype, 1) for dtype in dtypes), default=0.0)
    return rounding + sum(relative_tolerance(dtype, terms) for dtype, terms in sums if terms > 1)


# Roundings to nearest, of relative size at most this.
_UNIT_ROUNDOFF = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}

_MISSED = 1e-3  # the probability that chance alone exceeds `operand_tolerance` in one tensor


def operand_tolerance(precision: str, terms: int, results: int) -> float:
    """The largest change that rounding both operands of a matmul to `precision` may make, relative
    to the largest result; 0 for float32.

    Each of the K = `terms` terms t_k of a sum changes by at most 2 u t_k, where u is the unit
    roundoff. So a sum changes by at most 2 u sqrt(K) |t|. If roundings are independent, it changes
    by at most 2 u lambda |t|, except with probability 2 exp(-lambda^2 / 2) (Higham and Mary, "A New
    Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41, 2019); lambda is
    chosen so that all `results` together exceed it once in a thousand times. |t|, the terms'
    Euclidean norm, is the typical size of a sum of terms with random signs, so the largest result
    is no smaller.
    """
    unit = _UNIT_ROUNDOFF.get(precision, 0.0)
    spread = math.sqrt(2 * math.log(2 * max(1, results) / _MISSED))
    return 2 * unit * min(math.sqrt(max(1, terms)), spread)


def estimated_tolerances(
    outputs: Sequence[Mapping[str, Any]],
    params: Sequence[Mapping[str, Any]],
    precision: str = FLOAT32,
) -> list[float]:
    """Allowed difference between two computations of each output, relative to its magnitude, if
    only the model's signature is known.

    Every weight of at least two axes counts as a layer whose sums are as long as any of the weights
    allows.
    """
    weights = [spec["shape"] for spec in params if len(spec["shape"]) > 1 and all(spec["shape"])]
    longest = max((math.prod(shape) // min(shape) for shape in weights), default=1)
    layers = max(1, len(weights))
    return [
        2 * relative_tolerance(spec["dtype"], longest, layers)
        + layers * operand_tolerance(precision, longest, math.prod(spec["shape"]))
        for spec in outputs
    ]


def relative_difference(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    """Largest difference relative to the largest magnitude of `expected`.

    It is infinite if shapes or dtypes differ, or NaNs or infinities are in different places.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf
    if expected.dtype.kind in "iub":
        return 0.0 if np.array_equal(expected, found) else math.inf
    want, have = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(want[~finite], have[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(have[finite]).all():
        return math.inf
    gap = float(np.abs(want[finite] - have[finite]).max(initial=0.0))
    scale = float(np.abs(want[finite]).max(initial=0.0))
    return gap / scale if scale else gap
