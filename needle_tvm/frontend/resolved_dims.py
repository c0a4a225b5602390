"""Fix the dims of a graph at the sizes of given inputs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from needle.autograd import Node
from needle.trace import Graph
from needle_tvm.frontend.axis_dims import axis_dims
from needle_tvm.frontend.indices import index_ranges
from needle_tvm.frontend.shapes import Shapes

Array = np.ndarray[Any, Any]


class Sized:
    """A graph whose dims can be fixed at the sizes of inputs. Without dims, all inputs have the
    same graph.

    Raises UsageError for a dim that no axis of an input determines.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, ranges = graph, index_ranges(graph)
        axis_dims(graph)
        self._shapes = Shapes(
            [(leaf.name, leaf.spec.shape) for leaf in graph.inputs],
            {leaf.name: ranges[leaf.node] for leaf in graph.inputs if leaf.node in ranges},
        )
        self.sizes, self.examples = self._shapes.sizes, self._shapes.examples
        self._at = functools.lru_cache(maxsize=4)(self._made)

    def _made(self, sizes: tuple[int, ...]) -> Graph:
        return self._graph.at(dict(zip(self._graph.dims, sizes, strict=True)))

    def by_node(self, inputs: Sequence[Array]) -> dict[Node, Node]:
        """Map each node of the graph to the corresponding node at the sizes of these inputs."""
        return dict(zip(self._graph.nodes, self.of(inputs).nodes, strict=True))

    def of(self, inputs: Sequence[Array]) -> Graph:
        """Return the graph at the sizes of these inputs."""
        found = self.sizes(inputs)
        return self._at(tuple(found[dim.name] for dim in self._graph.dims))
