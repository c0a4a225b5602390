"""Shrink a failing graph of ONNX operators: `campaign.shrink` does it to needle's own programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from needle_tvm.check.campaign.onnx.draw import run
from needle_tvm.check.campaign.onnx.graphs import INPUT, GraphProgram, Leaf

Fails = Callable[[GraphProgram], bool]


def shrunk(program: GraphProgram, fails: Fails, computed: bool = True) -> GraphProgram:
    """Return the smallest graph found that still `fails`, as `program` does.

    ONNX Runtime computes the graph here, so that values can be read in the place of nodes, unless
    `computed` says that it refused the graph or may have ended the process that ran it.
    """
    changed = True
    while changed:
        values = _values(program) if computed else {}
        candidates = (each for each in _smaller(program, values) if _size(each) < _size(program))
        smaller = next((each for each in candidates if fails(each)), program)
        changed, program = smaller != program, smaller
    return program


def _size(program: GraphProgram) -> int:
    return len(program.nodes) + len(program.outputs)


def _smaller(program: GraphProgram, values: dict[str, np.ndarray]) -> Iterator[GraphProgram]:
    """Yield graphs with fewer parts, the boldest changes first."""
    if not values:
        for output in program.outputs if len(program.outputs) > 1 else ():
            yield program.pruned([output])
        return
    made = [(name, values[name].dtype.name) for n in program.nodes for name in n.outputs]
    for node in program.nodes if len(program.nodes) > 1 else ():
        outputs = [each for each in made if each[0] in node.outputs]
        yield _read_in(program, values, set(node.inputs)).pruned(outputs)
    for each in made:
        yield program.pruned([each])
    for node in program.nodes[:-1]:
        yield _read_in(program, values, set(node.outputs)).pruned(program.outputs)


def _values(program: GraphProgram) -> dict[str, np.ndarray]:
    """Return what ONNX Runtime computes for every tensor that a node makes."""
    names = [name for node in program.nodes for name in node.outputs]
    model = dataclasses.replace(program, outputs=()).model()
    for name in names:
        model.graph.output.add().name = name
    inputs = [leaf.name for leaf in program.leaves if leaf.kind == INPUT]
    found = run(model, dict(zip(inputs, program.arrays(), strict=True)))
    return dict(zip(names, found, strict=True))


def _read_in(program: GraphProgram, values: dict[str, np.ndarray], names: set[str]) -> GraphProgram:
    """Return the graph with inputs in the place of these tensors, as far as nodes make them."""
    names &= values.keys()
    leaves = [
        Leaf(
            name,
            INPUT,
            values[name].shape,
            values[name].dtype.name,
            numbers=tuple(each.item() for each in values[name].reshape(-1)),
        )
        for name in sorted(names)
    ]
    nodes = [
        dataclasses.replace(node, outputs=tuple(f"{n}_" if n in names else n for n in node.outputs))
        for node in program.nodes
    ]
    return dataclasses.replace(program, leaves=(*program.leaves, *leaves), nodes=tuple(nodes))
