"""Operators whose result is their input or a view of it, although their schema does not say so. A
write to such a result must reach the input. Imports PyTorch when called."""

from __future__ import annotations

from typing import Any

from .nodes import is_in_place

# Operators whose schemas declare a copy although they make views, and the same operators as views.
_VIEWS = {
    "unsafe_chunk.default": "chunk.default",
    "unsafe_split.Tensor": "split.Tensor",
    "unsafe_split_with_sizes.default": "split_with_sizes.default",
}

_DROPOUTS = tuple(
    f"aten.{kind}dropout{place}.default"
    for kind in ("", "alpha_", "feature_", "feature_alpha_")
    for place in ("", "_")
)


def restored(exported: Any) -> set[Any]:
    """Remove dropouts that return their input. If the program writes in place, replace operators
    that return undeclared views by view operators, so that writes to the views reach the inputs.
    Return the operators that must be decomposed for the same reason."""
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    writes = any(is_in_place(node.target) for node in nodes)
    composed = set()
    for node in nodes:
        name = str(node.target).removeprefix("aten.")
        if _drops_nothing(node):
            (given,) = node.all_input_nodes
            node.replace_all_uses_with(given)
            exported.graph_signature.replace_all_uses(node.name, given.name)
            exported.graph.erase_node(node)
        elif not writes:
            continue
        elif name in _VIEWS:
            node.target = _operator(_VIEWS[name])
        elif name == "einsum.default" and len(node.all_input_nodes) == 1:
            composed.add(node.target)
    exported.graph_module.recompile()
    return composed


def _drops_nothing(node: Any) -> bool:
    """Return whether a node is a dropout that returns its input itself."""
    if str(node.target) not in _DROPOUTS:
        return False
    _, probability, training = node.args
    return not training or probability == 0


def _operator(name: str) -> Any:
    import torch

    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)
