"""Lower a traced graph to its module at a stage, and describe the signature of its `main`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from needle.trace.graph import positional_names
from needle_runtime.artifact import trees
from needle_runtime.process.turns import in_turn
from needle_tvm._tvm.names import IRModule, Target
from needle_tvm.errors import TranslationError
from needle_tvm.frontend.axis_dims import axis_dims
from needle_tvm.frontend.indices import index_ranges
from needle_tvm.frontend.loops import Loops
from needle_tvm.frontend.shapes import described, described_shape
from needle_tvm.frontend.translate import translate
from needle_tvm.frontend.unroll import unrolled
from needle_tvm.lower import build, pipeline
from needle_tvm.lower.variant import Variant
from needle_tvm.target.info import target_info

if TYPE_CHECKING:
    from needle.trace import Graph, Leaf


def lower(graph: Graph, target: Target, stage: str, **choices: Any) -> IRModule:
    """Lower a graph at the stage with this name; `choices` are the other fields of `Variant`."""
    return lowered(graph, target, Variant(stage, **choices))


@in_turn
def lowered(graph: Graph, target: Target, variant: Variant) -> IRModule:
    """Return the module before its loops are scheduled; tuning takes its tasks from this module."""
    return _lowered(graph.at(axis_dims(graph)), target, variant, None)


def translated(
    graph: Graph, target: Target, variant: Variant, loops: Loops | None = None
) -> IRModule:
    """Return the module before any pass, for a graph in which each dim is the size of an input
    axis. The graph may be the body of a loop among `loops`."""
    loops = loops or Loops(target, variant, _lowered)
    if target_info(target).is_gpu:
        graph = unrolled(graph, loops.has_kernels)
    prefers = pipeline.of(target, variant.stage).prefer_emit
    return translate(graph, prefer_emit=prefers, loops=loops)


def _lowered(graph: Graph, target: Target, variant: Variant, loops: Loops | None) -> IRModule:
    return build.lower_module(translated(graph, target, variant, loops), target, variant)


def signature(graph: Graph) -> dict[str, Any]:
    """Return the inputs, parameters and outputs of a graph's `main`, in the form of a manifest.

    Raises TranslationError for an argument that a manifest cannot hold.
    """
    ranges = index_ranges(graph)
    dims = described(graph.dims)
    return {
        **({"dims": dims} if dims else {}),
        "inputs": [_input(leaf, ranges.get(leaf.node)) for leaf in graph.inputs],
        "params": [_leaf(leaf) for leaf in graph.params],
        "ties": [[leaf.name, *leaf.others] for leaf in graph.params if leaf.others],
        "outputs": _outputs(graph),
        "bare_output": len(graph.outputs) == 1,
        "arguments": _arguments(graph),
        "output_tree": graph.output_tree,
    }


def _outputs(graph: Graph) -> list[dict[str, Any]]:
    specs = [spec for node in graph.outputs for spec in node.specs]
    found = [{"shape": described_shape(each.shape), "dtype": str(each.dtype)} for each in specs]
    if not graph.output_names:
        return found
    return [{"name": n, **each} for n, each in zip(graph.output_names, found, strict=True)]


def _input(leaf: Leaf, valid: tuple[int, int] | None) -> dict[str, Any]:
    return _leaf(leaf) if valid is None else {**_leaf(leaf), "range": described_shape(valid)}


def _leaf(leaf: Leaf) -> dict[str, Any]:
    (spec,) = leaf.node.specs
    return {"name": leaf.name, "shape": described_shape(spec.shape), "dtype": str(spec.dtype)}


def _arguments(graph: Graph) -> list[dict[str, Any]]:
    """Return the traced call's arguments in the form that `trees.flatten_arguments` reads."""
    args, kwargs = graph.input_tree["args"], graph.input_tree["kwargs"]
    names = positional_names(graph.signature, len(args))
    named = [*zip(names, args, strict=True), *kwargs.items()]
    for name, tree in named:
        _check_static(name, tree)
    return [{"name": name, "tree": tree} for name, tree in named]


def _check_static(name: str, tree: Any) -> None:
    """Raise TranslationError unless every value in the tree that is not an array fits into JSON."""
    if tree == trees.LEAF:
        return
    ((kind, parts),) = tree.items()
    if kind == "static":
        if parts is not None and not isinstance(parts, (bool, int, float, str)):
            raise TranslationError(
                f"argument {name!r}: a {type(parts).__name__} cannot be kept in an artifact; "
                "only tensors, numbers, strings, None and lists, tuples and dicts of them can"
            )
        return
    for part in parts.values() if kind == "dict" else parts:
        _check_static(name, part)
