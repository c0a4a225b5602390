"""Reductions along memory as vectors of partial results, before a function is scheduled.

    for k in range(1000): total[i] += f(k)

becomes, for vectors of 16 with which 1000 = 62 * 16 + 8,

    for k in range(62): for lane in range(16): partial[i, lane] += f(k * 16 + lane)
    for lane in range(16): rest[i, lane] = partial[i, lane] + f(984 + lane) if lane >= 8
                                           else partial[i, lane]
    total[i] = the lanes of rest[i] added up, one half of them to the other

The last vector overlaps the one before, so that a row of any length is read in whole vectors. TVM's
`rfactor` makes the same where the lanes divide the row; elsewhere the bounds it gives a block are
lost when that is computed at another (TVM 0.27).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from needle_tvm._tvm import NODES, PrimFunc, Schedule, Target, nests, nodes_in, tirx, variables_of
from needle_tvm.schedule.blocks import (
    PARTIAL,
    blocks_of,
    inline_producers,
    item_bytes,
    vector_registers,
)

_CHAINS = (4, 2)  # vectors side by side in long rows, so that no sum waits for the one before
_LONG = 4  # iterations of the loop that a row is worth to be long
_FEWEST_LANES = 4
_DTYPES = ("float32", "float64", "int32", "int64")
_FEWEST_TERMS = 8  # fewer are sooner added up one by one


@dataclass(frozen=True)
class _Reduction:
    """result[...] = combine(result[...], term) over `axes`, of which the last `along` are one
    stretch of memory in all that differs between its terms."""

    spatial: list[Any]
    axes: list[Any]
    along: int
    term: Any
    combine: Callable[[Any, Any], Any]
    repeatable: bool  # whether a term may be taken twice, as in a maximum
    across: str | None  # LLVM's reduction of a vector, None where halves are to be combined

    @property
    def length(self) -> int:
        return prod(int(axis.dom.extent) for axis in self.axes[-self.along :])


def with_partial_results(function: PrimFunc, target: Target) -> PrimFunc:
    """The function with what can be inlined inlined, and its reductions along memory rewritten.

    The function itself where there are none.
    """
    sch = Schedule(function)
    if not blocks_of(sch):
        return function
    inline_producers(sch, keep=set())
    inlined = sch.mod["main"]
    body = inlined.body.block.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    bytes_of_vector = vector_registers(target)[1]
    nests_now, buffers, changed = [], [], False
    for statement in statements:
        block = _only_block(statement)
        made = None if block is None else _rewritten(block, bytes_of_vector)
        changed = changed or made is not None
        nests_now += [statement] if made is None else made[0]
        buffers += [] if made is None else made[1]
    return nests.with_root(inlined, nests_now, buffers) if changed else function


def _only_block(statement: Any) -> Any:
    """The block in a nest of loops that go over its axes one by one; None in any other nest."""
    loops = []
    while isinstance(statement, NODES.loop):
        loops.append(statement.loop_var)
        statement = statement.body
    if not isinstance(statement, NODES.realize):
        return None
    values = list(statement.iter_values)
    plain = len(values) == len(loops) and all(
        value.same_as(loop) for value, loop in zip(values, loops, strict=True)
    )
    return statement.block if plain else None


def _rewritten(block: Any, bytes_of_vector: int) -> tuple[list[Any], list[Any]] | None:
    """The nests that take a reduction's place and the buffers between them; None where it is no
    reduction along memory, or one of too few terms."""
    found = _reduction(block)
    if found is None:
        return None
    result = block.body.buffer
    lanes = bytes_of_vector // item_bytes(str(result.dtype))
    length = found.length
    width = next((lanes * n for n in _CHAINS if length >= _LONG * lanes * n), lanes)
    while width > length:
        width //= 2
    while found.along < len(found.axes) and width >= _FEWEST_LANES and length % width:
        width //= 2  # what is left of each stretch would have to be added up as well
    if width < _FEWEST_LANES or length < _FEWEST_TERMS:
        return None
    return _Writer(block, found, width).nests()


class _Writer:
    """Writes the nests of one reduction; `_indices` says where a result lies in their buffers."""

    def __init__(self, block: Any, found: _Reduction, width: int) -> None:
        self._block, self._found, self._width = block, found, width
        self._result = block.body.buffer
        self._type = str(block.iter_vars[0].var.ty)
        self._nests: list[Any] = []
        self._buffers: list[Any] = []

    def nests(self) -> tuple[list[Any], list[Any]]:
        last = self._sums()
        if self._found.length % self._width:
            last = self._rest(last)
        self._total(last)
        return self._nests, self._buffers

    def _sums(self) -> Any:
        found = self._found
        *outer, steps = [
            self._axis(axis.var.name, int(axis.dom.extent), nests.REDUCED)
            for axis in found.axes[: -found.along]
        ] + [self._axis("steps", found.length // self._width, nests.REDUCED)]
        values = {old.var: new.var for old, new in zip(found.axes, outer, strict=False)}
        spatial, lane, partial = self._begin("partial", self._width, values)
        values |= self._along(steps.var * self._width + lane.var)
        at = [*self._indices(values), lane.var]
        value = found.combine(partial[tuple(at)], nests.substitute(found.term, values))
        start = tirx.BufferStore(partial, self._block.init.value, at)
        self._end("partial", [*spatial, lane, *outer, steps], partial, value, at, start)
        return partial

    def _rest(self, before: Any) -> Any:
        """The last terms: whole vectors end at the row's end, and begin among terms of before."""
        found, width = self._found, self._width
        values: dict[Any, Any] = {}
        spatial, lane, rest = self._begin("rest", width, values)
        values |= self._along(lane.var + (found.length - width))
        at = [*self._indices(values), lane.var]
        old = before[tuple(at)]
        value = found.combine(old, nests.substitute(found.term, values))
        if not found.repeatable:
            seen = width - found.length % width
            value = tirx.Select(lane.var >= seen, value, old)
        self._end("rest", [*spatial, lane], rest, value, at)
        return rest

    def _total(self, before: Any) -> None:
        """All lanes combined, one half of them with the other."""
        values: dict[Any, Any] = {}
        spatial, _, _ = self._begin("total", 1, values)
        where = self._indices(values)
        if self._found.across is None:
            value = nests.combined(before, where, self._width, self._found.combine)
        else:
            value = nests.across(before, where, self._width, self._found.across)
        self._end("", spatial, self._result, value, where)

    def _begin(self, name: str, width: int, values: dict[Any, Any]) -> tuple[list[Any], Any, Any]:
        """New axes for the results and the lanes, and a buffer for what is written."""
        spatial = []
        for old in self._found.spatial:
            new = self._axis(old.var.name, int(old.dom.extent), nests.SPATIAL)
            values[old.var] = new.var
            spatial.append(new)
        lane = self._axis("lane", width, nests.SPATIAL)
        shape = [*(int(n) for n in self._result.shape), width]
        return spatial, lane, nests.buffer(f"{self._result.name}_{name}", shape, self._result.dtype)

    def _end(
        self, name: str, axes: Any, buffer: Any, value: Any, at: Any, start: Any = None
    ) -> None:
        store = tirx.BufferStore(buffer, value, list(at))
        if buffer.same_as(self._result):
            name = self._block.name_hint
        else:
            self._buffers.append(buffer)
            name = f"{self._block.name_hint}_{name}"
        self._nests.append(nests.nest(axes, name, store, start, {PARTIAL: 1}))

    def _along(self, position: Any) -> dict[Any, Any]:
        """The axes that are one stretch of memory, for a position in it."""
        values = {}
        axes = self._found.axes[-self._found.along :]
        for axis in reversed(axes[1:]):
            extent = int(axis.dom.extent)
            values[axis.var] = tirx.floormod(position, extent)
            position = tirx.floordiv(position, extent)
        values[axes[0].var] = position
        return values

    def _indices(self, values: dict[Any, Any]) -> list[Any]:
        return [nests.substitute(index, values) for index in self._block.body.indices]

    def _axis(self, name: str, extent: int, kind: int) -> Any:
        return nests.axis(name, extent, kind, self._type)


def _reduction(block: Any) -> _Reduction | None:
    """What a block reduces; None where it is no such reduction along memory."""
    store, axes = block.body, list(block.iter_vars)
    constant = all(isinstance(axis.dom.extent, tirx.IntImm) for axis in axes)
    if block.init is None or not isinstance(store, NODES.store) or not constant:
        return None
    if str(store.buffer.dtype) not in _DTYPES:
        return None
    if not isinstance(block.init, NODES.store):
        return None
    spatial = [axis for axis in axes if axis.iter_type == nests.SPATIAL]
    reduced = [axis for axis in axes if axis.iter_type == nests.REDUCED]
    if not reduced or len(spatial) + len(reduced) != len(axes):
        return None
    parts = _parts(store)
    if parts is None:
        return None
    term, combine, across = parts
    repeatable = combine is not tirx.Add
    along = _contiguous(term, reduced)
    if along == 0 or min(int(axis.dom.extent) for axis in axes) < 1:
        return None
    return _Reduction(spatial, reduced, along, term, combine, repeatable, across)


def _parts(store: Any) -> tuple[Any, Callable[[Any, Any], Any], str | None] | None:
    """The term of sums, maxima and minima, how it is combined with what there is, and `across`."""
    value = store.value

    def is_result(expr: Any) -> bool:
        return isinstance(expr, NODES.load) and expr.source.same_as(store.buffer)

    if isinstance(value, tirx.Add | tirx.Max | tirx.Min):
        for result, term in ((value.a, value.b), (value.b, value.a)):
            if is_result(result) and not _reads(term, store.buffer):
                return term, type(value), None
        return None
    # A maximum or minimum through which NaN goes: `greater_or_nan` of needle.ops.
    inner: Any = getattr(value, "false_value", None)
    compared: Any = getattr(inner, "condition", None)
    if not isinstance(compared, tirx.GT | tirx.LT) or not is_result(value.true_value):
        return None
    term = inner.false_value
    is_nan = value.condition
    name = getattr(getattr(is_nan, "op", None), "name", "")
    if name != "tirx.isnan" or not is_result(compared.a) or not is_result(inner.true_value):
        return None
    if _reads(term, store.buffer) or not str(store.buffer.dtype).startswith("float"):
        return None

    def combine(a: Any, b: Any) -> Any:
        return tirx.Select(tirx.isnan(a), a, tirx.Select(type(compared)(a, b), a, b))

    # By halves the expression would be used thrice in each step, and TVM take minutes over it.
    return term, combine, "fmaximum" if isinstance(compared, tirx.GT) else "fminimum"


def _reads(expr: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in nodes_in(expr, NODES.load))


def _contiguous(term: Any, reduced: list[Any]) -> int:
    """How many of the innermost axes are one stretch of memory in every load they occur in."""
    variables = {axis.var for axis in reduced}
    loads = [
        load
        for load in nodes_in(term, NODES.load)
        if any(variables_of(index) & variables for index in load.indices)
    ]
    if not loads:
        return 0
    for count in range(len(reduced), 0, -1):
        if all(_is_stretch(load, reduced[-count:]) for load in loads):
            return count
    return 0


def _is_stretch(load: Any, axes: list[Any]) -> bool:
    """Whether the last indices of a load are these axes, whole but for the first."""
    count, variables = len(axes), {axis.var for axis in axes}
    indices, shape = list(load.indices), list(load.source.shape)
    if len(indices) < count or any(variables_of(i) & variables for i in indices[:-count]):
        return False
    first, *others = zip(indices[-count:], axes, shape[-count:], strict=True)
    whole = all(
        index.same_as(axis.var) and int(axis.dom.extent) == int(extent)
        for index, axis, extent in others
    )
    return whole and _steps_by_one(first[0], first[1].var, variables)


def _steps_by_one(index: Any, variable: Any, variables: set[Any]) -> bool:
    if index.same_as(variable):
        return True
    if not isinstance(index, tirx.Add):
        return False
    for one, other in ((index.a, index.b), (index.b, index.a)):
        if not variables_of(other) & variables and _steps_by_one(one, variable, variables):
            return True
    return False
