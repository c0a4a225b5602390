"""The ladder: each compiled stage against the eager model computed in float64."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from needle import Tensor, cpu_numpy, no_grad
from needle.autograd import Node
from needle.backend_ndarray import NDArray, is_floating
from needle.trace import Graph, trace
from needle_tvm import artifact, runtime, trees
from needle_tvm.check.bounds import error_bounds
from needle_tvm.check.first import FUSION
from needle_tvm.executable import Executable
from needle_tvm.precision import FLOAT32
from needle_tvm.scratch import scratch_folder
from needle_tvm.source import to_numpy
from needle_tvm.target import TargetSpec, resolve


@dataclass(frozen=True)
class Parity:
    """How far one stage's outputs lie from the float64 ones.

    `max_relative` is relative to the largest magnitude of the output it occurs in; `ok` says
    whether it is at most `tolerance` and NaNs and infinities stand in the same places. `diverges`
    names the first op whose own result is out of tolerance, None when `ok`.
    """

    stage: str
    max_absolute: float
    max_relative: float
    tolerance: float
    ok: bool
    diverges: str | None = None


def ladder(
    model: Any, inputs: Sequence[Any], executables: Mapping[str, Executable | None]
) -> list[Parity]:
    """Parity of each stage, in the order given. A stage that is None is the eager model itself.

    The tolerance grows along the graph with every rounding: at each op by `needle.testing`'s
    bound for its dtype and the number of terms it sums, and at products by what rounding their
    operands to the executable's precision may change.
    """
    graph = trace(model, *inputs)
    arrays = [to_numpy(leaf.value) for leaf in graph.inputs]
    expected = evaluate(graph, arrays)
    references = [expected[node] for node in graph.outputs]
    results = []
    for stage, executable in executables.items():
        manifest = {} if executable is None else executable.manifest
        bounds = error_bounds(graph, manifest.get("precision", FLOAT32))
        bound = max((bounds[node] for node in graph.outputs), default=0.0)
        if executable is None:
            found = _eager(graph, model, inputs)
        else:
            found = executable.program.run(arrays)
        absolute, relative = _worst(references, found)
        ok = relative <= bound
        diverges = None
        if not ok and executable is not None:
            program = executable.program
            diverges = first_divergence(graph, arrays, expected, stage, program) or FUSION
        results.append(Parity(stage, absolute, relative, bound, ok, diverges))
    return results


def evaluate(graph: Graph, arrays: Sequence[Any]) -> dict[Node, Any]:
    """Every node's value in float64 on the NumPy device (integers and booleans as they are)."""
    values: dict[Node, Any] = {}
    for leaf, array in zip(graph.inputs, arrays, strict=True):
        values[leaf.node] = _widened(array)
    for leaf in (*graph.params, *graph.constants):
        values[leaf.node] = _widened(to_numpy(leaf.value))
    for node in graph.nodes:
        if node.op is not None:
            values[node] = node.op.compute(*[values[operand] for operand in node.input_nodes])
    return values


def first_divergence(
    graph: Graph,
    arrays: Sequence[np.ndarray[Any, Any]],
    expected: Mapping[Node, Any],
    stage: str,
    program: runtime.Program,
) -> str | None:
    """Name and module of the first op, in topological order, that `stage` computes wrongly, on the
    device of `program`, and in its precision where that is its stage; None where each is right.

    Compiles the graph once more with every op's result as an output; where the results are right
    that way, only the fusion across them can be at fault.
    """
    from needle_tvm import build

    nodes = [n for n in graph.nodes if n.op is not None and type(n.spec) is not tuple]
    probe = copy.copy(graph)
    probe.outputs = nodes
    probe.output_tree = {"tuple": [trees.LEAF] * len(nodes)}
    manifest = program.manifest
    precision = manifest.get("precision", FLOAT32) if manifest["stage"] == stage else FLOAT32
    bounds, spec = error_bounds(graph, precision), _target_of(program)
    target = spec.to_tvm()
    module = build.lower(probe, target, stage, precision=precision)
    module = build.schedule(module, target, stage)
    with scratch_folder("needle-parity-") as folder:
        build.write_library(module, target, folder)
        manifest = build.describe(build.signature(probe), module, spec, target, {})
        artifact.write_manifest(folder, manifest)
        probed = runtime.Program(folder, artifact.verify(folder), device=spec.index)
        probed.set_params({leaf.name: to_numpy(leaf.value) for leaf in graph.params})
        results = probed.run(arrays)
    for node, result in zip(nodes, results, strict=True):
        if _worst([expected[node]], [result])[1] > bounds[node]:
            assert node.op is not None  # leaves were left out above
            return f"{node.op.name}{f' in {node.scope}' if node.scope else ''}"
    return None


def _target_of(program: runtime.Program) -> TargetSpec:
    """This machine's device of the kind that the program runs on."""
    target = program.manifest["target"]
    if target["kind"] == "cuda":
        return resolve(f"cuda:{program.device}")
    return resolve("cpu", target["num-cores"])


def _eager(graph: Graph, model: Any, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    tensors = [x if isinstance(x, Tensor) else Tensor(x, requires_grad=False) for x in inputs]
    with no_grad():
        outputs = model(*tensors)
    return [tensor.numpy() for tensor in graph.flatten_outputs(outputs)]


def _widened(array: np.ndarray[Any, Any]) -> NDArray:
    wide = array.astype(np.float64) if is_floating(array.dtype.name) else array
    return NDArray(wide, device=cpu_numpy())


def _worst(expected: Sequence[Any], found: Sequence[np.ndarray[Any, Any]]) -> tuple[float, float]:
    """Largest absolute and relative difference; infinite where NaNs or infinities differ."""
    absolute = relative = 0.0
    for reference, result in zip(expected, found, strict=True):
        want, have = (np.asarray(a, dtype=np.float64) for a in (reference.numpy(), result))
        if want.shape != have.shape:
            return float("inf"), float("inf")
        finite = np.isfinite(want)
        special = np.array_equal(want[~finite], have[~finite], equal_nan=True)
        if not special or not np.isfinite(have[finite]).all():
            return float("inf"), float("inf")
        gap = float(np.abs(want[finite] - have[finite]).max(initial=0.0))
        scale = float(np.abs(want[finite]).max(initial=0.0))
        absolute = max(absolute, gap)
        relative = max(relative, gap / scale if scale else gap)
    return absolute, relative
