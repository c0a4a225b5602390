"""The inputs of a graph that are used as indices, and their valid ranges."""

from __future__ import annotations

from needle.autograd import Node
from needle.backend_ndarray.dtypes import result_type
from needle.ops.elementwise import Cast
from needle.ops.movement import Flip, Squeeze, Unsqueeze
from needle.ops.shape import BroadcastTo, Permute, Reshape, Transpose
from needle.trace import Graph

# The results of these ops hold every element of the input and nothing else.
_KEEP_ALL = (BroadcastTo, Cast, Flip, Permute, Reshape, Squeeze, Transpose, Unsqueeze)

# Dtypes that hold all indices in use; a cast to them may change only larger numbers.
_WIDE = ("int32", "int64", "float32", "float64")


def index_ranges(graph: Graph) -> dict[Node, tuple[int, int]]:
    """Return the least and the largest valid index for each input that ops use as indices, directly
    or after a change of layout or dtype. An index in the range is valid for all these ops."""
    ranges: dict[Node, tuple[int, int]] = {}
    for node in graph.nodes:
        if node.op is None:
            continue
        specs = [operand.spec for operand in node.input_nodes]
        for number, (low, high) in node.op.index_ranges(*specs).items():
            source = node.input_nodes[number]
            while isinstance(source.op, _KEEP_ALL) and _keeps_order(source):
                (source,) = source.input_nodes
            if source.op is None:
                before = ranges.get(source, (low, high))
                ranges[source] = max(low, before[0]), min(high, before[1])
    return ranges


def _keeps_order(node: Node) -> bool:
    """Return whether values outside a range of indices are still outside it in a node's result."""
    if not isinstance(node.op, Cast) or node.spec.dtype in _WIDE:
        return True
    return result_type(node.input_nodes[0].spec.dtype, node.spec.dtype) == node.spec.dtype
