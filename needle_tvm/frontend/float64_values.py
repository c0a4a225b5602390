"""The values of a traced graph in float64, without TVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import cpu_numpy
from needle.autograd import Node
from needle.backend_ndarray import NDArray, is_floating
from needle.trace import Graph
from needle_tvm.frontend.resolved_dims import Sized
from needle_tvm.frontend.source import to_numpy


def evaluate(graph: Graph, arrays: Sequence[Any]) -> dict[Node, Any]:
    """Return every node's value in float64 on the NumPy device; integers and bools stay as is."""
    sized, values = Sized(graph), dict[Node, Any]()
    for leaf, array in zip(sized.of(arrays).inputs, arrays, strict=True):
        values[leaf.node] = _widened(array)
    for leaf in (*graph.params, *graph.constants):
        values[leaf.node] = _widened(to_numpy(leaf.value))
    by_node = sized.by_node(arrays)
    for node in by_node.values():
        if node.op is None:
            continue
        operands = [values[operand] for operand in node.input_nodes]
        if node.op.reads_bits:
            specs = [operand.spec for operand in node.input_nodes]
            operands = [x.astype(spec.dtype) for x, spec in zip(operands, specs, strict=True)]
        values[node] = node.op.compute(*operands)
    return {node: values[each] for node, each in by_node.items()}


def _widened(array: np.ndarray[Any, Any]) -> NDArray:
    wide = array.astype(np.float64) if is_floating(array.dtype.name) else array
    return NDArray(wide, device=cpu_numpy())
