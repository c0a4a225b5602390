"""Rewrites vectors that reach past the end of an axis: moves them back, or shortens them.

    for i in range(63): for lane in vectorized(16): if i * 16 + lane < 1000: y[i * 16 + lane] = ...

runs lane by lane under the condition, 16 times as slow as a vector. It becomes

    for i in range(63): for lane in vectorized(16): y[min(i * 16, 984) + lane] = ...

which computes some elements twice. If the second computation might read what the first has written,
the loop becomes

    for i in range(63):
        if i * 16 <= 984: for lane in vectorized(16): y[i * 16 + lane] = ...
        elif i * 16 < 1000: for lane in vectorized(8): y[i * 16 + lane] = ...

A result can overwrite its operand if TVM gives both the same memory (`StorageRewrite`). If every
iteration reads the operand at the position at which it writes the result, TVM lets the two share
memory, provided that the function itself allocates both. If an outer loop computes a buffer part by
part, the buffer holds only the current part. A vector that is moved back would then read before the
start of that part. So elements are computed twice only if every operand whose index varies along
the vector is a parameter of the function.

If the end is symbolic, the last elements are computed one by one:

    for i in range(ceildiv(n, 16)):
        if i * 16 <= n - 16: for lane in vectorized(16): y[i * 16 + lane] = ...
        else: for lane in range(n - i * 16): y[i * 16 + lane] = ...

A scheduling rule may ask that whole tiles, with all their blocks, be moved back in the same way: in
a loop `for t` over tiles that is annotated with `ENDS_AT`, each position `t * width` becomes
`min(t * width, end - width)`.

No schedule primitive does this, so the pass rewrites functions after they are scheduled.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.extents import is_multiple
from needle_tvm.tir.functions import NODES, loads_in, nodes_in, variables_of

# Annotation of a loop over tiles. Its value is the number of elements along the axis, which must be
# at least the width of a tile. The last tile is moved back so that it ends where the axis ends;
# some elements may then be computed twice.
ENDS_AT = "needle.ends_at"


def whole_vectors(function: PrimFunc) -> PrimFunc:
    """Rewrite every vectorised loop around one elementwise block if the only condition that differs
    between lanes is that a position `number * width + lane` lies before an end."""
    parameters = set(function.params)

    def changed(loop: Any) -> Any:
        return _changed(loop, parameters)

    body = nests.map_nodes(function.body, NODES.loop, _moved_back)
    return function.with_body(nests.map_nodes(body, NODES.loop, changed))


def _changed(loop: Any, parameters: Collection[Any]) -> Any:
    """Return the rewritten loop, or the loop itself if it needs no rewrite or does not fit."""
    realize, lane = loop.body, loop.loop_var
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(realize, NODES.realize):
        return loop
    width = int(loop.extent)  # constant in a vectorised loop
    block = realize.block
    bounds, others = conditions(realize.predicate, lane)
    if len(bounds) != 1:
        return loop
    (bound,) = bounds
    if not isinstance(bound, tirx.LT) or lane in variables_of(bound.b):
        return loop
    if any(axis.iter_type != nests.SPATIAL for axis in block.iter_vars) or block.alloc_buffers:
        return loop
    start = start_of(bound.a, lane, width)
    if start is None or _wraps_around(realize, lane, width, parameters):
        return loop
    if not isinstance(bound.b, tirx.IntImm):
        rest = _one_by_one(loop, bound.b - start, others)
        return tirx.IfThenElse(start <= bound.b - width, _lanes(loop, width, others), rest)
    end = int(bound.b)
    along = [
        (axis.var, value)
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if lane in variables_of(value)
    ]
    if end >= width and len(along) == 1 and nests.same(along[0][1], bound.a):
        if _may_repeat(block, along[0][0], parameters):
            moved = tirx.min(start, tirx.const(end - width, str(start.ty))) + lane
            values = [moved if lane in variables_of(v) else v for v in realize.iter_values]
            body = nests.realize(values, block, others)
            return tirx.For(lane, loop.min, loop.extent, loop.kind, body)
    rest = end % width
    last = tirx.IfThenElse(start < end, _lanes(loop, rest, others), None) if rest else None
    if end < width:
        return last
    return tirx.IfThenElse(start <= end - width, _lanes(loop, width, others), last)


def _moved_back(loop: Any) -> Any:
    """If `loop` is annotated with `ENDS_AT`, return it with its last tile moved back to end at the
    annotated position; otherwise return it unchanged."""
    if ENDS_AT not in loop.annotations:
        return loop
    tile, end = loop.loop_var, int(loop.annotations[ENDS_AT])

    def start(product: Any) -> Any:
        if not product.a.same_as(tile):
            return product
        return tirx.min(product, tirx.const(end - int(product.b), str(product.ty)))

    def unconditional(realize: Any) -> Any:
        within, others = conditions(realize.predicate, tile)
        if not all(_ends_at(each, end) for each in within):
            return realize
        return nests.realize(realize.iter_values, realize.block, others)

    body = nests.map_nodes(loop.body, NODES.realize, unconditional)
    body = nests.map_nodes(body, tirx.Mul, start)
    others = {key: value for key, value in loop.annotations.items() if key != ENDS_AT}
    return tirx.For(tile, loop.min, loop.extent, loop.kind, body, annotations=others)


def _ends_at(condition: Any, end: int) -> bool:
    """Return whether a condition is `position < end`."""
    bounded = isinstance(condition, tirx.LT) and isinstance(condition.b, tirx.IntImm)
    return bounded and int(condition.b) == end


def conditions(predicate: Any, lane: Any) -> tuple[list[Any], Any]:
    """Split a conjunction: return the parts that differ between lanes, and the conjunction of the
    others."""
    if isinstance(predicate, tirx.And):
        left, right = (conditions(part, lane) for part in (predicate.a, predicate.b))
        return left[0] + right[0], tirx.all(left[1], right[1])
    if lane in variables_of(predicate):
        return [predicate], tirx.const(True)
    return [], predicate


def _may_repeat(block: Any, variable: Any, parameters: Collection[Any]) -> bool:
    """Return whether elements along an axis of a block may be computed twice (see the module
    docstring)."""
    written = {region.source for region in block.writes}
    loads = loads_in(block)
    if any(load.source in written for load in loads):
        return False
    return all(
        load.source in parameters
        for load in loads
        if any(variable in variables_of(index) for index in load.indices)
    )


def _wraps_around(realize: Any, lane: Any, width: int, parameters: Collection[Any]) -> bool:
    """Return whether quotients or remainders that change within a vector are indices of a buffer
    that the function allocates. Inside the `if` that the rewrite adds, TVM 0.27 would find no
    bounds for these indices, and the buffer's extents would depend on loop variables."""
    axes = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    along = {axis.var for axis, value in axes if lane in variables_of(value)}
    own = (load for load in loads_in(realize.block) if load.source not in parameters)
    indices = (index for load in own for index in load.indices)
    divisions = (each for index in indices for each in nodes_in(index, NODES.division))
    within = (each for each in divisions if variables_of(each.a) & along)
    return not all(is_multiple(each.b, width) for each in within)


def _lanes(loop: Any, width: int, condition: Any) -> Any:
    """Return a copy of the loop with `width` lanes and new variables, whose block runs only if
    `condition` holds."""
    realize, lane = loop.body, tirx.Var(loop.loop_var.name, str(loop.loop_var.ty))
    values = [nests.substitute(value, {loop.loop_var: lane}) for value in realize.iter_values]
    body = nests.realize(values, nests.renewed(realize.block), condition)
    return tirx.For(lane, loop.min, tirx.const(width, str(lane.ty)), loop.kind, body)


def _one_by_one(loop: Any, count: Any, condition: Any) -> Any:
    """Return the first `count` lanes of the loop as a plain loop."""
    plain = _lanes(loop, 1, condition)
    return tirx.For(plain.loop_var, plain.min, count, tirx.ForKind.SERIAL, plain.body)


def start_of(position: Any, lane: Any, width: int) -> Any:
    """Return `number * width` if `position` is `number * width + lane`, else None."""
    if not isinstance(position, tirx.Add) or not position.b.same_as(lane):
        return None
    start = position.a
    if not isinstance(start, tirx.Mul) or not isinstance(start.b, tirx.IntImm):
        return None
    return start if int(start.b) == width and lane not in variables_of(start.a) else None
