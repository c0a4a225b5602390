"""Shapes of inputs with dims: the sizes in given arrays, and examples of other sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from needle.sizes.dims import Dim, dims_of, size_of
from needle_runtime.artifact.sizes import Sizes, may_be, parse_dims, parse_shape
from needle_runtime.errors import InputError, UsageError

Array = np.ndarray[Any, Any]

_VERY_LARGE = 1 << 20  # elements of inputs; with more, the check at the first compile takes seconds


def described(dims: Iterable[Dim]) -> list[dict[str, Any]]:
    """Return dims in a manifest's form."""
    return [
        {"name": dim.name, "min": dim.min, "max": dim.max, "multiple_of": dim.multiple_of}
        for dim in dims
    ]


def described_shape(shape: Sequence[Any]) -> list[int | str]:
    """Return a shape in a manifest's form: expressions of dims are strings."""
    return [n if isinstance(n, int) else repr(n) for n in shape]


class Shapes:
    """The shapes of named inputs, whose extents may depend on dims.

    `ranges` holds the least and the largest valid index of inputs that are used as indices.
    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, Sequence[Any]]],
        ranges: Mapping[str, tuple[Any, Any]],
    ) -> None:
        self.inputs, self._ranges = list(inputs), dict(ranges)
        extents = [n for _, shape in inputs for n in shape]
        self.dims = sorted(dims_of(extents), key=lambda dim: dim.name)
        self._dims = dims = parse_dims(described(self.dims))
        self._shapes = [parse_shape(described_shape(shape), dims) for _, shape in inputs]
        names = [name for name, _ in inputs]
        self._sizes = Sizes(dims, list(zip(names, self._shapes, strict=True)))

    def sizes(self, inputs: Sequence[Array]) -> dict[str, int]:
        """Return the size of each dim in `inputs`. Raises InputError if they do not fit."""
        for (name, _), array, shape in zip(self.inputs, inputs, self._shapes, strict=True):
            if not may_be(array.shape, shape):
                raise InputError(f"input {name!r} is of shape {array.shape}, not {shape}")
        return self._sizes.of([array.shape for array in inputs])

    def given(self, example: Sequence[Array]) -> dict[str, int]:
        """Return the size of each dim in `example`. Raises UsageError if one is outside its dim's
        bounds."""
        try:
            return self.sizes(example)
        except InputError as error:
            raise UsageError(f"dims: the example does not fit: {error}") from None

    def examples(self, example: Sequence[Array]) -> list[list[Array]]:
        """Return the example and, if there are dims, an example with all dims at their least sizes
        and one with all at their largest. If the example itself is one of these, an example with
        sizes in between is added. If inputs with all largest sizes are very large, each dim takes
        its largest size in an example of its own, with the given example's other sizes. Raises
        UsageError for an example outside the dims' bounds.
        """
        given, dims = self.given(example), self.dims
        largest = {dim.name: dim.max for dim in dims}
        ends = [{dim.name: dim.min for dim in dims}, largest]
        if len(dims) > 1 and self._elements(largest) > _VERY_LARGE:
            ends[1:] = [{**given, dim.name: dim.max} for dim in dims]
        wanted = [each for each in ends if each != given]
        if given in ends:
            wanted.append({dim.name: dim.between for dim in self._dims})
        distinct = [each for i, each in enumerate(wanted) if each not in (given, *wanted[:i])]
        return [list(example), *(self.resized(example, sizes) for sizes in distinct)]

    def _elements(self, sizes: Mapping[str, int]) -> int:
        """Return the number of elements of all inputs at these sizes."""
        number = {dim: sizes[dim.name] for dim in self.dims}
        shapes = ([size_of(n, number) for n in shape] for _, shape in self.inputs)
        return sum(map(math.prod, shapes))

    def resized(self, example: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Return inputs of other sizes, made from the example's elements. Indices stay valid.
        Floats change by up to half and keep their signs, zeros and infinities."""
        rng = np.random.default_rng(0)
        number = {dim: sizes[dim.name] for dim in self.dims}
        arrays: list[Array] = []
        for (name, shape), array in zip(self.inputs, example, strict=True):
            for axis, extent in enumerate(shape):
                if isinstance(extent, int):
                    continue
                size = size_of(extent, number)
                array = array.take(rng.integers(0, array.shape[axis], size), axis)
            if array is not example[len(arrays)] and array.dtype.kind == "f":
                array = (array * rng.uniform(0.5, 1.5, array.shape)).astype(array.dtype)
            if name in self._ranges:
                low, high = (size_of(end, number) for end in self._ranges[name])
                array = array.clip(low, high).astype(array.dtype)
            arrays.append(np.asarray(array, order="C"))  # ascontiguousarray changes 0-d arrays
        return arrays
