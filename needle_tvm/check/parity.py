"""The parity ladder: compare each compiled stage with the eager model computed in float64.

`apps/evaluation.py` and the tests call `ladder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from needle import Tensor, no_grad
from needle.trace import Graph, trace
from needle_runtime.artifact.tolerance import compare
from needle_runtime.target.precision import FLOAT32
from needle_tvm.compiler.executable import Executable
from needle_tvm.compiler.first_check import FUSION
from needle_tvm.frontend.bounds import error_bounds
from needle_tvm.frontend.divergence import first_divergence
from needle_tvm.frontend.float64_values import evaluate
from needle_tvm.frontend.resolved_dims import Sized
from needle_tvm.frontend.source import to_numpy


@dataclass(frozen=True)
class Parity:
    """The distance of one stage's outputs from the float64 outputs.

    `max_relative` is relative to the largest magnitude of its output. `ok` says whether it is at
    most `tolerance`, with NaNs and infinities in the same positions. `diverges` names the first op
    whose own result is out of tolerance, or None if `ok`.
    """

    stage: str
    max_absolute: float
    max_relative: float
    tolerance: float
    ok: bool
    diverges: str | None = None


def ladder(
    model: Any,
    inputs: Sequence[Any],
    executables: Mapping[str, Executable | None],
    dims: Mapping[Any, Any] | None = None,
) -> list[Parity]:
    """Return the parity of each stage in `executables`, in their order, for a `model` and `inputs`.

    For a stage whose executable is None, the eager model runs instead. `dims` must be the dims that
    the executables were compiled with.

    The tolerance grows along the graph with every rounding. Each op adds `needle.testing`'s bound
    for its dtype and the number of terms that it sums. Matmuls and convolutions also add the change
    that rounding their operands to the executable's precision may cause.
    """
    graph = trace(model, *inputs, dims=dims)
    arrays = [to_numpy(leaf.value) for leaf in graph.inputs]
    sized = Sized(graph).of(arrays)
    expected = evaluate(graph, arrays)
    references = [expected[node].numpy() for node in graph.outputs]
    results = []
    for stage, executable in executables.items():
        precision = FLOAT32 if executable is None else executable.artifact.precision
        bounds = error_bounds(sized, precision)
        bound = max((bounds[node] for node in sized.outputs), default=0.0)
        if executable is None:
            found = _eager(graph, model, inputs)
        else:
            found = executable.program.run(arrays)
        compared = [
            compare(want, have, bound, same_dtype=False)
            for want, have in zip(references, found, strict=True)
        ]
        ok = all(each.right for each in compared)
        diverges = None
        if not ok and executable is not None:
            program = executable.program
            diverges = first_divergence(graph, arrays, expected, stage, program) or FUSION
        absolute = max((each.absolute for each in compared), default=0.0)
        relative = max((each.relative for each in compared), default=0.0)
        results.append(Parity(stage, absolute, relative, bound, ok, diverges))
    return results


def _eager(graph: Graph, model: Any, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    tensors = [x if isinstance(x, Tensor) else Tensor(x, requires_grad=False) for x in inputs]
    with no_grad():
        outputs = model(*tensors)
    return [tensor.numpy() for tensor in graph.flatten_outputs(outputs)]
