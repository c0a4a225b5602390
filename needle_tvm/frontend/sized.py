"""A graph with dims at the sizes of given inputs, and example inputs of other sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from needle.autograd import Node
from needle.dims import Dim, size_of
from needle.trace import Graph
from needle_tvm.artifact.sizes import Sizes, may_be, parse_dims, parse_shape
from needle_tvm.errors import InputError, UsageError
from needle_tvm.frontend.indices import index_ranges
from needle_tvm.frontend.whole import whole_dims

Array = np.ndarray[Any, Any]


def described(graph: Graph) -> list[dict[str, Any]]:
    """The dims of a graph as a manifest has them."""
    return [
        {"name": dim.name, "min": dim.min, "max": dim.max, "multiple_of": dim.multiple_of}
        for dim in graph.dims
    ]


def described_shape(shape: Sequence[Any]) -> list[int | str]:
    """A shape as a manifest has it: expressions of dims as text."""
    return [n if isinstance(n, int) else repr(n) for n in shape]


class Sized:
    """A graph at the sizes of inputs. Without dims, it is the same graph for all.

    Raises UsageError for a dim that no axis of an input tells.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        dims = parse_dims(described(graph))
        self._shapes = [
            parse_shape(described_shape(leaf.spec.shape), dims) for leaf in graph.inputs
        ]
        whole_dims(graph)
        names = [leaf.name for leaf in graph.inputs]
        self._dims = dims
        self._sizes = Sizes(dims, list(zip(names, self._shapes, strict=True)))
        self._at = functools.lru_cache(maxsize=4)(self._made)
        self._ranges = index_ranges(graph)

    def _made(self, sizes: tuple[int, ...]) -> Graph:
        return self._graph.at(dict(zip(self._graph.dims, sizes, strict=True)))

    def sizes(self, inputs: Sequence[Array]) -> dict[str, int]:
        """The size of each dim in these inputs; InputError if they have none."""
        for leaf, array, shape in zip(self._graph.inputs, inputs, self._shapes, strict=True):
            if not may_be(array.shape, shape):
                raise InputError(f"input {leaf.name!r} is of shape {array.shape}, not {shape}")
        return self._sizes.of([array.shape for array in inputs])

    def by_node(self, inputs: Sequence[Array]) -> dict[Node, Node]:
        """For each node of the graph, the one that stands for it at the sizes of these inputs."""
        return dict(zip(self._graph.nodes, self.of(inputs).nodes, strict=True))

    def of(self, inputs: Sequence[Array]) -> Graph:
        """The graph at the sizes of these inputs."""
        found = self.sizes(inputs)
        return self._at(tuple(found[dim.name] for dim in self._graph.dims))

    def examples(self, example: Sequence[Array]) -> list[list[Array]]:
        """The example, and with dims others of all least and all largest sizes, and if it is one of
        them itself, of sizes between. Raises UsageError for an example outside the dims' bounds."""
        try:
            given = self.sizes(example)
        except InputError as error:
            raise UsageError(f"dims: the example does not fit: {error}") from None
        dims = self._graph.dims
        ends = [{dim.name: dim.min for dim in dims}, {dim.name: dim.max for dim in dims}]
        wanted = [each for each in ends if each != given]
        if given in ends:
            wanted.append({dim.name: dim.between for dim in self._dims})
        distinct = [each for i, each in enumerate(wanted) if each not in (given, *wanted[:i])]
        return [list(example), *(self._resized(example, sizes) for sizes in distinct)]

    def _resized(self, example: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Inputs of other sizes, of elements of the example: indices stay valid, and floats, which
        differ by up to half, keep their signs, zeros and infinities."""
        rng = np.random.default_rng(0)
        number = {dim: sizes[dim.name] for dim in self._graph.dims}
        found: list[Array] = []
        for leaf, array in zip(self._graph.inputs, example, strict=True):
            for axis, extent in enumerate(leaf.spec.shape):
                if isinstance(extent, int):
                    continue
                size = size_of(extent, number)
                array = array.take(rng.integers(0, array.shape[axis], size), axis)
            if array is not example[len(found)] and array.dtype.kind == "f":
                array = (array * rng.uniform(0.5, 1.5, array.shape)).astype(array.dtype)
            if leaf.node in self._ranges:
                low, high = (size_of(end, number) for end in self._ranges[leaf.node])
                array = array.clip(low, high).astype(array.dtype)
            found.append(np.asarray(array, order="C"))  # ascontiguousarray changes 0-d arrays
        return found
