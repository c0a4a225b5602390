"""Workloads: each has sizes, a definition, a NumPy reference and its useful work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from kernel_lab.errors import LabUsageError
from needle_runtime.artifact.tolerance import relative_tolerance

Array = np.ndarray[Any, Any]
Size = Mapping[str, Any]  # {"M": 512, ...}; "mode", if present, is a string

DEVICES = ("cpu", "cuda")

# The limits: definitions index with 32-bit integers, and a typo should not fill the memory.
_MOST_ELEMENTS = 1 << 28
_MOST_FLOPS = 1 << 43


@dataclass(frozen=True)
class Published:
    """A figure published in a source of the course, measured on another machine and so not directly
    comparable.

    `rung` is our rung or peer that does the same. `document` is the source's number in
    docs/published-figures.md, such as "000".
    """

    document: str
    step: str
    milliseconds: float
    machine: str
    note: str = ""
    rung: str = ""


@dataclass(frozen=True)
class Processor:
    """The facts about a target that schedules use: cores, vector registers, and float32 lanes of a
    register.

    `dots` says whether it has x86's instruction that adds four products of 8-bit numbers to each of
    16 sums (AVX512-VNNI).
    """

    cores: int = 1
    registers: int = 32
    lanes: int = 16
    dots: bool = False


@dataclass(frozen=True)
class Case:
    """A workload's size on a processor: everything a definition or a schedule depends on.

    `case["M"]` is a dimension of the size.
    """

    size: Size
    processor: Processor = field(default_factory=Processor)

    def __getitem__(self, name: str) -> Any:
        return self.size[name]


@dataclass(frozen=True)
class Workload:
    """One computation on arrays, of float32 unless `dtypes` says otherwise.

    `sizes` holds the sizes of interest by device, the default first. `define(case)` returns its TE
    tensors, inputs first, the output last. `reference(size, inputs)` computes the output in
    float64. `shapes(size)` are the shapes of the inputs and the output. `flops(size)` counts useful
    arithmetic: a multiply-add is two operations, and padding counts nothing. `terms(size)` is the
    length of the longest sum. `dtypes` are the dtypes of the inputs and the output; if empty, all
    are float32. `drawn(size)` are the smallest dimensions worth a picture, given the dimensions
    that come later in the size. `published` lists the published figures by device.
    """

    name: str
    title: str
    summary: str
    sizes: Mapping[str, Sequence[Size]]
    define: Callable[[Case], list[Any]]
    reference: Callable[[Size, Sequence[Array]], Array]
    shapes: Callable[[Size], list[tuple[int, ...]]]
    flops: Callable[[Size], int]
    terms: Callable[[Size], int]
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    drawn: Callable[[Size], Size] = lambda size: size
    limits: Callable[[Size], str | None] = lambda size: None
    published: Mapping[str, Sequence[Published]] = field(default_factory=dict)

    def size(self, device: str, given: Mapping[str, Any] | None = None) -> Size:
        """Return the device's default size, with `given` dimensions in place of its own.

        Raises LabUsageError, naming the dimension, the value and the rule, for an unknown
        dimension, for a value that is not a whole number of at least 1, and for arrays or work too
        large for one machine.
        """
        if device not in self.sizes:
            raise LabUsageError(f"{self.name} has no ladder for {device!r}")
        size: dict[str, Any] = dict(self.sizes[device][0])
        for name, value in (given or {}).items():
            if name not in size:
                raise LabUsageError(f"{self.name} has no size {name!r}: it has {', '.join(size)}")
            size[name] = self._mode(value) if name == "mode" else self._extent(name, value)
        elements = sum(int(np.prod([int(n) for n in s], dtype=object)) for s in self.shapes(size))
        if elements > _MOST_ELEMENTS:
            raise LabUsageError(
                f"{self.name} at {describe(size)} has {elements:,} elements: "
                f"the lab allows at most {_MOST_ELEMENTS:,}"
            )
        problem = self.limits(size)
        if problem:
            raise LabUsageError(f"{self.name} at {describe(size)}: {problem}")
        if self.flops(size) > _MOST_FLOPS:
            raise LabUsageError(
                f"{self.name} at {describe(size)} has {self.flops(size):,} operations: "
                f"the lab allows at most {_MOST_FLOPS:,}"
            )
        return MappingProxyType(size)

    def _mode(self, value: Any) -> str:
        if value not in self.modes:
            raise LabUsageError(f"{self.name}: mode={value}: must be {' or '.join(self.modes)}")
        return str(value)

    def _extent(self, name: str, value: Any) -> int:
        try:
            whole = int(value)
        except (TypeError, ValueError):
            raise LabUsageError(f"{self.name}: {name}={value}: must be a whole number") from None
        if isinstance(value, float) and value != whole:
            raise LabUsageError(f"{self.name}: {name}={value}: must be a whole number")
        if whole < 1:
            raise LabUsageError(f"{self.name}: {name}={value}: must be at least 1")
        return whole

    def bytes(self, size: Size) -> int:
        """Return the bytes of compulsory traffic: every input read once, the output written
        once."""
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self._arrays(size))

    @property
    def result_dtype(self) -> str:
        """The output's dtype."""
        return self.dtypes[-1] if self.dtypes else "float32"

    def _arrays(self, size: Size) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and dtype of each input and of the output."""
        shapes = self.shapes(size)
        dtypes = self.dtypes or ("float32",) * len(shapes)
        return list(zip(shapes, map(np.dtype, dtypes), strict=True))

    def tolerance(self, size: Size, precision: str = "float32") -> float:
        """Return the allowed difference from the reference, relative to the result's largest
        magnitude.

        Sums are float32. Sums of integers are exact, so their tolerance is 0. `precision` may say
        that operands are rounded further ("float16", or "tf32", which keeps as many bits). Each
        operand is rounded once, so this part of the tolerance does not grow with the sum's length.
        """
        sums = relative_tolerance(self.result_dtype, self.terms(size))
        if precision == "float32":
            return sums
        return sums + relative_tolerance(precision, 1)

    def inputs(self, size: Size, seed: int = 0) -> list[Array]:
        """Return seeded example inputs: standard normal floats, and integers from their whole
        range."""
        rng = np.random.default_rng(seed)
        return [_drawn(rng, shape, dtype) for shape, dtype in self._arrays(size)[:-1]]


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def describe(size: Size) -> str:
    """Return a size as text: "M=512, N=512, K=512"."""
    return ", ".join(f"{name}={value}" for name, value in size.items())
