"""Find the op of a traced graph that compiled code computes wrongly."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import needle_runtime
from needle.autograd import Node
from needle.trace import Graph
from needle.trace.writes import Effects
from needle_runtime.artifact import Artifact, trees
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.artifact.tolerance import compare
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.target.precision import FLOAT32
from needle_tvm.frontend import lowering
from needle_tvm.frontend.bounds import error_bounds
from needle_tvm.frontend.resolved_dims import Sized
from needle_tvm.frontend.source import to_numpy
from needle_tvm.lower import build
from needle_tvm.target.spec import TargetSpec, resolve


def first_divergence(
    graph: Graph,
    arrays: Sequence[np.ndarray[Any, Any]],
    expected: Mapping[Node, Any],
    stage: str,
    program: needle_runtime.Program,
) -> str | None:
    """Return the name and module of the first op, in topological order, that `stage` computes
    wrongly; None if every op is right.

    `graph` is compiled again with every op's result as an output, and run on `arrays`; `expected`
    has the right results. The compiled graph runs on the device of `program` and, if `stage` is the
    program's stage, in the program's precision. If all results are right, only the fusion across
    ops can be at fault.
    """
    nodes = [n for n in graph.nodes if n.op is not None and type(n.spec) is not tuple]
    probe = copy.copy(graph)
    probe.outputs = nodes
    probe.output_tree = {"tuple": [trees.LEAF] * len(nodes)}
    if graph.effects.kept:  # the state of a step is an argument here, and nothing is written
        probe.effects = Effects()
        probe.input_tree = {"args": [trees.LEAF] * len(graph.inputs), "kwargs": {}}
    compiled = program.artifact
    precision = compiled.precision if compiled.manifest["stage"] == stage else FLOAT32
    sized, spec = Sized(graph), _target_of(program)
    bounds = error_bounds(sized.of(arrays), precision)
    by_node = sized.by_node(arrays)
    target = spec.to_tvm()
    module = lowering.lower(probe, target, stage, precision=precision)
    module = build.schedule(module, target, stage)
    with scratch_folder("needle-parity-") as folder:
        build.write_library(module, target, folder)
        manifest = build.describe(lowering.signature(probe), module, spec, target, {})
        write_manifest(folder, manifest)
        probed = needle_runtime.Program(Artifact.open(folder), spec.index)
        probed.set_params({leaf.name: to_numpy(leaf.value) for leaf in graph.params})
        results = probed.run(arrays)
    for node, result in zip(nodes, results, strict=True):
        bound = bounds[by_node[node]]
        if not compare(expected[node].numpy(), result, bound, same_dtype=False).right:
            assert node.op is not None  # leaves were left out above
            return f"{node.op.name}{f' in {node.scope}' if node.scope else ''}"
    return None


def _target_of(program: needle_runtime.Program) -> TargetSpec:
    """Return the target for the device of this machine that the program runs on."""
    if program.artifact.for_gpu:
        return resolve(f"cuda:{program.executor.device}")
    return resolve("cpu", program.artifact.target["num-cores"])
