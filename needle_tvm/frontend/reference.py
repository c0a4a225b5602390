"""What the eager model gives, and how close compiled code has to come: the example of an artifact.

An artifact that has travelled to another machine, or was linked with another math library, is
tested against what the model it was compiled from gives, not against itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.backend_ndarray import NDArray
from needle_tvm.errors import MismatchError
from needle_tvm.faults import named
from needle_tvm.frontend.bounds import error_bounds
from needle_tvm.target.precision import FLOAT32

if TYPE_CHECKING:
    from needle.autograd import Node
    from needle.trace import Graph

Arrays = Sequence[np.ndarray[Any, Any]]

EAGER, COMPILED = "eager", "compiled"  # who computed the outputs


def eager_outputs(
    graph: Graph, inputs: Arrays, params: Mapping[str, np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """What the traced model gives for these inputs and weights, op by op on its own device.

    Raises MismatchError naming an op that computes another shape or dtype than `infer` says.
    """
    values: dict[Node, Any] = {}
    for leaf, array in zip(graph.inputs, inputs, strict=True):
        values[leaf.node] = NDArray(array, device=leaf.spec.device)
    for leaf in graph.params:
        values[leaf.node] = NDArray(params[leaf.name], device=leaf.spec.device)
    for leaf in graph.constants:
        values[leaf.node] = leaf.value
    waiting = Counter(operand for node in graph.nodes for operand in node.input_nodes)
    waiting.update(graph.outputs)
    for node in graph.nodes:
        if node.op is not None:
            values[node] = node.op.compute(*[values[operand] for operand in node.input_nodes])
            _check_inferred(node, values[node])
        for operand in node.input_nodes:
            waiting[operand] -= 1
            if not waiting[operand]:
                values.pop(operand, None)
    return [np.array(values[node].numpy()) for node in graph.outputs]


def _check_inferred(node: Node, value: Any) -> None:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    found = [
        f"{part.dtype}{list(part.shape)}" if isinstance(part, NDArray) else type(part).__name__
        for part in parts
    ]
    wanted = [str(spec) for spec in node.specs]
    if found != wanted:
        raise MismatchError(
            f"{named(node)} computes {', '.join(found)}, infer says {', '.join(wanted)}"
        )


def tolerances(graph: Graph, precision: str = FLOAT32) -> list[float]:
    """For each output, how far two computations of it may lie apart, relative to its magnitude: the
    eager model's, and one whose products take operands rounded to `precision`."""
    eager, compiled = error_bounds(graph), error_bounds(graph, precision)
    return [eager[node] + compiled[node] for node in graph.outputs]
