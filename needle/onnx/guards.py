"""Rewrite the attention that PyTorch exports, so that it becomes one kernel.

Before: MatMul(Where(IsNaN(s), 0, s), v) with s = Softmax(MatMul(...) + mask), where no other node
reads an intermediate result. If a query sees no key, its mask is all -inf and its softmax is NaN.
After: the lowest finite number replaces -inf in the mask, so that no weight is NaN. In the result,
the rows of queries that see no key are set to 0. A NaN in a query or key is no longer hidden.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .graph import Graph, Node, used_names

DOMAIN = "needle.internal"  # the domain of the operators below, which no file contains


class _Guard(NamedTuple):
    """The nodes of one guarded attention, and the name of its mask."""

    total: Node
    softmax: Node
    check: Node
    choice: Node
    product: Node
    mask: str


def without_guards(graph: Graph, known: Mapping[str, np.ndarray]) -> Graph:
    """Return the `graph` with each guarded attention rewritten. `known` maps names to known
    values."""
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in used_names(node):
            readers.setdefault(name, []).append(node)
    for info in graph.outputs:  # an output has a reader outside the graph
        readers.setdefault(info.name, []).append(_node("Output", [info.name], []))
    changed: dict[int, list[Node]] = {}
    for node in graph.nodes:
        found = _guard(node, makers, readers, known)
        if found is not None:
            changed |= _rewritten(found)
    nodes = [new for node in graph.nodes for new in changed.get(id(node), [node])]
    return dataclasses.replace(graph, nodes=tuple(nodes)) if changed else graph


def _guard(
    softmax: Node,
    makers: Mapping[str, Node],
    readers: Mapping[str, list[Node]],
    known: Mapping[str, np.ndarray],
) -> _Guard | None:
    if _kind(softmax) != "Softmax" or softmax.integer("axis", 1) != -1:
        return None
    weights = softmax.outputs[0]
    used = {_kind(node): node for node in readers.get(weights, ())}
    if len(readers.get(weights, ())) != 2 or used.keys() != {"IsNaN", "Where"}:
        return None
    check, choice = used["IsNaN"], used["Where"]
    zero = known.get(choice.inputs[1])
    if choice.inputs != (check.outputs[0], choice.inputs[1], weights) or zero is None:
        return None
    if zero.size != 1 or zero.reshape(-1)[0] != 0 or readers[check.outputs[0]] != [choice]:
        return None
    after = readers.get(choice.outputs[0], ())
    total = makers.get(softmax.inputs[0])
    if len(after) != 1 or _kind(after[0]) != "MatMul" or after[0].inputs[0] != choice.outputs[0]:
        return None
    if _kind(total) != "Add" or total is None or readers[total.outputs[0]] != [softmax]:
        return None
    products = [_kind(makers.get(name)) == "MatMul" for name in total.inputs]
    if sum(products) != 1:
        return None
    mask = total.inputs[products.index(False)]
    return _Guard(total, softmax, check, choice, after[0], mask)


def _kind(node: Node | None) -> str:
    return node.op_type if node is not None and node.domain == "" else ""


def _rewritten(found: _Guard) -> dict[int, list[Node]]:
    """Return a dict from the id of each node that changes to its replacements."""
    finite, product = f"{found.total.name}:finite", f"{found.product.name}:all"
    weights, (result,) = found.softmax.outputs[0], found.product.outputs
    inputs = tuple(finite if name == found.mask else name for name in found.total.inputs)
    values = (weights, *found.product.inputs[1:])
    return {
        id(found.total): [
            _node("Finite", [found.mask], [finite]),
            dataclasses.replace(found.total, inputs=inputs),
        ],
        id(found.check): [],
        id(found.choice): [],
        id(found.product): [
            dataclasses.replace(found.product, inputs=values, outputs=(product,)),
            _node("ZeroRows", [product, found.mask], [result]),
        ],
    }


def _node(operator: str, inputs: list[str], outputs: list[Any]) -> Node:
    return Node(operator, DOMAIN, f"{operator}:{inputs[0]}", tuple(inputs), tuple(outputs), {}, 1)
