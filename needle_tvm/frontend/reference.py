"""The eager model's outputs and their tolerances, which an artifact carries as golden examples.

They make it possible to test an artifact on another machine, or linked with another math library,
against the model that it was compiled from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.backend_ndarray import NDArray
from needle_runtime.target.precision import FLOAT32
from needle_tvm.errors import MismatchError
from needle_tvm.faults import named
from needle_tvm.frontend.bounds import error_bounds

if TYPE_CHECKING:
    from needle.autograd import Node
    from needle.trace import Graph

Arrays = Sequence[np.ndarray[Any, Any]]

EAGER, COMPILED = "eager", "compiled"  # where outputs come from


def eager_outputs(
    graph: Graph, inputs: Arrays, params: Mapping[str, np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Return the traced model's outputs for `inputs` and `params`, computed op by op on its device.

    Raises MismatchError naming an op whose shape or dtype differs from what `infer` returns.
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
    """Return the allowed difference of each output, relative to its magnitude, between the eager
    model and code that rounds operands of matmuls and convolutions to `precision`."""
    eager, compiled = error_bounds(graph), error_bounds(graph, precision)
    return [eager[node] + compiled[node] for node in graph.outputs]
