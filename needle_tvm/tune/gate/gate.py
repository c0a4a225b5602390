"""Store a gate's test cases, and compare a candidate's results with them.

`reference.write` writes a gate, a folder with inputs and their expected results; `measure.steps`
loads it as a `Gate` and checks candidates against it. `measure.cluster` copies the folder to other
machines. All arrays are .npy files, which are mapped into memory when they are needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from needle_runtime.artifact.tolerance import Comparison, compare
from needle_runtime.memory import ALIGNMENT, aligned_copy
from needle_runtime.process import atomic
from needle_tvm.errors import TuningError

Array = np.ndarray[Any, Any]
Call = Callable[[list[Array], list[Array]], object]  # takes inputs, and outputs to write to

ORDINARY = "ordinary"  # the case that is timed; every gate has it
_FACTS = "gate.json"
_FORMAT = 1
_GUARD = 16 << 10  # bytes before and after a result, to detect writes a few rows out of bounds
_UNWRITTEN = 0xFF  # every byte of a result before the call: a NaN that arithmetic never produces
_RUNS = 2  # runs of the ordinary case, since one run may not reveal a race between threads


@dataclass(frozen=True)
class Parameter:
    """One of a function's arrays; `output` says whether the function writes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    output: bool

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Expected:
    """The expected values of one output in one case.

    `values` are float64 (integers and booleans keep their dtype). An element may differ by up to
    `tolerance * scale` from its value; NaNs and infinities must be the same. An element may instead
    match the value at its position in an array of `alternatives`; there are such arrays if rounding
    decides between two correct answers.
    """

    values: Array
    scale: float
    tolerance: float
    alternatives: tuple[Array, ...] = ()

    def compare(self, found: Array) -> Comparison:
        """Compare an output with the expected values."""
        return compare(
            self.values,
            found,
            self.tolerance,
            scale=self.scale,
            same_dtype=False,
            others=self.alternatives,
        )


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    `difference` is the largest difference in all cases, relative to the case's scale; it is
    infinite if a NaN or infinity is missing or unexpected. `wrong` is one line that says what is
    wrong, or empty.
    """

    difference: float
    wrong: str = ""

    @property
    def passed(self) -> bool:
        """Whether the candidate may be used."""
        return not self.wrong


class Gate:
    """The cases in a folder that a `Writer` has written.

    `facts` describes them: "tolerance" (relative; the largest of all outputs), "reference" (the
    dtype in which the expected results were computed: "float64" if possible), "seed", and
    "left_out" ({case: reason}).
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.facts = dict(facts)
        self.parameters = tuple(
            Parameter(each["name"], tuple(each["shape"]), each["dtype"], each["output"])
            for each in facts["parameters"]
        )
        self.cases: tuple[str, ...] = tuple(facts["cases"])

    @classmethod
    def load(cls, folder: str | Path) -> Gate:
        """Load the gate in `folder`. Raises TuningError if it is missing or cannot be read."""
        path = Path(folder) / _FACTS
        try:
            facts = json.loads(path.read_text())
            if facts["format"] != _FORMAT:
                raise ValueError(f"format {facts['format']!r}, this needle reads {_FORMAT}")
            return cls(Path(folder), facts)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TuningError(f"{path}: is not a readable gate ({error})") from error

    def inputs(self, case: str) -> list[Array]:
        """Return a case's inputs, 64-byte aligned; writing to them does not change the files."""
        return [
            _read(self.folder / f"{case}.{i}.npy", each.dtype, "c")
            for i, each in enumerate(self.parameters)
            if not each.output
        ]

    def outputs(self) -> list[Guarded]:
        """Return guarded memory for one call's results."""
        return [Guarded(each.shape, each.dtype) for each in self.parameters if each.output]

    def arguments(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Return inputs and outputs in the order of the function's parameters."""
        remaining = {False: iter(inputs), True: iter(outputs)}
        return [next(remaining[each.output]) for each in self.parameters]

    def check(self, call: Call) -> Verdict:
        """Run every case through `call` and compare the results, up to the first wrong case.

        `call` receives C-contiguous arrays, 64-byte aligned. Its exceptions are not caught.
        """
        worst = 0.0
        for case in (*self.cases, *[ORDINARY] * (_RUNS - 1)):
            inputs, outputs = self.inputs(case), self.outputs()
            call(inputs, [each.array for each in outputs])
            verdict = self.compare(case, inputs, outputs)
            worst = max(worst, verdict.difference)
            if not verdict.passed:
                return Verdict(worst, verdict.wrong)
        return Verdict(worst)

    def compare(self, case: str, inputs: Sequence[Array], outputs: Sequence[Guarded]) -> Verdict:
        """Judge the arrays of a `case` after a call."""
        worst = 0.0
        names = [p.name for p in self.parameters if not p.output]
        kept = self.inputs(case)
        for name, array, before in zip(names, inputs, kept, strict=True):
            if not np.array_equal(_bytes(array), _bytes(before)):
                return Verdict(math.inf, f"{case}: input {name!r} was changed")
        for number, output in enumerate(outputs):
            where = f"{case}: output {number}"
            if output.spilled():
                return Verdict(math.inf, f"{where}: memory outside of it was written")
            expected = self._expected(case, number)
            compared = expected.compare(output.array)
            worst = max(worst, compared.relative)
            bad = np.asarray(compared.wrong | output.surely_unwritten())
            if bad.any():
                unwritten = np.argwhere(bad & output.unwritten())
                at = f" at {unwritten[0].tolist()}: was never written;" if len(unwritten) else ":"
                return Verdict(worst, f"{where}{at} {compared.what}")
        return Verdict(worst)

    def _expected(self, case: str, number: int) -> Expected:
        facts = self.facts["cases"][case][number]
        dtype = [each.dtype for each in self.parameters if each.output][number]
        wide = "float64" if is_float(dtype) else dtype
        names = _files(case, number, *[None] * (1 + facts["alternatives"]))
        values, *alternatives = (_read(self.folder / name, wide, "r") for name in names)
        return Expected(values, facts["scale"], facts["tolerance"], tuple(alternatives))


class Guarded:
    """Memory for one result, prefilled to detect unwritten elements, with a guard on each side.

    `array` is the result, 64-byte aligned; the function must not write outside it.
    """

    def __init__(self, shape: Sequence[int], dtype: str) -> None:
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        memory = np.empty(nbytes + 2 * _GUARD + ALIGNMENT, np.uint8)
        start = _GUARD + -(memory.ctypes.data + _GUARD) % ALIGNMENT
        memory.fill(_UNWRITTEN)
        self._before, self._after = memory[:start], memory[start + nbytes :]
        self.array: Array = np.ndarray(tuple(shape), kind, memory, start)
        if not nbytes:
            self.array = aligned_copy(self.array)
        elif kind.kind == "i":
            self.array[...] = np.iinfo(kind).max

    def spilled(self) -> bool:
        """Return whether memory outside the result was written."""
        return bool((self._before != _UNWRITTEN).any() or (self._after != _UNWRITTEN).any())

    def unwritten(self) -> Array:
        """Return a mask of the elements that have the prefilled value.

        The function may have set an integer to this value.
        """
        if not self.array.size:
            return np.zeros(self.array.shape, bool)
        if self.array.dtype.kind == "i":
            return np.asarray(self.array == np.iinfo(self.array.dtype).max)
        each = self.array.view(np.uint8).reshape(*self.array.shape, -1) if self.array.ndim else None
        if each is None:
            return np.asarray((_bytes(self.array) == _UNWRITTEN).all())
        return np.asarray((each == _UNWRITTEN).all(axis=-1))

    def surely_unwritten(self) -> Array:
        """Return `unwritten` for floats, else a mask that is False everywhere: only a float's
        prefilled value, a special NaN, proves that the function did not write the element."""
        if not is_float(self.array.dtype.name) or not np.isnan(self.array).any():
            return np.zeros((), bool)
        return self.unwritten()


def is_float(dtype: str) -> bool:
    """Return whether `dtype` is a floating-point dtype, including bfloat16."""
    kind = np.dtype(dtype)
    return kind.kind == "f" or kind == ml_dtypes.bfloat16


class Writer:
    """Writes a gate: `add` each case, then call `finish`; without it, the folder is not a gate."""

    def __init__(self, folder: Path, parameters: Sequence[Parameter]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._parameters = parameters
        self._cases: dict[str, list[dict[str, Any]]] = {}

    @property
    def cases(self) -> list[str]:
        """The names of the cases added so far."""
        return list(self._cases)

    def add(self, case: str, inputs: Sequence[Array], expected: Sequence[Expected]) -> None:
        """Add one case: its inputs, and the expected values of each output."""
        places = [i for i, each in enumerate(self._parameters) if not each.output]
        for i, array in zip(places, inputs, strict=True):
            _save(self._folder / f"{case}.{i}.npy", array)
        for number, each in enumerate(expected):
            for name, array in _files(case, number, each.values, *each.alternatives).items():
                _save(self._folder / name, array)
        self._cases[case] = [
            {
                "scale": each.scale,
                "tolerance": each.tolerance,
                "alternatives": len(each.alternatives),
            }
            for each in expected
        ]

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the facts (`Gate.facts`), which makes the folder a gate."""
        parameters = [asdict(each) for each in self._parameters]
        described = {"format": _FORMAT, **facts, "parameters": parameters, "cases": self._cases}
        atomic.write_file(self._folder / _FACTS, json.dumps(described).encode())


def _files(case: str, number: int, *arrays: Any) -> dict[str, Any]:
    """Return an output's arrays by file name: the expected values, then their alternatives."""
    names = [f"{case}.expected.{number}.npy"]
    names += [f"{case}.expected.{number}.or.{i}.npy" for i in range(len(arrays) - 1)]
    return dict(zip(names, arrays, strict=True))


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _save(path: Path, array: Array) -> None:
    # NumPy would write bfloat16 as untyped bytes.
    carried = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
    np.save(path, np.ascontiguousarray(carried).reshape(array.shape))


def _read(path: Path, dtype: str, mode: Literal["r", "c"]) -> Array:
    """Load a saved array, 64-byte aligned; NumPy aligns the data of a .npy file to 64 bytes."""
    try:
        stored = np.load(path, mmap_mode=mode, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TuningError(f"{path}: is not a readable array ({error})") from error
    array = np.asarray(stored).view(np.dtype(dtype))
    return array if array.ctypes.data % ALIGNMENT == 0 and array.size else aligned_copy(array)
