"""The worked example an artifact carries: inputs, the eager model's outputs, how close to come.

An artifact that has travelled to another machine, or was linked with another math library, is
tested against what the model it was compiled from gives, not against itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle_tvm.errors import MismatchError
from needle_tvm.faults import named
from needle_tvm.precision import FLOAT32
from needle_tvm.tolerance import operand_tolerance, relative_tolerance

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
    from needle.backend_ndarray import NDArray

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
    from needle.backend_ndarray import NDArray

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
    from needle_tvm.parity import error_bounds

    eager, compiled = error_bounds(graph), error_bounds(graph, precision)
    return [eager[node] + compiled[node] for node in graph.outputs]


def estimated_tolerances(
    outputs: Sequence[Mapping[str, Any]],
    params: Sequence[Mapping[str, Any]],
    precision: str = FLOAT32,
) -> list[float]:
    """As `tolerances`, where only the signature is known.

    Every weight with rows and columns is taken for a layer that sums as many terms as the longest
    of the weights could.
    """
    weights = [spec["shape"] for spec in params if len(spec["shape"]) > 1 and all(spec["shape"])]
    longest = max((math.prod(shape) // min(shape) for shape in weights), default=1)
    layers = max(1, len(weights))
    return [
        2 * relative_tolerance(spec["dtype"], longest, layers)
        + layers * operand_tolerance(precision, longest, math.prod(spec["shape"]))
        for spec in outputs
    ]


def relative_difference(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    """Largest difference relative to the largest magnitude of `expected`.

    Infinite where shapes or dtypes differ, or NaNs or infinities stand in different places.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf
    if expected.dtype.kind in "iub":
        return 0.0 if np.array_equal(expected, found) else math.inf
    want, have = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(want[~finite], have[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(have[finite]).all():
        return math.inf
    gap = float(np.abs(want[finite] - have[finite]).max(initial=0.0))
    scale = float(np.abs(want[finite]).max(initial=0.0))
    return gap / scale if scale else gap
