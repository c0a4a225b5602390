"""Splits vectorised loops at the positions where their elements start to come from another source.

    for i in range(32): for lane in vectorized(16):
        y[i * 16 + lane] = x[i * 16 + lane - 5] if i * 16 + lane >= 5 else z[i * 16 + lane]

reads lane by lane, since neighbours come from different tensors. Concatenated and rolled tensors
have such loops. The loop becomes

    for lane in vectorized(5): y[lane] = z[lane]
    for i in range(32): for lane in vectorized(16): if i * 16 + lane < 507:
        y[i * 16 + lane + 5] = x[i * 16 + lane]

Loops with quotients and remainders of the position, as in repeated tensors, are split at the
multiples of the divisor. Choices between an element and a constant (padding) stay, because they
compile to vector selects.

The pass runs after functions are scheduled and before `whole_vectors`, which handles the last
vector of each piece.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.kernels.loops.whole_vectors import conditions, start_of
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, linear_in, nodes_in, simplified, variables_of

_MOST = 8  # pieces of a loop; each piece adds code
_CHOICE = "prim.if_then_else"


def split_loops(function: PrimFunc) -> PrimFunc:
    """Rewrite every vectorised loop around one elementwise block for which there are `cuts`."""
    return function.with_body(nests.map_nodes(function.body, NODES.loop, _changed))


def cuts(block: Any, lanes: int) -> list[int]:
    """Return the positions along a block's last axis at which to split its loop, if it is to be
    vectorised by `lanes`. The positions are in ascending order, without the axis's ends."""
    if not isinstance(block.body, NODES.store) or not block.iter_vars:
        return []
    axis = block.iter_vars[-1]
    if not isinstance(axis.dom.extent, tirx.IntImm):
        return []
    position, end = axis.var, int(axis.dom.extent)
    places: set[int] = set()
    for choice in _choices(block.body):
        condition, *arms = _parts(choice)
        if all(nodes_in(arm, NODES.load) for arm in arms):
            for comparison in _comparisons(condition, position) or ():
                places |= _changes(comparison, position, end)
    for division in _divisions(block.body, position):
        if int(division.b) >= lanes:
            places |= _multiples(division, position, end)
    return sorted(places) if len(places) < _MOST else []


def _choices(root: Any) -> list[Any]:
    calls = [call for call in nodes_in(root, NODES.call) if _is_choice(call)]
    return calls + nodes_in(root, NODES.select)


def _is_choice(node: Any) -> bool:
    return isinstance(node, NODES.select) or getattr(node.op, "name", "") == _CHOICE


def _parts(choice: Any) -> tuple[Any, Any, Any]:
    """Return the condition of a choice, its value if the condition holds, and its value if not."""
    if isinstance(choice, NODES.select):
        return choice.condition, choice.true_value, choice.false_value
    condition, one, other = choice.args
    return condition, one, other


def _comparisons(condition: Any, position: Any) -> list[Any] | None:
    """Return the comparisons in a condition. Return None if the condition depends on more than
    `position`, or if a comparison is not linear in it and so may change its outcome repeatedly."""
    if variables_of(condition) != {position} or nodes_in(condition, NODES.load):
        return None
    found = [each for kind in NODES.comparisons for each in nodes_in(condition, kind)]
    ordered = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    linear = (isinstance(c, ordered) and linear_in(c.a - c.b, [position]) for c in found)
    return found if all(linear) else None


def _at(expr: Any, position: Any, place: int) -> int:
    """Return the value at `position` = `place` of an expression that depends only on `position`."""
    value = tirx.const(place, str(position.ty))
    return int(simplified(nests.substitute(expr, {position: value})))


def _changes(comparison: Any, position: Any, end: int) -> set[int]:
    """Return the position, if any, from which on a linear comparison's outcome differs from that at
    position 0."""
    low, high = 0, end - 1
    first = _at(comparison, position, low)
    if _at(comparison, position, high) == first:
        return set()
    while high - low > 1:
        middle = (low + high) // 2
        same = _at(comparison, position, middle) == first
        low, high = (middle, high) if same else (low, middle)
    return {high}


def _divisions(root: Any, position: Any) -> list[Any]:
    """Return the quotients and remainders of (`position` plus a constant) by a constant."""

    def fits(division: Any) -> bool:
        if not isinstance(division.b, tirx.IntImm) or variables_of(division.a) != {position}:
            return False
        factor, added = linear_in(division.a, [position]) or (None, None)
        return factor == 1 and isinstance(added, tirx.IntImm)

    found = (each for kind in NODES.division for each in nodes_in(root, kind))
    return [each for each in found if fits(each)]


def _multiples(division: Any, position: Any, end: int) -> set[int]:
    """Return the positions at which a quotient grows by one."""
    first = -_at(division.a, position, 0) % int(division.b)
    return set(range(first or int(division.b), end, int(division.b)))


def _changed(loop: Any) -> Any:
    """Return the pieces of a loop over vectors, or the loop itself if it cannot be split."""
    inner = loop.body
    if not isinstance(inner, NODES.loop) or inner.kind != tirx.ForKind.VECTORIZED:
        return loop
    realize, width = inner.body, int(inner.extent)
    if not isinstance(realize, NODES.realize):
        return loop
    block = realize.block
    if block.init is not None or block.alloc_buffers or not block.iter_vars:
        return loop
    if any(axis.iter_type != nests.SPATIAL for axis in block.iter_vars):
        return loop
    own = {loop.loop_var, inner.loop_var}
    *others, last = realize.iter_values
    start = start_of(last, inner.loop_var, width)
    if start is None or not start.a.same_as(loop.loop_var):
        return loop
    _, where = conditions(realize.predicate, inner.loop_var)
    if own & variables_of(where) or any(own & variables_of(value) for value in others):
        return loop
    places = cuts(block, width)
    if not places:
        return loop
    ends = [*places, int(block.iter_vars[-1].dom.extent)]
    spans = zip([0, *places], ends, strict=True)
    return tirx.SeqStmt([_piece(loop, realize, where, begin, end) for begin, end in spans])


def _piece(loop: Any, realize: Any, where: Any, begin: int, end: int) -> Any:
    """Return the loop over the elements from `begin` to `end` along the last axis."""
    width, count = int(loop.body.extent), end - begin
    block = nests.renewed(realize.block)
    *axes, last = block.iter_vars
    dtype = str(last.var.ty)
    axis = nests.axis(last.var.name, count, nests.SPATIAL, dtype)
    body = _decided(block.body, last.var, begin, end)
    body = nests.substitute(body, {last.var: axis.var + tirx.const(begin, dtype)})
    block = nests.block_of([*axes, axis], block.name_hint, body, annotations=block.annotations)
    lane, number = (tirx.Var(each.loop_var.name, dtype) for each in (loop.body, loop))
    place = number * width + lane if count >= width else lane
    if count > width and count % width:
        where = tirx.all(where, place < tirx.const(count, dtype))
    values = [*realize.iter_values[:-1], place]
    zero, lanes = tirx.const(0, dtype), tirx.const(min(width, count), dtype)
    body = nests.realize(values, block, where)
    body = tirx.For(lane, zero, lanes, tirx.ForKind.VECTORIZED, body)
    if count < width:
        return body
    return tirx.For(number, zero, tirx.const(-(-count // width), dtype), loop.kind, body)


def _decided(store: Any, position: Any, begin: int, end: int) -> Any:
    """Return a store for the elements from `begin` to `end`, without the choices and divisions that
    have the same outcome for all of them."""

    def is_alike(expr: Any) -> bool:
        return _at(expr, position, begin) == _at(expr, position, end - 1)

    def chosen(choice: Any) -> Any:
        if not _is_choice(choice):
            return choice
        condition, one, other = _parts(choice)
        compared = _comparisons(condition, position)
        if compared is None or not all(map(is_alike, compared)):
            return choice
        return one if _at(condition, position, begin) else other

    def divided(division: Any) -> Any:
        if not any(division.same_as(each) for each in _divisions(division, position)):
            return division
        quotient = tirx.floordiv(division.a, division.b)
        if not is_alike(quotient):
            return division
        number = tirx.const(_at(quotient, position, begin), str(division.ty))
        if isinstance(division, tirx.FloorDiv):
            return number
        return simplified(division.a - number * division.b)

    for kind, change in (
        (NODES.call, chosen),
        (NODES.select, chosen),
        (tirx.FloorMod, divided),  # first: a quotient may contain remainders
        (tirx.FloorDiv, divided),
    ):
        store = nests.map_nodes(store, kind, change)
    return store
