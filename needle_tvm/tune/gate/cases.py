"""Generates the inputs of a gate's cases: ordinary values, and values at the limits of arithmetic.

`reference` computes the expected results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from needle_runtime.memory import aligned_copy
from needle_tvm.tune.gate.gate import ORDINARY, Array, Parameter, is_float

SPECIAL, TINY, LARGE, ZEROS = "special", "tiny", "large", "zeros"
# The cases, in order of importance: there may not be room or time for all.
CASES = (ORDINARY, SPECIAL, TINY, LARGE, ZEROS)

_SPECIALS = (np.nan, np.inf, -np.inf)
_TF32 = np.uint32(0xFFFFE000)  # the bits of a float32 that tf32 keeps
_ZERO_SHARE = 0.25  # fraction of the values that become +0.0, and fraction that become -0.0
_FRACTIONS = (0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625, 0.03)  # of the largest exponent


def ordinary(
    parameters: Sequence[Parameter],
    ranges: Mapping[str, tuple[int, int]],
    seed: Sequence[int],
    *,
    tf32: bool = False,
) -> list[Array]:
    """Return standard normal values for the inputs; integers are uniform within their range.

    `ranges` maps the name of an integer input to (lowest value, highest value + 1); integer inputs
    without a range are 0 or 1. With `tf32`, every float32 input is truncated to a tf32 number.
    """
    rng = np.random.default_rng(seed)
    arrays = []
    for parameter in parameters:
        if parameter.output:
            continue
        dtype = np.dtype(parameter.dtype)
        if is_float(parameter.dtype):
            array = rng.standard_normal(parameter.shape, np.float32)
            if tf32:
                array = (array.view(np.uint32) & _TF32).view(np.float32)
            array = array.astype(dtype)
        else:
            array = rng.integers(*ranges.get(parameter.name, (0, 2)), parameter.shape).astype(dtype)
        arrays.append(aligned_copy(np.asarray(array)))
    return arrays


def scaled(arrays: Sequence[Array], exponent: int) -> list[Array]:
    """Return the inputs, with floating-point inputs multiplied by 2**`exponent`."""
    return [
        aligned_copy(np.ldexp(a.astype(np.float64), exponent).astype(a.dtype))
        if is_float(a.dtype.name)
        else a
        for a in arrays
    ]


def exponents(parameters: Sequence[Parameter]) -> list[int]:
    """Return the exponents of the powers of two that may scale a function's inputs, largest
    first."""
    floats = [np.dtype(each.dtype) for each in parameters if is_float(each.dtype)]
    if not floats:
        return []
    most = min(int(ml_dtypes.finfo(dtype).maxexp) for dtype in floats)
    return sorted({1, 2, *(max(1, int(most * part)) for part in _FRACTIONS)}, reverse=True)


def zeros(arrays: Sequence[Array], seed: Sequence[int]) -> list[Array]:
    """Return the inputs with +0.0 and -0.0 scattered among their values."""
    rng = np.random.default_rng(seed)
    mixed = []
    for array in arrays:
        copy = aligned_copy(array)
        if is_float(array.dtype.name):
            draw = rng.random(array.shape)
            copy[draw < 2 * _ZERO_SHARE] = 0.0
            copy[draw < _ZERO_SHARE] = -0.0
        mixed.append(copy)
    return mixed


def special(arrays: Sequence[Array], seed: Sequence[int]) -> list[list[Array]]:
    """Return two alternative lists of inputs: with a NaN and both infinities in every input, or in
    only one.

    If one sum covers a whole input, the first alternative leaves no finite result. The second puts
    these values in the largest input. This is often the weight, whose elements each affect only one
    column of the result.
    """
    floats = [i for i, a in enumerate(arrays) if is_float(a.dtype.name) and a.size]
    if not floats:
        return []
    largest = max(floats, key=lambda i: arrays[i].size)
    return [_strewn(arrays, floats, seed), _strewn(arrays, [largest], seed)]


def _strewn(arrays: Sequence[Array], places: Sequence[int], seed: Sequence[int]) -> list[Array]:
    rng = np.random.default_rng(seed)
    strewn = list(arrays)
    for order, i in enumerate(places):
        copy = aligned_copy(arrays[i])
        where = rng.choice(copy.size, min(copy.size, len(_SPECIALS)), replace=False)
        values = np.roll(np.array(_SPECIALS), order)[: len(where)]
        copy.reshape(-1)[where] = values.astype(copy.dtype)
        strewn[i] = copy
    return strewn


def perturbed(arrays: Sequence[Array], seed: Sequence[int]) -> tuple[list[Array], float]:
    """Return the inputs in float64, perturbed within their precision, and the largest epsilon.

    The relative change of each number is at most its dtype's epsilon. The returned epsilon is 0 if
    no input is floating-point.
    """
    rng = np.random.default_rng(seed)
    result: list[Any] = []
    most = 0.0
    for array in arrays:
        if not is_float(array.dtype.name):
            result.append(array)
            continue
        eps = float(ml_dtypes.finfo(array.dtype).eps)
        most = max(most, eps)
        noise = 1 + eps * rng.uniform(-1, 1, array.shape)
        result.append(aligned_copy(array.astype(np.float64) * noise))
    return result, most


def widened(arrays: Sequence[Array]) -> list[Array]:
    """Return the inputs, with floating-point inputs converted to float64."""
    return [aligned_copy(a.astype(np.float64)) if is_float(a.dtype.name) else a for a in arrays]
