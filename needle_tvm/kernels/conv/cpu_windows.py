"""Rewrites windows that slide along memory, as in pooling of channels-first images.

    for y, z, i, j: p[y, z] = max(p[y, z], x[y * 2 + i - 1, z * 2 + j - 1] or, outside, -inf)

becomes, for each row of results, a maximum over the rows of the windows into a separate row,

    row[0] = -inf                                     # the padding
    for i: if y * 2 + i - 1 is inside: kept[:] = max(kept[:], x[y * 2 + i - 1, :])
    row[1 : 113] = kept[:]

and a maximum over their columns, which reads only that row:

    for z in vectors: for j: p[y, z] = max(p[y, z], row[z * 2 + j])

No element is checked against the bounds of the image, all loads are contiguous, and the rows that
windows share are combined once. Strided elements of a row are selected from whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

from needle_tvm._tvm.names import Target, tirx
from needle_tvm.kernels.blocks import has_functions, item_bytes
from needle_tvm.kernels.reduce.cpu_columns import (
    Kept,
    Tiles,
    condition_of,
    fresh,
    in_rows,
    width_of,
)
from needle_tvm.kernels.reduce.cpu_nests import Nests, Reduction, reduction
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, linear_in, variables_of

_LARGEST_ROW = 1 << 15  # bytes, on the stack of a thread
_MOST_TAPS = 32  # all of them are unrolled


@dataclass(frozen=True)
class _Windows:
    """Windows at positions `column * step + tap * spread` of a row; [first, end) is in memory."""

    found: Reduction
    column: Any  # the last axis of the results
    tap: Any  # the axis that is reduced along the row
    place: Any  # the variable in `term` for the position in the row
    step: int
    spread: int
    first: int
    end: int
    condition: Any  # on the other axes; None if all their elements are in memory
    term: Any

    @property
    def others(self) -> list[Any]:
        """The reduction axes other than `tap`."""
        return [axis for axis in self.found.reduced if not axis.same_as(self.tap)]

    @property
    def rows(self) -> int:
        """The number of rows in a window."""
        return prod(int(axis.dom.extent) for axis in self.others)

    @property
    def taps(self) -> int:
        """The number of positions in a row of a window."""
        return int(self.tap.dom.extent)

    @property
    def length(self) -> int:
        """The number of elements of a row that windows read."""
        columns = int(self.column.dom.extent)
        return (columns - 1) * self.step + (self.taps - 1) * self.spread + 1


def windows(block: Any, target: Target) -> Nests | None:
    """Return the nest that replaces a reduction over sliding windows (see the module docstring).

    Return None if the reduction is not over windows of several rows along memory, if a row is
    shorter than a vector, or if the gain is too small.
    """
    found = reduction(block)
    if found is None or not found.spatial or has_functions(found.term):
        return None
    *outer, column = found.spatial
    if not found.block.body.indices[-1].same_as(column.var):
        return None
    seen = next((made for tap in found.reduced if (made := _windows(found, tap))), None)
    if seen is None or not _gains(seen):
        return None
    across = width_of(found, seen.end - seen.first, target)
    along = width_of(found, int(column.dom.extent), target)
    if across is None or along is None:
        return None
    axes, variables = fresh(outer, str(column.var.ty))
    written = _Written(seen, variables, across, along)
    work = seen.length * seen.rows + int(column.dom.extent) * seen.taps
    body = tirx.SeqStmt([*written.padding(), written.over_rows(), written.over_columns()])
    return [in_rows(found, axes, variables, body, written.buffers, work)], []


def _gains(seen: _Windows) -> bool:
    """Return whether the rewritten nest is faster than computing each window by itself.

    Without padding, compilers vectorise separate windows well, while a row that is stored and then
    read at other positions stalls the processor.
    """
    size = item_bytes(str(seen.found.result.dtype))
    if seen.rows == 1 or seen.taps > _MOST_TAPS or seen.length * size > _LARGEST_ROW:
        return False
    padded = seen.first > 0 or seen.end < seen.length
    return padded or seen.rows * seen.taps >= 2 * (seen.rows + seen.taps)


class _Written:
    """Writes the statements for one row of results, in vectors of `across` and `along` lanes."""

    def __init__(self, seen: _Windows, variables: dict[Any, Any], across: int, along: int) -> None:
        self._seen, self._variables, self._across, self._along = seen, variables, across, along
        self._type = str(seen.column.var.ty)
        dtype = str(seen.found.result.dtype)
        # Elements past the end go into lanes that are never read.
        self._row = nests.buffer("row", [seen.length + seen.step - 1], dtype, "local")
        self._combined = nests.buffer("combined", [along], dtype, "local")
        self.buffers = [self._row, self._combined]

    def padding(self) -> list[Any]:
        """Fill the parts of the row that are not in memory."""
        seen = self._seen

        def fill(first: int, end: int) -> Any:
            def store(place: Any) -> Any:
                return tirx.BufferStore(self._row, seen.found.start, [place + first])

            return nests.loop(end - first, store, dtype=self._type)

        ends = ((0, seen.first), (seen.end, seen.length))
        return [fill(first, end) for first, end in ends if end > first]

    def over_rows(self) -> Any:
        """Combine the rows of the windows, at all positions of the row that are in memory."""
        seen = self._seen
        tiles = Tiles(seen.end - seen.first, self._across)
        kept = Kept(seen.found, seen.others, seen.condition, seen.term, tiles)
        self.buffers.append(kept.buffer)

        def in_tile(number: Any) -> Any:
            def place(vector: Any, lane: Any) -> Any:
                return tiles.start(number, vector) + lane + seen.first

            def values(vector: Any, lane: Any) -> dict[Any, Any]:
                return {**self._variables, seen.place: place(vector, lane)}

            def store(vector: Any, lane: Any, value: Any) -> Any:
                return tirx.BufferStore(self._row, value, [place(vector, lane)])

            return kept.statement(values, store)

        return nests.loop(tiles.count, in_tile, dtype=self._type)

    def over_columns(self) -> Any:
        """Combine the taps of the windows along the row, and store the results."""
        seen, lanes = self._seen, self._along
        tiles = Tiles(int(seen.column.dom.extent), lanes, most=1)
        result, combined = seen.found.result, self._combined
        indices = seen.found.block.body.indices[:-1]
        before = [nests.substitute(index, self._variables) for index in indices]

        def some(first: Any, count: int) -> Any:
            return tirx.Ramp(first, self._index(1), count)

        whole = some(self._index(0), lanes)

        def tap(start: Any, number: int) -> Any:
            # All taps within one step are selected from the same vectors.
            blocks, phase = divmod(number * seen.spread, seen.step)
            first = (start + blocks) * seen.step
            neighbours = self._row[(some(first, lanes * seen.step),)]
            if seen.step == 1:
                return neighbours
            return tirx.Shuffle([neighbours], list(range(phase, lanes * seen.step, seen.step)))

        def vector(number: Any) -> Any:
            start = tiles.start(number, self._index(0))
            statements = [tirx.BufferStore(combined, tap(start, 0), [whole])]
            for other in range(1, seen.taps):
                value = seen.found.combine(combined[(whole,)], tap(start, other))
                statements.append(tirx.BufferStore(combined, value, [whole]))
            end = tirx.BufferStore(result, combined[(whole,)], [*before, some(start, lanes)])
            return tirx.SeqStmt([*statements, end])

        return nests.loop(tiles.count, vector, dtype=self._type)

    def _index(self, value: int) -> Any:
        return tirx.const(value, self._type)


def _windows(found: Reduction, tap: Any) -> _Windows | None:
    """Return the windows along a row with the positions `tap`; None if `tap` forms no windows."""
    column = found.spatial[-1]
    condition, term = condition_of(found)
    pair = [column.var, tap.var]
    place = tirx.Var("place", str(column.var.ty))
    steps: set[tuple[int, int]] = set()
    plain = True

    def by_place(load: Any) -> Any:
        nonlocal plain
        if not load.indices:
            return load  # the same for all positions
        *before, last = load.indices
        linear = linear_in(last, pair)
        if linear is None or any(variables_of(index) & set(pair) for index in before):
            plain = False
            return load
        *step, base = linear
        if variables_of(base) & {axis.var for axis in found.reduced} or not all(step):
            plain = False
            return load
        steps.add(tuple(step))
        at = (*before, base + place)
        return load.source[at]

    term = nests.map_nodes(term, NODES.load, by_place)
    if not plain or len(steps) != 1 or variables_of(term) & set(pair):
        return None
    ((step, spread),) = steps
    if step < 1 or spread < 1:
        return None
    bounds = _bounds(condition, pair, (step, spread))
    if bounds is None:
        return None
    whole = _Windows(found, column, tap, place, step, spread, 0, 0, bounds[2], term)
    first, end = max(0, bounds[0]), min(whole.length, bounds[1])
    return replace(whole, first=first, end=end) if end > first else None


def _bounds(condition: Any, pair: list[Any], steps: tuple[int, int]) -> tuple[int, int, Any] | None:
    """Return (first position, end, condition on other axes); None if `condition` has another
    form."""
    first, end, others = 0, 1 << 30, []
    for part in _conjuncts(condition):
        if not variables_of(part) & set(pair):
            others.append(part)
            continue
        if isinstance(part, tirx.LE) and isinstance(part.a, tirx.IntImm):
            linear, bound = linear_in(part.b, pair), int(part.a)
        elif isinstance(part, tirx.LT) and isinstance(part.b, tirx.IntImm):
            linear, bound = linear_in(part.a, pair), int(part.b)
        else:
            return None
        if linear is None or tuple(linear[:2]) != steps or not isinstance(linear[2], tirx.IntImm):
            return None
        bound -= int(linear[2])
        first, end = (
            (max(first, bound), end) if isinstance(part, tirx.LE) else (first, min(end, bound))
        )
    return first, end, reduce(tirx.And, others) if others else None


def _conjuncts(condition: Any) -> list[Any]:
    if condition is None:
        return []
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]
