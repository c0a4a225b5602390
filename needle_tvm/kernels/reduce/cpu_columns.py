"""Rewrites reductions whose results and terms are contiguous along the results' last axis.

    for k in range(512): for j in range(49): y[i, j] = max(y[i, j], x[i, k, j])

becomes, for vectors of 16,

    for k in range(512): for r in unrolled(4): for lane in vectorized(16):
        kept[r, lane] = max(kept[r, lane], x[i, k, min(r * 16, 33) + lane])
    for r in unrolled(4): for lane in vectorized(16): y[i, min(r * 16, 33) + lane] = kept[r, lane]

The results stay in registers. The last vector overlaps the one before, so that a row of any length
is read in whole vectors; the overlap is computed twice, with the same result. Pooling of
channels-last images is such a reduction, and it skips a position in the padding for all channels at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from needle_tvm._tvm.names import Target, tirx
from needle_tvm.kernels.blocks import TASKS, WRITTEN, has_functions
from needle_tvm.kernels.reduce.cpu_nests import Nests, Reduction, reduction, steps_by_one
from needle_tvm.target.info import target_info
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in, variables_of

_MOST_VECTORS = 8  # vectors of results at a time: half of 16 registers; operands take the rest
_FEWEST_LANES = 4
_BRANCH = "prim.if_then_else"
_LATENCY = 8  # vectors that can be combined before the first result is ready


def columns(block: Any, target: Target) -> Nests | None:
    """Return the nest that replaces a reduction with contiguous results (see the module docstring).

    Return None if results or terms are not contiguous along the last axis, or if that axis has too
    few results to fill a vector.
    """
    found = reduction(block)
    if found is None or not found.spatial or has_functions(found.term):
        return None
    *outer, last = found.spatial
    if not found.block.body.indices[-1].same_as(last.var) or not _side_by_side(found, last.var):
        return None
    length = int(last.dom.extent)
    width = width_of(found, length, target)
    if width is None:
        return None
    tiles = Tiles(length, width)
    shared = prod(int(axis.dom.extent) for axis in outer)
    few = tiles.count > 1 and shared < TASKS * target_info(target).cores
    dtype = str(last.var.ty)
    axes, variables = fresh(outer, dtype)
    tile = nests.axis("tile", tiles.count, nests.SPATIAL, dtype)
    kept = Kept(found, found.reduced, *condition_of(found), tiles)
    at = [nests.substitute(index, variables) for index in found.block.body.indices[:-1]]

    def in_tile(number: Any) -> Any:
        def values(vector: Any, lane: Any) -> dict[Any, Any]:
            return {**variables, last.var: tiles.start(number, vector) + lane}

        def store(vector: Any, lane: Any, value: Any) -> Any:
            place = tiles.start(number, vector) + lane
            return tirx.BufferStore(found.result, value, [*at, place])

        return kept.statement(values, store)

    body = in_tile(tile.var) if few else nests.loop(tiles.count, in_tile, dtype=dtype)
    work = prod(int(axis.dom.extent) for axis in (last, *found.reduced))
    if few:
        axes, work = [*axes, tile], work // tiles.count
    return [in_rows(found, axes, variables, body, [kept.buffer], work)], []


def fresh(axes: Sequence[Any], dtype: str) -> tuple[list[Any], dict[Any, Any]]:
    """Return copies of a block's axes for a new block, and a map from the old to the new
    variables."""
    new = [nests.axis(each.var.name, int(each.dom.extent), nests.SPATIAL, dtype) for each in axes]
    return new, {old.var: each.var for old, each in zip(axes, new, strict=True)}


def in_rows(
    found: Reduction,
    axes: Sequence[Any],
    variables: dict[Any, Any],
    body: Any,
    kept: Sequence[Any],
    work: int,
) -> Any:
    """Return the nest of a block that writes whole rows of results.

    `work` is the number of terms per row. The row has its own axis, of extent 1: in TVM 0.27, a
    block can be computed at another block only if the region it writes begins at a multiple of an
    axis.
    """
    result, indices = found.result, found.block.body.indices
    row = nests.axis("row", 1, nests.SPATIAL, str(found.reduced[-1].var.ty))
    length = int(found.spatial[-1].dom.extent)
    at = [nests.substitute(index, variables) for index in indices[:-1]]
    written = nests.region(result, [*at, row.var * length], [1] * len(at) + [length])
    name = str(found.block.name_hint)
    return nests.written([*axes, row], name, body, written, kept, {WRITTEN: work})


def width_of(found: Reduction, length: int, target: Target) -> int | None:
    """Return the width of the widest vector that `length` results fill; None if they fill none."""
    width = target_info(target).lanes(str(found.result.dtype))
    while width > length:
        width //= 2
    return width if width >= _FEWEST_LANES else None


class Tiles:
    """The tiles of a row of `length` elements, a few vectors each. Vectors that would reach past
    the end are moved back so that they end with the row."""

    def __init__(self, length: int, width: int, most: int = _MOST_VECTORS) -> None:
        self.length, self.width = length, width
        vectors = -(-length // width)
        self.count = -(-vectors // most)
        self.vectors = -(-vectors // self.count)

    def start(self, tile: Any, vector: Any) -> Any:
        """Return the first element of a tile's vector."""
        last = tirx.const(self.length - self.width, str(tile.ty))
        return tirx.min((tile * self.vectors + vector) * self.width, last)


class Kept:
    """A tile of results in registers: the reduction of `term` over the axes `reduced`, where
    `condition` holds (None: everywhere).

    A tile of few vectors has several sets of accumulators, which are combined at the end. Then no
    addition waits for the one before it.
    """

    def __init__(
        self, found: Reduction, reduced: Sequence[Any], condition: Any, term: Any, tiles: Tiles
    ) -> None:
        self._found, self._reduced, self._tiles = found, list(reduced), tiles
        self._condition, self._term = condition, term
        self._type = str(found.reduced[-1].var.ty)
        terms = int(reduced[-1].dom.extent) if reduced and condition is None else 1
        most = max(1, _LATENCY // tiles.vectors)
        self._parts = max(n for n in range(1, most + 1) if n == 1 or _divide(n, terms))
        shape = [self._parts, tiles.vectors, tiles.width]
        self.buffer = nests.buffer("kept", shape, str(found.result.dtype), "local")

    def statement(
        self,
        values: Callable[[Any, Any], dict[Any, Any]],
        store: Callable[[Any, Any, Any], Any],
    ) -> Any:
        """Return the statement that computes a tile's results and stores them.

        `values(vector, lane)` returns the index of each axis that is not reduced. `store` returns
        the statement that writes one result.
        """
        combine, kept, zero = self._found.combine, self.buffer, self._index(0)
        reduced: dict[Any, Any] = {}

        def begin(part: Any, vector: Any, lane: Any) -> Any:
            return tirx.BufferStore(kept, self._found.start, [part, vector, lane])

        def add(part: Any, vector: Any, lane: Any) -> Any:
            at = dict(reduced)
            if self._parts > 1:
                last = self._reduced[-1].var
                at[last] = at[last] * self._parts + part
            term = nests.substitute(self._term, {**values(vector, lane), **at})
            value = combine(kept[part, vector, lane], term)
            return tirx.BufferStore(kept, value, [part, vector, lane])

        def gather(part: Any, vector: Any, lane: Any) -> Any:
            value = combine(kept[zero, vector, lane], kept[part + 1, vector, lane])
            return tirx.BufferStore(kept, value, [zero, vector, lane])

        def end(part: Any, vector: Any, lane: Any) -> Any:
            return store(vector, lane, kept[part, vector, lane])

        def over(axes: Sequence[Any]) -> Any:
            if axes:
                axis, *inner = axes
                parts = 1 if inner else self._parts

                def body(variable: Any) -> Any:
                    reduced[axis.var] = variable
                    return over(inner)

                return nests.loop(int(axis.dom.extent) // parts, body, dtype=self._type)
            terms = self._each(add, self._parts)
            if self._condition is None:
                return terms
            where = nests.substitute(self._condition, {**values(zero, zero), **reduced})
            return tirx.IfThenElse(where, terms, None)

        # Combine one part after another: a single expression of all parts may grow exponentially.
        gathered = [self._each(gather, self._parts - 1)] if self._parts > 1 else []
        begun, ended = self._each(begin, self._parts), self._each(end, 1)
        return tirx.SeqStmt([begun, over(self._reduced), *gathered, ended])

    def _each(self, statement: Callable[[Any, Any, Any], Any], parts: int) -> Any:
        def loop(extent: int, body: Callable[[Any], Any], kind: str = "unrolled") -> Any:
            return nests.loop(extent, body, kind, self._type)

        def lanes(part: Any, vector: Any) -> Any:
            return loop(self._tiles.width, lambda lane: statement(part, vector, lane), "vectorized")

        return loop(parts, lambda part: loop(self._tiles.vectors, partial(lanes, part)))

    def _index(self, value: int) -> Any:
        return tirx.const(value, self._type)


def _divide(parts: int, terms: int) -> bool:
    return terms % parts == 0 and terms >= 4 * parts


def condition_of(found: Reduction) -> tuple[Any, Any]:
    """Return the condition under which a term counts (None: always), and the term.

    If the condition does not hold, the term is the reduction's start value, as in the padding
    around an image.
    """
    term = found.term
    name = getattr(getattr(term, "op", None), "name", "")
    if name == _BRANCH and nests.same(term.args[2], found.start):
        return term.args[0], term.args[1]
    return None, term


def _side_by_side(found: Reduction, variable: Any) -> bool:
    """Return whether neighbouring results read neighbouring or equal elements of each operand."""
    condition, term = condition_of(found)
    if condition is not None and variable in variables_of(condition):
        return False
    if any(_branches(call, variable) for call in nodes_in(term, NODES.call)):
        return False  # such a branch runs lane by lane
    along = False
    for load in nodes_in(term, NODES.load):
        if not load.indices:
            continue
        *before, index = load.indices
        if any(variable in variables_of(each) for each in before):
            return False
        if variable in variables_of(index):
            if not steps_by_one(index, variable, {variable}):
                return False
            along = True
    return along


def _branches(call: Any, variable: Any) -> bool:
    return getattr(call.op, "name", "") == _BRANCH and variable in variables_of(call)
