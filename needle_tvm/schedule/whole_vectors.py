"""Vectors that reach over the end of an axis, moved back so that they end there.

    for i in range(63): for lane in vectorized(16): if i * 16 + lane < 1000: y[i * 16 + lane] = ...

is done lane by lane under the condition, 16 times as slow as a vector. Where each element depends
on others' results in no way, it may as well be computed twice:

    for i in range(63): for lane in vectorized(16): y[min(i * 16, 984) + lane] = ...

No schedule has a primitive for this: it is done to functions once they are scheduled.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm import NODES, PrimFunc, nests, nodes_in, tirx, variables_of


def whole_vectors(function: PrimFunc) -> PrimFunc:
    """The function with every vectorised block that ends in the middle of a vector changed so."""
    vectors = {
        loop.loop_var: int(loop.extent)
        for loop in nodes_in(function.body, NODES.loop)
        if loop.kind == tirx.ForKind.VECTORIZED
    }

    def moved(realize: Any) -> Any:
        return _moved_back(realize, vectors) or realize

    return function.with_body(nests.map_nodes(function.body, NODES.realize, moved))


def _moved_back(realize: Any, vectors: dict[Any, int]) -> Any:
    """One block of whole vectors; None where it has them, or is no map of elements."""
    block, bound = realize.block, realize.predicate
    if not isinstance(bound, tirx.LT) or not isinstance(bound.b, tirx.IntImm):
        return None
    if any(axis.iter_type != nests.SPATIAL for axis in block.iter_vars):
        return None
    written = [region.source for region in block.writes]
    if any(region.source.same_as(each) for region in block.reads for each in written):
        return None
    position, end = bound.a, int(bound.b)
    parts = _vector(position, vectors)
    if parts is None or end < parts[2]:
        return None
    start, lane, width = parts
    values, found = [], 0
    for value in realize.iter_values:
        if nests.same(value, position):
            found += 1
            value = tirx.min(start, tirx.const(end - width, str(start.ty))) + lane
        elif lane in variables_of(value):
            return None
        values.append(value)
    return nests.realize(values, block) if found == 1 else None


def _vector(position: Any, vectors: dict[Any, int]) -> tuple[Any, Any, int] | None:
    """(start, lane, width) of a position `number * width + lane` in a vectorised loop."""
    if not isinstance(position, tirx.Add) or not isinstance(position.a, tirx.Mul):
        return None
    width = vectors.get(position.b)
    if width is None or not isinstance(position.a.b, tirx.IntImm):
        return None
    return (position.a, position.b, width) if int(position.a.b) == width else None
