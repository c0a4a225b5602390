"""One form for everything that GPU tiles compute: dense layers, batched matmuls, convolutions.

A function that is a sum of products with an epilogue is rewritten as four blocks over whole tiles
of batches b, rows m, columns n and terms k:

    left[b, m, k]   the operand with the rows            right[b, k, n]   the one with the columns
    product[b, m, n] += left[b, m, k] * right[b, k, n]   result[b, m, n]  the epilogue, stored

An original axis becomes a row axis if only the left operand has it, a column axis if only the right
operand has it, and a batch axis if both have it. Several axes of the same kind are fused, in mixed
radix. So a convolution is an implicit matmul with a matrix whose rows are windows. This matrix
exists only tile by tile (S. Chetlur et al., "cuDNN: Efficient primitives for deep learning", 2014,
section 3). Beyond the last row, column or term, an operand counts as zero without a read from
memory, and no result is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from needle_tvm._tvm.names import PrimFunc, Schedule, tirx
from needle_tvm.kernels.blocks import blocks_of, inline_producers
from needle_tvm.tir import nests
from needle_tvm.tir.functions import (
    NARROW_FLOATS,
    NODES,
    inverse_of,
    nodes_in,
    simplified,
    variables_of,
)

# Maps the indices at which a block reads to the values of its axes.
Inverse = Callable[[Sequence[Any]], Mapping[Any, Any]]

LEFT, RIGHT, PARTIAL, PRODUCT, RESULT = "left", "right", "partial", "product", "result"


@dataclass(frozen=True)
class Tile:
    """The rows and columns of a block of threads, the terms that it sums at a time, and the number
    of slices of these terms. Separate threads sum each slice."""

    rows: int
    columns: int
    terms: int
    slices: int = 1


@dataclass(frozen=True)
class Product:
    """A sum of products that a function computes, and its epilogue.

    `left` and `right` are its operands, as expressions in the axes of `block`. `wide` is the dtype
    of the sums; the operands are cast to it before they are multiplied.
    """

    function: PrimFunc
    block: Any
    last: Any
    left: Any
    right: Any
    wide: str
    kinds: Mapping[str, tuple[Any, ...]]
    inverse: Inverse

    @property
    def batches(self) -> int:
        return self._extent("batch")

    @property
    def rows(self) -> int:
        return self._extent("rows")

    @property
    def columns(self) -> int:
        return self._extent("columns")

    @property
    def terms(self) -> int:
        return self._extent("terms")

    def _extent(self, kind: str) -> int:
        return prod(int(axis.dom.extent) for axis in self.kinds[kind])

    def innermost(self, factor: Any) -> Any:
        """Return the axis along which an operand is contiguous in memory; None if there is none."""
        loads = nodes_in(factor, NODES.load)
        if not loads:
            return None
        (load, *_) = loads
        last = load.indices[-1]
        for axes in self.kinds.values():
            for axis in axes:
                if axis.var in variables_of(last):
                    others = {axis.var: tirx.const(0, str(axis.var.ty))}
                    step = simplified(last - nests.substitute(last, others))
                    if step.same_as(axis.var):
                        return axis
        return None

    def written(self, tile: Tile) -> PrimFunc:
        """Return the function as the four blocks, with extents of whole tiles."""
        return _written(self, tile)


def find(function: PrimFunc) -> Product | None:
    """Return the sum of products that a function computes, with its epilogue; None for any other
    function."""
    sch = Schedule(function)
    sums = [block for block in blocks_of(sch) if sch.get(block).init is not None]
    if len(sums) != 1:
        return None
    inline_producers(sch, keep=set())
    if len(blocks_of(sch)) == 1:
        sch.cache_write(sums[0], 0, "local")
    blocks = [sch.get(block) for block in blocks_of(sch)]
    if len(blocks) != 2 or blocks[0].init is None:
        return None
    block, last = blocks
    if not all(isinstance(each.body, NODES.store) for each in (block, last)):
        return None
    if not all(_is_static(axis) for axis in (*block.iter_vars, *last.iter_vars)):
        return None
    factors = _factors(block)
    inverse = _inverse(block.body.buffer, last)
    if factors is None or inverse is None:
        return None
    left, right, wide = factors
    kinds = _kinds(block, left, right)
    # Results that are adjacent in memory must differ in their column. If they differ in their row,
    # the operands are swapped.
    innermost = block.body.indices[-1]
    if any(innermost.same_as(axis.var) for axis in kinds["rows"]):
        left, right = right, left
        kinds = {**kinds, "rows": kinds["columns"], "columns": kinds["rows"]}
    return Product(sch.mod["main"], block, last, left, right, wide, kinds, inverse)


def _inverse(sums: Any, last: Any) -> Inverse | None:
    """Return the map from the indices at which a block reads the sums to the block's axes; None if
    the block does not read each sum exactly once."""
    reads = [load for load in nodes_in(last.body, NODES.load) if load.source.same_as(sums)]
    if not reads or not all(
        nests.same(one, other)
        for load in reads[1:]
        for one, other in zip(load.indices, reads[0].indices, strict=True)
    ):
        return None
    extents = {axis.var: int(axis.dom.extent) for axis in last.iter_vars}
    return inverse_of(list(reads[0].indices), extents)


def _is_static(axis: Any) -> bool:
    return isinstance(axis.dom.extent, tirx.IntImm) and int(axis.dom.extent) > 0


def _factors(block: Any) -> tuple[Any, Any, str] | None:
    """Return the operands of result = result + left * right, and the dtype of the product."""
    store = block.body
    if not (isinstance(store, NODES.store) and isinstance(store.value, tirx.Add)):
        return None
    start = block.init
    if not (isinstance(start, NODES.store) and _is_zero(start.value)):
        return None
    before, product = store.value.a, store.value.b
    if not (isinstance(before, NODES.load) and before.source.same_as(store.buffer)):
        return None
    if not isinstance(product, tirx.Mul):
        return None
    if not all(isinstance(index, tirx.Var) for index in store.indices):
        return None
    return product.a, product.b, str(product.ty)


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and value.value == 0


def _kinds(block: Any, left: Any, right: Any) -> dict[str, tuple[Any, ...]]:
    of_left, of_right = variables_of(left), variables_of(right)
    kinds: dict[str, list[Any]] = {"batch": [], "rows": [], "columns": [], "terms": []}
    for axis in block.iter_vars:
        if axis.iter_type == nests.REDUCED:
            kind = "terms"
        elif axis.var in of_left:
            kind = "batch" if axis.var in of_right else "rows"
        else:
            kind = "columns"
        kinds[kind].append(axis)
    return {kind: tuple(axes) for kind, axes in kinds.items()}


def _written(found: Product, tile: Tile) -> PrimFunc:
    writer = _Writer(found, tile)
    left = writer.factor(LEFT, found.left, ("batch", "rows", "terms"))
    right = writer.factor(RIGHT, found.right, ("batch", "terms", "columns"))
    sums = writer.sums(left, right)
    return nests.with_root(
        found.function,
        [*writer.nests, writer.result(sums)],
        writer.buffers,
    )


class _Writer:
    """Writes the blocks of a product in tiles of equal size, and collects their nests and
    buffers."""

    def __init__(self, found: Product, tile: Tile) -> None:
        self._found = found
        self._slices = tile.slices
        self._slice = tile.terms // tile.slices
        self._extents = {
            "batch": found.batches,
            "rows": whole(found.rows, tile.rows),
            "columns": whole(found.columns, tile.columns),
            "terms": whole(found.terms, tile.terms),
        }
        self.nests: list[Any] = []
        self.buffers: list[Any] = []

    def factor(self, name: str, value: Any, kinds: Sequence[str]) -> Any:
        """Write the block of an operand, zero-padded; return its buffer."""
        kinds = self._present(kinds)
        axes = {kind: self._axis(kind) for kind in kinds}
        value, dtype = _narrowed(value, self._found.wide)
        values = self._original(kinds, axes)
        inside = nests.substitute(value, values)
        conditions = self._inside(kinds, axes)
        if conditions is not None:
            inside = tirx.if_then_else(conditions, inside, tirx.const(0, dtype))
        target = self._buffer(name, [self._extents[kind] for kind in kinds], dtype)
        store = tirx.BufferStore(target, inside, [axes[kind].var for kind in kinds])
        self.nests.append(nests.nest(list(axes.values()), name, store))
        return target

    def sums(self, left: Any, right: Any) -> Any:
        """Write the block of sums; with several slices, the block of each slice's sums and the
        block of their totals. Return the buffer of the sums."""
        wide, slices = self._found.wide, self._slices
        kinds = self._present(("batch", "rows", "columns"))
        axes = {kind: self._axis(kind) for kind in kinds}
        places = [axes[kind].var for kind in kinds]
        shape = [self._extents[kind] for kind in kinds]
        if slices == 1:
            term = self._axis("terms", nests.REDUCED)
            sums = self._buffer(PRODUCT, shape, wide)
            at = {**{kind: axes[kind].var for kind in kinds}, "terms": term.var}
            self._sum(PRODUCT, [*axes.values(), term], sums, places, self._product(left, right, at))
            return sums
        slice_axis = nests.axis("slice", slices, nests.SPATIAL)
        strip = nests.axis("strip", self._extents["terms"] // (slices * self._slice), nests.REDUCED)
        own = nests.axis("own", self._slice, nests.REDUCED)
        term = (strip.var * slices + slice_axis.var) * self._slice + own.var
        at = {**{kind: axes[kind].var for kind in kinds}, "terms": term}
        partial = self._buffer(PARTIAL, [slices, *shape], wide)
        self._sum(
            PARTIAL,
            [slice_axis, *axes.values(), strip, own],
            partial,
            [slice_axis.var, *places],
            self._product(left, right, at),
        )
        axes = {kind: self._axis(kind) for kind in kinds}
        places = [axes[kind].var for kind in kinds]
        slice_axis = nests.axis("slice", slices, nests.REDUCED)
        sums = self._buffer(PRODUCT, shape, wide)
        value = tirx.BufferLoad(partial, [slice_axis.var, *places])
        self._sum(PRODUCT, [*axes.values(), slice_axis], sums, places, value)
        return sums

    def result(self, sums: Any) -> Any:
        """Write the block of the epilogue, which stores only results that exist."""
        found = self._found
        kinds = self._present(("batch", "rows", "columns"))
        axes = {kind: self._axis(kind) for kind in kinds}
        at = self._original(kinds, axes)
        outputs = [at[axis] for axis in found.block.body.indices]
        values = dict(found.inverse(outputs))
        own = tirx.BufferLoad(sums, [axes[kind].var for kind in kinds])

        def of_sums(load: Any) -> Any:
            return own if load.source.same_as(found.block.body.buffer) else load

        value = nests.map_nodes(found.last.body.value, NODES.load, of_sums)
        indices = [nests.substitute(index, values) for index in found.last.body.indices]
        store = tirx.BufferStore(found.last.body.buffer, nests.substitute(value, values), indices)
        return nests.nest(list(axes.values()), RESULT, store, where=self._inside(kinds, axes))

    def _product(self, left: Any, right: Any, at: Mapping[str, Any]) -> Any:
        wide = self._found.wide

        def read(factor: Any, kinds: Sequence[str]) -> Any:
            load = tirx.BufferLoad(factor, [at[kind] for kind in self._present(kinds)])
            return load if str(load.ty) == wide else tirx.Cast(wide, load)

        first = read(left, ("batch", "rows", "terms"))
        return first * read(right, ("batch", "terms", "columns"))

    def _sum(self, name: str, axes: list[Any], target: Any, at: list[Any], value: Any) -> None:
        start = tirx.BufferStore(target, tirx.const(0, self._found.wide), at)
        store = tirx.BufferStore(target, tirx.BufferLoad(target, at) + value, at)
        self.nests.append(nests.nest(axes, name, store, start))

    def _present(self, kinds: Sequence[str]) -> list[str]:
        return [kind for kind in kinds if kind != "batch" or self._found.kinds["batch"]]

    def _axis(self, kind: str, iter_type: int = nests.SPATIAL) -> Any:
        return nests.axis(kind[0], self._extents[kind], iter_type)

    def _buffer(self, name: str, shape: Sequence[int], dtype: str) -> Any:
        self.buffers.append(nests.buffer(name, shape, dtype))
        return self.buffers[-1]

    def _original(self, kinds: Sequence[str], axes: Mapping[str, Any]) -> dict[Any, Any]:
        """Return the values of the original axes of these kinds at an index of the new axes."""
        values: dict[Any, Any] = {}
        for kind in kinds:
            rest = axes[kind].var
            first, *others = self._found.kinds[kind] or (None,)
            for axis in reversed(others):
                extent = int(axis.dom.extent)
                values[axis.var] = rest % extent
                rest = rest // extent
            if first is not None:
                values[first.var] = rest
        return values

    def _inside(self, kinds: Sequence[str], axes: Mapping[str, Any]) -> Any:
        """Return the condition that an index of the new axes is also an index of the original axes;
        None if it always is."""
        found = self._found
        real = {
            "batch": found.batches,
            "rows": found.rows,
            "columns": found.columns,
            "terms": found.terms,
        }
        condition = None
        for kind in kinds:
            if real[kind] < self._extents[kind]:
                each = axes[kind].var < real[kind]
                condition = each if condition is None else tirx.And(condition, each)
        return condition


def whole(extent: int, tile: int) -> int:
    """Return the extent rounded up to whole tiles."""
    return -(-extent // tile) * tile


def _narrowed(value: Any, wide: str) -> tuple[Any, str]:
    """Return an operand before its cast to the dtype of the sums, and its dtype."""
    if isinstance(value, NODES.cast) and str(value.value.ty) in NARROW_FLOATS:
        value = value.value
    return value, str(value.ty)
