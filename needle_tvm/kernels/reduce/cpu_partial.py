"""Rewrites reductions over contiguous terms as vectors of partial results, before scheduling.

    for k in range(1000): total[i] += f(k)

becomes, for vectors of 16 (1000 = 62 * 16 + 8),

    for k in range(62): for lane in range(16): partial[i, lane] += f(k * 16 + lane)
    for lane in range(16): rest[i, lane] = partial[i, lane] + f(984 + lane) if lane >= 8
                                           else partial[i, lane]
    total[i] = the lanes of rest[i], combined by halves

The last vector overlaps the one before, so that a row of any length is read in whole vectors. TVM's
`rfactor` gives the same code if the lanes divide the row. Otherwise TVM 0.27 loses the bounds that
`rfactor` puts on a block once the block is computed at another block.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from needle_tvm._tvm.names import Target, tirx
from needle_tvm.kernels.blocks import PARTIAL
from needle_tvm.kernels.reduce.cpu_nests import Nests, Reduction, reduction, steps_by_one
from needle_tvm.target.info import target_info
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in, variables_of

_CHAINS = (4, 2)  # vectors per iteration in long rows, so that no sum waits for the previous one
_LONG = 4  # a row is long if the loop has at least this many iterations
_FEWEST_LANES = 4
_FEWEST_TERMS = 8  # with fewer terms, it is faster to add them one by one


@dataclass(frozen=True)
class _Stretch:
    """A reduction whose last `along` axes are contiguous in every load that uses
    them."""

    found: Reduction
    along: int

    @property
    def length(self) -> int:
        return prod(int(axis.dom.extent) for axis in self.found.reduced[-self.along :])


def partial_results(block: Any, target: Target) -> Nests | None:
    """Return the nests that replace a reduction over contiguous terms, and their buffers.

    Return None if the terms are not contiguous, or if there are too few of them.
    """
    found = reduction(block)
    along = 0 if found is None else _contiguous(found.term, found.reduced)
    if found is None or along == 0:
        return None
    stretch = _Stretch(found, along)
    lanes = target_info(target).lanes(str(found.result.dtype))
    length = stretch.length
    width = next((lanes * n for n in _CHAINS if length >= _LONG * lanes * n), lanes)
    while width > length:
        width //= 2
    while along < len(found.reduced) and width >= _FEWEST_LANES and length % width:
        width //= 2  # otherwise the rest of each stretch would have to be added separately
    if width < _FEWEST_LANES or length < _FEWEST_TERMS:
        return None
    return _Writer(stretch, width).nests()


class _Writer:
    """Writes the nests of one reduction."""

    def __init__(self, stretch: _Stretch, width: int) -> None:
        self._found, self._width = stretch.found, width
        self._along_axes, self._length = stretch.along, stretch.length
        self._block, self._result = stretch.found.block, stretch.found.result
        self._type = str(self._block.iter_vars[0].var.ty)
        self._nests: list[Any] = []
        self._buffers: list[Any] = []

    def nests(self) -> Nests:
        last = self._sums()
        if self._length % self._width:
            last = self._rest(last)
        self._total(last)
        return self._nests, self._buffers

    def _sums(self) -> Any:
        found = self._found
        *outer, steps = [
            self._axis(axis.var.name, int(axis.dom.extent), nests.REDUCED)
            for axis in found.reduced[: -self._along_axes]
        ] + [self._axis("steps", self._length // self._width, nests.REDUCED)]
        values = {old.var: new.var for old, new in zip(found.reduced, outer, strict=False)}
        spatial, lane, partial = self._begin("partial", self._width, values)
        values |= self._along(steps.var * self._width + lane.var)
        at = [*self._indices(values), lane.var]
        value = found.combine(partial[tuple(at)], nests.substitute(found.term, values))
        start = tirx.BufferStore(partial, found.start, at)
        self._end("partial", [*spatial, lane, *outer, steps], partial, value, at, start)
        return partial

    def _rest(self, before: Any) -> Any:
        """Add the last terms: a whole vector that ends with the row and overlaps the one before."""
        found, width = self._found, self._width
        values: dict[Any, Any] = {}
        spatial, lane, rest = self._begin("rest", width, values)
        values |= self._along(lane.var + (self._length - width))
        at = [*self._indices(values), lane.var]
        old = before[tuple(at)]
        value = found.combine(old, nests.substitute(found.term, values))
        if found.combine is tirx.Add:  # do not add a term twice
            seen = width - self._length % width
            value = tirx.Select(lane.var >= seen, value, old)
        self._end("rest", [*spatial, lane], rest, value, at)
        return rest

    def _total(self, before: Any) -> None:
        """Combine all lanes into the result."""
        values: dict[Any, Any] = {}
        spatial, _, _ = self._begin("total", 1, values)
        where = self._indices(values)
        if self._found.across is None:
            value = nests.combined(before, where, self._width, self._found.combine)
        else:
            value = nests.across(before, where, self._width, self._found.across)
        self._end("", spatial, self._result, value, where)

    def _begin(self, name: str, width: int, values: dict[Any, Any]) -> tuple[list[Any], Any, Any]:
        """Return new axes for the results and the lanes, and a buffer for the nest's results."""
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
        width = 1 if buffer.same_as(self._result) else self._width
        self._nests.append(nests.nest(axes, name, store, start, {PARTIAL: width}))

    def _along(self, position: Any) -> dict[Any, Any]:
        """Return the index along each contiguous axis of a position in their flattened range."""
        values = {}
        axes = self._found.reduced[-self._along_axes :]
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


def _contiguous(term: Any, reduced: list[Any]) -> int:
    """Return the number of innermost axes that are contiguous in every load that uses them."""
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
    """Return whether the last indices of a load are these axes, and all of them but the first have
    the buffer's full extents."""
    count, variables = len(axes), {axis.var for axis in axes}
    indices, shape = list(load.indices), list(load.source.shape)
    if len(indices) < count or any(variables_of(i) & variables for i in indices[:-count]):
        return False
    first, *others = zip(indices[-count:], axes, shape[-count:], strict=True)
    whole = all(
        index.same_as(axis.var) and int(axis.dom.extent) == int(extent)
        for index, axis, extent in others
    )
    return whole and steps_by_one(first[0], first[1].var, variables)
