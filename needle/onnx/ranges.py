"""Rewrite float ranges over whole numbers, which exporters write for the grids of detectors."""

from __future__ import annotations

import dataclasses

import numpy as np

from .graph import Graph, Node

_FLOATS = (1, 10, 11, 16)  # codes of float32, float16, float64, bfloat16


def whole_ranges(graph: Graph, known: dict[str, np.ndarray]) -> Graph:
    """Replace each Range whose limit is an integer cast to float with a Range over integers and a
    cast of its result. A symbolic size is an expression of dims only before the cast.

    The start and step of the Range must be known whole numbers; they are added to `known` as
    integers. Return the new `graph`.
    """
    casts = {
        node.outputs[0]: node
        for node in graph.nodes
        if node.op_type == "Cast" and node.domain == "" and node.attributes.get("to") in _FLOATS
    }
    nodes: list[Node] = []
    for node in graph.nodes:
        to = casts.get(node.inputs[1]) if node.op_type == "Range" and not node.domain else None
        if to is None or not all(_is_whole(known.get(node.inputs[i])) for i in (0, 2)):
            nodes.append(node)
            continue
        start, step = (f"{node.inputs[i]}, whole" for i in (0, 2))
        for name, i in ((start, 0), (step, 2)):
            known[name] = known[node.inputs[i]].astype("int64")
        between = f"{node.outputs[0]}, whole"
        ends = (start, to.inputs[0], step)
        nodes.append(dataclasses.replace(node, inputs=ends, outputs=(between,)))
        nodes.append(dataclasses.replace(to, inputs=(between,), outputs=node.outputs))
    return dataclasses.replace(graph, nodes=tuple(nodes))


def _is_whole(value: object) -> bool:
    """Return whether a value is one known float without a fraction."""
    if not isinstance(value, np.ndarray) or value.size != 1 or value.dtype.kind != "f":
        return False
    return bool(np.isfinite(value).all() and (value == np.floor(value)).all())
