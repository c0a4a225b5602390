"""Write a gate; its expected results are those of the unscheduled function in float64.

`measure.steps.prepare` calls `write`. It first compares the float64 results with the function's
results in its own dtypes. If these differ because an intermediate value overflows or an
approximation of `tanh` is coarse, the fault is the function's and not a candidate's. Such a case is
changed, left out, or given the tolerance that the function itself needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from needle_runtime._tvm.ffi import load_ffi
from needle_runtime.artifact import bfloat16
from needle_runtime.artifact.tolerance import compare, largest_magnitude
from needle_tvm._tvm.names import INTERNAL_ERROR, IRModule, Target, make_target, target_fields
from needle_tvm.kernels.blocks import work
from needle_tvm.tir.functions import in_float64
from needle_tvm.tune import library
from needle_tvm.tune.gate import analysis, cases
from needle_tvm.tune.gate.gate import ORDINARY, Array, Expected, Parameter, Writer, is_float

FLOAT64 = "float64"
_BYTES = 512 << 20  # limit for all cases together
_SECONDS = 60.0  # after this time, no further case is started
_OWN_ERROR = 8.0  # allowed error of the function itself, in tolerances; tanh may be coarse
_CONDITION = 64.0  # largest ratio of intermediate values to the result
_HEADROOM = 2  # powers of two between a large case and the first overflow
_DRAWS = 4  # the most draws of ordinary inputs, until no result cancels to nearly zero
_QUICK_WORK = 1 << 24  # scalar operations; with fewer, LLVM's optimiser takes more than it saves


@dataclass(frozen=True)
class _Function:
    """An unscheduled function, compiled in its own dtypes and in float64 (None if impossible)."""

    parameters: tuple[Parameter, ...]
    own: Callable[..., object]
    wide: Callable[..., object] | None
    tolerance: float
    decides: bool

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the results in the function's own dtypes."""
        return _call(self.own, self.parameters, inputs, lambda dtype: dtype)

    def reference(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the reference results; floating-point results are float64."""
        if self.wide is None:
            return [_float64(result) for result in self.run(inputs)]
        wide = _call(self.wide, self.parameters, cases.widened(inputs), _wide_dtype)
        outputs = [each for each in self.parameters if each.output]
        return [_in_range(a, each.dtype) for a, each in zip(wide, outputs, strict=True)]


def write(module: IRModule, target: Target, folder: Path, seed: int) -> dict[str, Any]:
    """Write the gate of `module`'s only function, called "main"; return `Gate.facts`.

    Raises TuningError if the function has no fixed shapes or writes no result.
    """
    function = _compile(module, target, folder)
    parameters = function.parameters
    writer = Writer(folder, parameters)
    ranges = analysis.integer_ranges(module["main"])
    tf32 = analysis.multiplies_tf32(module["main"])
    left_out: dict[str, str] = {}
    for draw in range(_DRAWS):
        inputs = cases.ordinary(parameters, ranges, (seed, draw), tf32=tf32)
        expected = _expected(function, inputs, seed, may_jump=True)
        if expected is not None and all(_conditioned(each) for each in expected):
            break
    if expected is None:  # float64 and the function's own dtypes disagree
        function = _Function(parameters, function.own, None, function.tolerance, function.decides)
        expected = _expected(function, inputs, seed, may_jump=True)
    assert expected is not None  # the results are compared with themselves
    writer.add(ORDINARY, inputs, expected)
    started = time.monotonic()
    size = sum(each.nbytes * (2 if each.output else 1) for each in parameters)
    for case in cases.CASES[1:]:
        if size * (len(writer.cases) + 1) > _BYTES:
            left_out[case] = f"each case takes {size >> 20} MiB"
        elif time.monotonic() - started > _SECONDS:
            left_out[case] = "the function takes too long"
        else:
            made = _case(function, case, inputs, seed)
            if isinstance(made, str):
                left_out[case] = made
            else:
                writer.add(case, *made)
    facts = {
        "tolerance": function.tolerance,
        "reference": FLOAT64 if function.wide is not None else _own_dtype(parameters),
        "seed": seed,
        "decides": function.decides,
        "left_out": left_out,
    }
    writer.finish(facts)
    return {**facts, "cases": writer.cases}


def _case(
    function: _Function, case: str, inputs: Sequence[Array], seed: int
) -> tuple[list[Array], list[Expected]] | str:
    """Return (inputs, expected results) of a case other than ORDINARY, or the reason why the case
    is left out."""
    if not any(is_float(array.dtype.name) for array in inputs):
        return "no input is a floating-point number"
    tried: list[list[Array]] = []
    if case == cases.ZEROS:
        tried = [cases.zeros(inputs, (seed, 1))]
    elif case == cases.SPECIAL:
        tried = cases.special(inputs, (seed, 2))
    else:
        sign = 1 if case == cases.LARGE else -1
        for exponent in cases.exponents(function.parameters):
            beyond = cases.scaled(inputs, sign * (exponent + _HEADROOM))
            if all(_usual(result) for result in function.run(beyond)):
                tried.append(cases.scaled(inputs, sign * exponent))
    if not tried:
        return "no scale leaves the results finite and normal"
    chosen: tuple[list[Array], list[Expected]] | None = None
    for arrays in tried:
        expected = _expected(function, arrays, seed)
        if expected is None:
            continue
        if case == cases.SPECIAL:
            chosen = chosen or (arrays, expected)
            if not any(np.isnan(e.values).all() for e in expected if e.values.dtype == np.float64):
                return arrays, expected
        elif all(_conditioned(each) for each in expected):
            return arrays, expected
    return chosen or "the function's own results are too far from its results in float64"


def _usual(result: Array) -> bool:
    """Return whether a result has no infinities, and is so large that underflows do not matter."""
    if not is_float(result.dtype.name) or not result.size:
        return True
    wide = np.abs(result.astype(np.float64))
    largest = float(wide.max(initial=0.0, where=~np.isnan(wide)))
    information = ml_dtypes.finfo(result.dtype)
    least = float(information.smallest_normal) / float(information.eps)
    return least <= largest < math.inf


def _conditioned(expected: Expected) -> bool:
    """Return whether the scale is about the result's size, so that no larger terms cancelled."""
    if expected.values.dtype != np.float64 or expected.scale == 0:
        return True
    return expected.scale <= _CONDITION * largest_magnitude(expected.values)


def _expected(
    function: _Function, inputs: Sequence[Array], seed: int, *, may_jump: bool = False
) -> list[Expected] | None:
    """Return the expected values of each output, or None if the function itself is too inaccurate.

    If rounding can decide between two results (`may_jump`), the function's own result is accepted
    too, and so is the result for slightly perturbed inputs. In cases at the limits of arithmetic,
    poor conditioning may have the same effect; there the function counts as too inaccurate.

    The scale is the largest finite magnitude of the result. If inputs that are off by up to their
    epsilon move the result by more than epsilon * scale, the scale is that distance / epsilon. So a
    sum that happens to cancel, or exp of a large number, need not be more precise than its inputs
    allow.
    """
    values = function.reference(inputs)
    own = [_float64(result) for result in function.run(inputs)]
    moved: list[Array] | None = None
    if function.wide is not None:
        shifted, eps = cases.perturbed(inputs, (seed, 3))
        if eps:
            moved = _call(function.wide, function.parameters, shifted, _wide_dtype)
    outputs = [parameter for parameter in function.parameters if parameter.output]
    result = []
    for number, parameter in enumerate(outputs):
        others = [own[number]] + ([moved[number]] if moved is not None else [])
        value = values[number]
        if not is_float(parameter.dtype):
            differing = tuple(a for a in others if not np.array_equal(a, value))
            if differing and not function.decides:
                return None
            result.append(Expected(value, 0.0, 0.0, differing))
            continue
        others = [_in_range(a, parameter.dtype) for a in others]
        scale = largest_magnitude(value)
        if moved is not None and not function.decides:
            scale = max(scale, _largest_gap(others[1], value) / eps)
        wide_of_it = _OWN_ERROR * function.tolerance * scale
        jumps = [compare(value, a, wide_of_it, scale=1.0).wrong for a in others]
        if jumps[0].any() and not (function.decides and may_jump):
            return None
        alternatives: tuple[Array, ...] = ()
        if function.decides:
            alternatives = tuple(a for a, j in zip(others, jumps, strict=True) if j.any())
        off = _largest_gap(np.where(jumps[0], value, others[0]), value)
        tolerance = max(function.tolerance, 2 * off / scale if scale else 0.0)
        result.append(Expected(value, scale, tolerance, alternatives))
    return result


def _largest_gap(found: Array, value: Array) -> float:
    with np.errstate(invalid="ignore"):
        return largest_magnitude(found - value)


def _compile(module: IRModule, target: Target, folder: Path) -> _Function:
    function = module["main"]
    parameters = analysis.parameters_of(function)
    folder.mkdir(parents=True, exist_ok=True)
    if work(function) <= _QUICK_WORK:
        target = make_target({**target_fields(target), "opt-level": 0})
    own = _loaded(module, target, folder / "own.so")
    try:
        wide = _loaded(in_float64(module), target, folder / "wide.so")
    except (ValueError, TypeError, INTERNAL_ERROR):  # such as bit operations: fixed to one dtype
        wide = None
    return _Function(
        parameters, own, wide, analysis.tolerance(function), analysis.decides(function)
    )


def _loaded(module: IRModule, target: Target, path: Path) -> Any:
    """Compile a module to a library and return its function "main". Compiling in memory would be
    much slower."""
    library.write(module, target, path)
    function = library.load(path)["main"]
    path.unlink()
    return function


def _own_dtype(parameters: Sequence[Parameter]) -> str:
    return next(each.dtype for each in parameters if each.output)


def _wide_dtype(dtype: str) -> str:
    return FLOAT64 if is_float(dtype) else dtype


def _float64(array: Array) -> Array:
    return array.astype(np.float64) if is_float(array.dtype.name) else array


def _in_range(array: Array, dtype: str) -> Array:
    """Return the float64 values, replaced by infinities where `dtype` would overflow."""
    if not is_float(dtype) or dtype == FLOAT64:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = array.astype(np.dtype(dtype)).astype(np.float64)
    return np.where(np.isinf(rounded), rounded, array)


def _call(
    run: Callable[..., object],
    parameters: Sequence[Parameter],
    inputs: Sequence[Array],
    dtype_of: Callable[[str], str],
) -> list[Array]:
    """Call `run` with these inputs, and return the arrays that it writes."""
    ffi = load_ffi()
    remaining = iter(inputs)
    arrays = []
    for each in parameters:
        if each.output:
            arrays.append(cases.aligned_copy(np.zeros(each.shape, np.dtype(dtype_of(each.dtype)))))
        else:
            arrays.append(next(remaining))
    run(*(bfloat16.to_tensor(ffi, array) for array in arrays))
    return [a for a, each in zip(arrays, parameters, strict=True) if each.output]
