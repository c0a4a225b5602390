"""Finding the operator of a PyTorch model that compiled code computes wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from needle_tvm import runtime
from needle_tvm.artifact import Artifact, trees
from needle_tvm.artifact.manifest import write_manifest
from needle_tvm.frontend.torch import export as torch_export
from needle_tvm.frontend.torch import graph as torch_graph
from needle_tvm.frontend.torch.arrays import array
from needle_tvm.frontend.torch.reference import Reference
from needle_tvm.frontend.torch.taken import Taken, described, result_types
from needle_tvm.lower.variant import Variant
from needle_tvm.process.scratch import scratch_folder

if TYPE_CHECKING:
    from needle_tvm.target.spec import TargetSpec


def first_divergence(
    taken: Taken, inputs: list[Any], spec: TargetSpec, variant: Variant
) -> str | None:
    """Name and module of the first operator, in program order, whose result for these inputs is
    wrong; None if every result is right.

    Compiles the model again with every operator's result as an output. If all results are then
    right, only the fusion across operators can be at fault.
    """
    from needle_tvm.frontend.torch.lowering import lowered
    from needle_tvm.lower import build

    nodes = _nodes(taken.functional)
    program = torch_graph.returning(taken.functional, nodes)
    symbols, extents = taken.translated.symbols, taken.translated.extents
    module = torch_export.to_relax(program, symbols, extents)
    outputs = [described(part, extents) for part in result_types(module)]
    tree = {"tuple": [trees.LEAF] * len(nodes)}
    changes = {"outputs": outputs, "output_tree": tree, "bare_output": len(outputs) == 1}
    signature = {**taken.signature, **changes}
    target = spec.to_tvm()
    module = lowered(module, target, variant)
    module = build.schedule(module, target, variant.stage, variant.disable)
    with scratch_folder("needle-divergence-") as folder:
        build.write_library(module, target, folder)
        manifest = build.describe(signature, module, spec, target, {})
        write_manifest(folder, manifest)
        probed = runtime.Program(Artifact.open(folder), spec.index)
        probed.set_params(taken.params)
        results = probed.run(inputs)
    reference = Reference(taken, inputs, variant.precision, nodes)
    wrong = reference.first_wrong([array(result) for result in results])
    return None if wrong is None else _name(nodes[wrong[0]])


def _nodes(program: Any) -> list[Any]:
    """The operators of a program that return one tensor each."""
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function"
        and hasattr(node.meta.get("val"), "dtype")
        and not node.meta["val"].is_complex()
    ]


def _name(node: Any) -> str:
    """The operator, and the submodule that called it."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return f"{name} in {path}" if path else name
