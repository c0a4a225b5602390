"""Checks of the arrays a program is called with, and their conversion to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from needle_runtime.artifact.arrays import as_numpy, describe
from needle_runtime.artifact.sizes import Shape, Sizes, may_be, shape_at
from needle_runtime.errors import InputError
from needle_runtime.memory import CudaMemory, Memory


class Input(NamedTuple):
    """An input of the code, or a result. `range` holds the valid values of an index; `alignment` is
    in bytes."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    range: Shape | None  # (least, largest)
    alignment: int


class Inputs:
    """The inputs of a function whose code works on the memory `here`; `sizes` computes its dims."""

    def __init__(self, specs: Sequence[Input], here: Memory, sizes: Sizes) -> None:
        self.specs = specs
        self._sizes = sizes
        self._here = here
        self._gpu = here if isinstance(here, CudaMemory) else None

    def convert(self, values: Sequence[Any]) -> list[Any]:
        """Return the arrays as tensors, over the same memory if the code can read that memory.
        Raises InputError for arrays that do not fit the signature."""
        shared = self._here.shared
        return [
            shared(each, spec.alignment) if isinstance(each, np.ndarray) else each
            for each, spec in zip(self.check(values), self.specs, strict=True)
        ]

    def check(self, values: Sequence[Any]) -> list[Any]:
        """Return the arrays as NumPy arrays, or as tensors if they are on the GPU.

        Raises InputError for arrays that do not fit the signature.
        """
        if not isinstance(values, (list, tuple)):
            raise InputError(f"takes a list of arrays, was given a {type(values).__name__}")
        if len(values) != len(self.specs):
            raise InputError(f"takes {len(self.specs)} arrays, was given {len(values)}")
        found = [self._check(value, spec) for value, spec in zip(values, self.specs, strict=True)]
        sizes = self._sizes.of([each.shape for each in found]) if self._sizes.dims else {}
        for array, spec in zip(found, self.specs, strict=True):
            if spec.range is not None and isinstance(array, np.ndarray) and array.size:
                _check_range(array, spec.name, *shape_at(spec.range, sizes))
        return found

    def _check(self, value: Any, spec: Input) -> Any:
        gpu = self._gpu
        if gpu is not None and gpu.holds(value):
            tensor = gpu.imported(value)
            shape, dtype = tuple(tensor.shape), str(tensor.dtype)
            if not may_be(shape, spec.shape) or dtype != str(spec.dtype):
                raise _mismatch(spec, shape, dtype)
            if not tensor.is_contiguous():
                raise InputError(f"input {spec.name!r} is not contiguous: give a contiguous copy")
            return tensor
        # The dtypes themselves are compared: asking NumPy for a dtype's name takes microseconds.
        array = as_numpy(value, f"input {spec.name!r}")
        if not may_be(array.shape, spec.shape) or array.dtype != spec.dtype:
            raise _mismatch(spec, array.shape, str(array.dtype))
        return array


def destinations(
    outputs: Sequence[Any], specs: Sequence[Input], inputs: Sequence[Any]
) -> list[np.ndarray[Any, Any]]:
    """Return NumPy arrays over the memory of `outputs`, the arrays to write results to.

    Raises InputError for an array that does not fit, is read-only, has elements that share memory,
    or overlaps an input or another output.
    """
    others = [
        (f"input {number}", as_numpy(value, f"input {number}"))
        for number, value in enumerate(inputs)
    ]
    arrays = []
    for number, (value, spec) in enumerate(zip(outputs, specs, strict=True)):
        label = "out" if len(outputs) == 1 else f"array {number} of out"
        if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
            raise InputError(f"{label} is a {type(value).__name__}, not an array to write to")
        array = as_numpy(value, label)
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise InputError(
                f"{label} is {describe(array.shape, str(array.dtype))}, "
                f"the result is {describe(spec.shape, str(spec.dtype))}"
            )
        if not array.flags.writeable:
            raise InputError(f"{label} is read-only")
        if _may_overlap_itself(array):
            raise InputError(f"{label} has elements that share memory")
        for name, other in others:
            if np.may_share_memory(array, other):
                raise InputError(f"{label} overlaps {name}")
        others.append((label, array))
        arrays.append(array)
    return arrays


def _may_overlap_itself(array: np.ndarray[Any, Any]) -> bool:
    """Return whether two elements may share memory because the strides do not nest."""
    reach = array.itemsize
    pairs = zip(array.strides, array.shape, strict=True)
    for stride, extent in sorted((abs(stride), extent) for stride, extent in pairs if extent > 1):
        if stride < reach:
            return array.size > 0
        reach += stride * (extent - 1)
    return False


def _check_range(array: np.ndarray[Any, Any], name: str, lowest: int, highest: int) -> None:
    """Raise InputError unless all elements are valid indices."""
    # Floats are truncated towards zero when they become indices; a NaN is not an index.
    number = int if array.dtype.kind in "biu" else float
    low, high = number(array.min()), number(array.max())
    if not (lowest - 1 < low and high < highest + 1):
        wrong = high if lowest - 1 < low else low
        raise InputError(
            f"input {name!r} has the index {wrong}, which is not within {lowest}..{highest}"
        )


def _mismatch(spec: Input, shape: Sequence[int], dtype: str) -> InputError:
    return InputError(
        f"input {spec.name!r} is {describe(shape, dtype)}, "
        f"but the model was compiled for {describe(spec.shape, str(spec.dtype))}"
    )
