"""Judge results: how they differ from expected ones, and by how much they may differ.

All checks of compiled code's results call `compare`: the check at the first compile, the self test,
the search's gate, the parity ladder, the campaign, the lab and the benchmarks. This module needs
only NumPy. `needle.testing`, which imports nothing from needle_tvm, judges eager results in the
same way; tests/needle_runtime/artifact/test_tolerance.py checks both on the same cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from needle_runtime.target.precision import FLOAT32

Array = np.ndarray[Any, Any]

# The largest relative error of rounding to nearest. NumPy supports bfloat16 only through ml_dtypes,
# which may be missing.
UNIT_ROUNDOFF = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# The error of a sum of K rounded products is about eps * sqrt(K) for random data (Higham, "Accuracy
# and Stability of Numerical Algorithms", 2nd ed., section 4.2 and its probabilistic remark). The
# factor allows for larger errors, which are rare, and for a few roundings in an epilogue.
_FACTOR = 8.0

# The tolerance for comparing a whole float32 model with another framework, if nothing else is
# known. Rounding errors stay below it; only a wrong set-up exceeds it.
MODEL = 1e-4


def relative_tolerance(dtype: str, reduction_length: int, layers: int = 1) -> float:
    """Return the allowed difference relative to the largest magnitude of the result.

    `reduction_length` is the number of terms of the longest sum, and `layers` the number of such
    sums in a chain, where each uses the one before. For an integer `dtype` the result is 0:
    integers must be equal.
    """
    if dtype in UNIT_ROUNDOFF:
        eps = 2 * UNIT_ROUNDOFF[dtype]
    elif np.dtype(dtype).kind == "f":
        eps = float(np.finfo(dtype).eps)
    else:
        return 0.0
    return _FACTOR * eps * math.sqrt(max(1, reduction_length)) * layers


def accumulated_tolerance(dtypes: Iterable[str], sums: Iterable[tuple[str, int]]) -> float:
    """Return the allowed difference of a function's result relative to its largest magnitude.

    `dtypes` are the dtypes to which its results and intermediate values are rounded. `sums` are its
    reductions, each with the dtype of its accumulator and its number of terms; their errors add up.
    `relative_tolerance` gives the bound for a sum; rounding a value once more counts as a sum of
    one term in its dtype. The result is 0 for functions that only use integers.
    """
    rounding = max((relative_tolerance(dtype, 1) for dtype in dtypes), default=0.0)
    return rounding + sum(relative_tolerance(dtype, terms) for dtype, terms in sums if terms > 1)


_MISSED = 1e-3  # the probability that chance alone exceeds `operand_tolerance` in one tensor


def operand_tolerance(precision: str, terms: int, results: int) -> float:
    """Return the largest change that rounding both operands of a matmul to `precision` may cause,
    relative to the largest result; 0 for float32.

    Each of the K = `terms` terms t_k of a sum changes by at most 2 u t_k, where u is the unit
    roundoff. So a sum changes by at most 2 u sqrt(K) |t|. If roundings are independent, it changes
    by at most 2 u lambda |t|, except with probability 2 exp(-lambda^2 / 2) (Higham and Mary, "A New
    Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41, 2019). Lambda is
    chosen so that with probability 1/1000 some of the `results` exceed the bound. |t|, the
    Euclidean norm of the terms, is the typical size of a sum of terms with random signs, so the
    largest result is no smaller.
    """
    unit = UNIT_ROUNDOFF.get(precision, 0.0)
    spread = math.sqrt(2 * math.log(2 * max(1, results) / _MISSED))
    return 2 * unit * min(math.sqrt(max(1, terms)), spread)


def estimated_tolerances(
    outputs: Sequence[Mapping[str, Any]],
    params: Sequence[Mapping[str, Any]],
    precision: str = FLOAT32,
) -> list[float]:
    """Return, for each of `outputs`, the allowed difference between two computations, relative to
    the output's magnitude, if only the model's signature (`outputs`, `params`, `precision`) is
    known.

    Every weight with at least two axes counts as a layer. All layers' sums are assumed to be as
    long as the longest sum that any of the weights allows.
    """
    weights = [spec["shape"] for spec in params if len(spec["shape"]) > 1 and all(spec["shape"])]
    longest = max((math.prod(shape) // min(shape) for shape in weights), default=1)
    layers = max(1, len(weights))
    return [
        2 * relative_tolerance(spec["dtype"], longest, layers)
        + layers * operand_tolerance(precision, longest, math.prod(spec["shape"]))
        for spec in outputs
    ]


@dataclass(frozen=True)
class Comparison:
    """The difference between a result and the expected one.

    `absolute` is the largest difference of an element, and `relative` is that difference relative
    to the scale. Both are infinite if a shape, a dtype, an integer, a bool, a NaN or an infinity
    differs. `wrong` is a mask of the elements that differ by more than their bounds, and `what`
    describes them: their number, and the first one. `what` is empty if the result is correct.
    """

    absolute: float
    relative: float
    wrong: Array
    what: str

    @property
    def right(self) -> bool:
        """Whether shape and dtype are correct and every element is within its bound."""
        return not self.what


def compare(
    expected: Array,
    found: Array,
    bound: float | Array = 0.0,
    *,
    scale: float | None = None,
    same_dtype: bool = True,
    others: Sequence[Array] = (),
    known: bool | Array = True,
) -> Comparison:
    """Compare a result `found` with the `expected` one.

    A floating or complex element may be off by `bound` times `scale`. The scale is one number for
    the whole array, since a sum that cancels to nearly zero carries the rounding errors of its
    large terms. None means the largest finite magnitude of `expected`, or 1 if that is 0. NaNs and
    infinities must be at the same positions; integers and bools must be equal.

    With `same_dtype` False, the widths of dtypes may differ, for an `expected` that was computed in
    a wider dtype. An element that agrees with one of `others` is also correct. Elements that are
    not `known` are not compared.
    """
    expected, found = np.asarray(expected), np.asarray(found)
    kinds = [_kind(array.dtype) for array in (expected, found)]
    description = ""
    if expected.shape != found.shape:
        description = f"shape {found.shape}, expected {expected.shape}"
    elif kinds[0] != kinds[1] or (same_dtype and expected.dtype != found.dtype):
        description = f"dtype {found.dtype}, expected {expected.dtype}"
    if description:
        return Comparison(math.inf, math.inf, np.ones(found.shape, bool), description)
    if scale is None:
        scale = (largest_magnitude(expected) if kinds[0] in "fc" else 0.0) or 1.0
    allowed = bound * scale
    wrong, gap = _apart(expected, found, allowed)
    for other in others if wrong.any() else ():
        also, its_gap = _apart(other, found, allowed)
        gap = np.where(wrong & ~also, its_gap, gap)
        wrong &= also
    wrong &= known
    absolute = float(gap.max(initial=0.0, where=known))
    relative = absolute / scale if scale else math.inf if absolute else 0.0
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        description = f"{np.count_nonzero(wrong)} of {wrong.size} elements differ; at {list(at)} "
        description += f"{_text(found[at])}, expected {_text(expected[at])}"
        if kinds[0] in "fc":
            description += f" within {np.broadcast_to(allowed, wrong.shape)[at]:.3g}"
    return Comparison(absolute, relative, wrong, description)


def worst(expected: Sequence[Array], found: Sequence[Array]) -> float:
    """Return the largest relative difference among several results, whose dtypes may differ in
    width; infinite if there are more or fewer results than expected."""
    if len(expected) != len(found):
        return math.inf
    pairs = zip(expected, found, strict=True)
    return max((compare(a, b, same_dtype=False).relative for a, b in pairs), default=0.0)


def largest_magnitude(values: Array) -> float:
    """Return the largest finite magnitude in an array, 0 if it has none."""
    with np.errstate(all="ignore"):
        wide = np.abs(_wide(values))
    return float(wide.max(initial=0.0, where=np.isfinite(wide)))


def identical(one: Array, other: Array) -> Array:
    """Return the mask of floating elements that are equal, or both NaN."""
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))


def _apart(expected: Array, found: Array, allowed: float | Array) -> tuple[Array, Array]:
    """Return (mask of elements that differ by more than `allowed`, differences)."""
    if _kind(expected.dtype) not in "fc":
        if expected.dtype == np.bool_:  # compare bytes, since any byte but 0 reads as True
            expected, found = expected.view(np.uint8), found.view(np.uint8)
        wrong = np.asarray(found != expected)
        return wrong, np.where(wrong, math.inf, 0.0)
    want, have = _wide(expected), _wide(found)
    with np.errstate(all="ignore"):
        gap = np.asarray(np.abs(have - want))
        wrong = np.asarray(~(gap <= allowed))
        if wrong.any():  # expected NaNs and infinities are not wrong
            same = identical(have, want)
            wrong &= ~same
            gap = np.where(same, 0.0, np.where(np.isnan(gap), math.inf, gap))
    return wrong, gap


def _kind(dtype: np.dtype[Any]) -> str:
    """Return the kind of a dtype: "c", "f" (bfloat16 too), "b" or "i"."""
    return {"u": "i", "V": "f"}.get(dtype.kind, dtype.kind)


def _wide(array: Array) -> Array:
    return np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)


def _text(value: Any) -> str:
    return str(value) if value.dtype.kind in "iubc" else f"{float(value):.9g}"
