"""Products of narrow operands on a GPU's tensor cores: dense layers, batches of products, and
convolutions as the product of their windows with the weights.

A product here is any block `sums[...] += left[...] * right[...]` whose axes are, each, those of
batches (in all three), rows (of the left operand and the sums), columns (of the right one and the
sums) or terms. It becomes one product (batch, rows, columns, terms), padded to whole tiles: the
zeros are made on the way into shared memory and lie nowhere else. Windows of a convolution, a
padding, a rounding before the product and whatever else makes an operand is done on that way, too;
what follows on a result is done on its way out.

    for tile of the results (blockIdx):
        for strip of terms:
            shared = the strip's part of both operands     (the next one's is already being read)
            for fragment of the strip's terms, of rows, of columns: sums += left * right
        shared = sums
        y = what follows of them

Where there are too few tiles for a GPU, its warps share out the terms of one small tile ("sliced-K"
in CUTLASS, "Efficient GEMM in CUDA"), and their sums meet in shared memory. Tiles are as large as
leaves about a block for each processor: designed by arithmetic, not by measuring.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from needle_tvm._tvm import (
    NODES,
    SCHEDULE_ERROR,
    Schedule,
    loads_in,
    nests,
    tirx,
    variables_of,
    written_dtype,
)
from needle_tvm._tvm import (
    structural_equal as structural_equal_expr,
)
from needle_tvm.schedule.blocks import blocks_of, extent, inline_producers, item_bytes
from needle_tvm.schedule.mma import Registers
from needle_tvm.schedule.wmma import Fragments

TF32 = "needle.tf32"  # annotation of blocks whose float32 operands were rounded to tf32

_WARP = 32
_BLOCKS = 128  # about as many as large GPUs have processors
_PAD = 16  # bytes between the rows of a strip, so that rows of a fragment lie in different banks
_VECTOR = 16  # bytes a thread reads at once
_DEEP = 32  # terms of a strip that all warps multiply
_LEAST = 8  # columns and terms
_LEAST_ROWS = 5  # below, a thread for each column multiplies what it reads as fast


@dataclass(frozen=True)
class _Tile:
    """A block's tile: its warps side by side, or else sharing out the terms, and the fragments of
    sums that each has, one above the other and side by side."""

    columns: int
    slices: int
    by_rows: int
    by_columns: int


# From large to small. A warp's sums are at most 64 registers of each thread; strips and results
# together stay below the 48 kB of shared memory that every GPU gives without asking.
_TILES = (
    _Tile(columns=4, slices=1, by_rows=4, by_columns=2),
    _Tile(columns=4, slices=1, by_rows=2, by_columns=1),
    _Tile(columns=1, slices=4, by_rows=2, by_columns=2),
    _Tile(columns=1, slices=8, by_rows=1, by_columns=2),
    _Tile(columns=1, slices=8, by_rows=1, by_columns=1),
)


@dataclass(frozen=True)
class _Product:
    """A block that is a product: what each of its axes is, and the extents of batches, rows,
    columns and terms."""

    block: Any
    dtype: str
    kinds: tuple[str, ...]
    extents: tuple[int, int, int, int]
    left: bool  # the left operand lies transposed, its rows being neighbours
    right: bool  # the right operand does, its terms being neighbours


def tensor_core(sch: Schedule) -> Schedule | None:
    """The function's schedule where it is a product of narrow operands and what follows, else None.

    `sch` is not changed.
    """
    trial = sch.copy()
    try:
        found = _product(trial)
        if found is None:
            return None
        _schedule(trial, found)
    except SCHEDULE_ERROR:
        return None
    return trial


def _product(sch: Schedule) -> _Product | None:
    sums = [block for block in blocks_of(sch) if sch.get(block).init is not None]
    if len(sums) != 1:
        return None
    (block,) = sums
    body = sch.get(block)
    axes = list(body.iter_vars)
    loads = _factors(body)
    if loads is None or not all(isinstance(axis.dom.extent, tirx.IntImm) for axis in axes):
        return None
    dtypes = {str(load.source.dtype) for load in loads}
    if len(dtypes) != 1:
        return None
    dtype = dtypes.pop()
    if dtype not in ("float16", "bfloat16") and TF32 not in body.annotations:
        return None
    used = [set().union(*map(variables_of, load.indices)) for load in loads]
    kinds, size = [], {"batch": 1, "row": 1, "column": 1, "term": 1, "unit": 1}
    for axis in axes:
        where = axis.var in used[0], axis.var in used[1], axis.iter_type == nests.SPATIAL
        kind = "unit" if int(axis.dom.extent) == 1 else _KINDS.get(where)
        if kind is None:
            return None
        kinds.append(kind)
        size[kind] *= int(axis.dom.extent)
    if size["row"] < _LEAST_ROWS or min(size["column"], size["term"]) < _LEAST:
        return None
    kind_of = {axis.var: kind for axis, kind in zip(axes, kinds, strict=True)}
    nearest = [_nearest(load, kind_of) for load in loads]
    return _Product(
        block,
        dtype,
        tuple(kinds),
        (size["batch"], size["row"], size["column"], size["term"]),
        nearest[0] == "row",
        nearest[1] == "term",
    )


# What an axis is: whether the left operand has it, whether the right one does, and the sums.
_KINDS = {
    (True, True, True): "batch",
    (True, False, True): "row",
    (False, True, True): "column",
    (True, True, False): "term",
}


def _factors(block: Any) -> tuple[Any, Any] | None:
    """The loads of a sum's two factors, None where it is no sum of products in float32."""
    value = getattr(block.body, "value", None)
    if not isinstance(value, tirx.Add) or str(block.writes[0].source.dtype) != "float32":
        return None
    if not isinstance(value.b, tirx.Mul):
        return None
    left, right = (
        factor.value if isinstance(factor, NODES.cast) else factor
        for factor in (value.b.a, value.b.b)
    )
    if not all(isinstance(factor, NODES.load) for factor in (left, right)):
        return None
    return None if left.source.same_as(right.source) else (left, right)


def _nearest(load: Any, kind_of: dict[Any, str]) -> str:
    """The kind of axis along which an operand's neighbours lie in memory."""
    for index in reversed(load.indices):
        kinds = [kind_of[variable] for variable in variables_of(index)]
        for kind in kinds:
            if kind != "unit":
                return kind
    return "unit"


def _tile(found: _Product, shape: tuple[int, int, int]) -> _Tile:
    batch, rows, columns, terms = found.extents
    m, n, k = shape
    for tile in _TILES:
        high, wide = m * tile.by_rows, n * tile.columns * tile.by_columns
        blocks = batch * -(-rows // high) * -(-columns // wide)
        if blocks >= _BLOCKS and 2 * rows > high and 2 * columns > wide:
            break
    slices = tile.slices
    while slices > 1 and terms <= k * (slices // 2):  # a warp of nothing but zeros
        slices //= 2
    return replace(tile, slices=slices)


def _schedule(sch: Schedule, found: _Product) -> None:
    fragments = _instructions(found)
    m, n, k = fragments.shape
    tile = _tile(found, fragments.shape)
    neighbours = [_neighbours(sch, found, number) for number in (0, 1)]
    _as_one_product(sch, found)
    deep = _DEEP
    if tile.slices > 1:
        deep = k * tile.slices * (2 if found.extents[3] > k * tile.slices else 1)
    whole = [1, m * tile.by_rows, n * tile.columns * tile.by_columns, deep]
    sch.pad_einsum(found.block, whole)
    out = _rest(sch, found.block)

    block, (b, i, j, r) = found.block, sch.get_loops(found.block)
    strip, r = sch.split(r, [None, deep])
    if tile.slices > 1:
        at, _ = sch.split(r, [tile.slices, None])
        block = sch.rfactor(at, 0)
        b, i, j, strip, at, r = sch.get_loops(block)
    i, i_own, i_in = sch.split(i, [None, tile.by_rows, m])
    j, j_warp, j_own, j_in = sch.split(j, [None, tile.columns, tile.by_columns, n])
    piece, r_in = sch.split(r, [None, k])
    warps = [at, j_warp] if tile.slices > 1 else [j_warp]
    sch.reorder(b, i, j, *warps, strip, piece, i_own, j_own, i_in, j_in, r_in)
    warp = sch.fuse(*warps)
    tiles = sch.blockize(i_in)
    axes = ("blockIdx.z", "blockIdx.y", "blockIdx.x", "threadIdx.y")
    for loop, axis in zip((b, i, j, warp), axes, strict=True):
        sch.bind(loop, axis)
    count = tile.slices * tile.columns

    for number, name in enumerate("ab"):
        shared = sch.cache_read(tiles, number, fragments.scope)
        sch.compute_at(shared, strip, preserve_unit_loops=True)
        _inline_into(sch, shared)
        _fetch(sch, shared, count, neighbours[number])
        fragment = sch.cache_read(tiles, number, fragments.memory(name))
        sch.compute_at(fragment, piece, preserve_unit_loops=True)
        _, within = _in_fragments(sch, fragment, fragments.edges(name))
        if isinstance(fragments, Registers):
            sch.transform_layout(fragment, ("write", 0), partial(fragments.tiles, name))
        sch.tensorize(within, fragments.load(name))
    if extent(sch, strip) > 1:
        # The next strip is being read while this one is multiplied: of the five statements those
        # that read go ahead, and last, behind those that put into shared memory what was read.
        sch.annotate(strip, "software_pipeline_stage", [0, 1, 0, 1, 1])
        sch.annotate(strip, "software_pipeline_order", [2, 0, 3, 1, 4])

    copy = sch.cache_write(tiles, 0, fragments.memory("c"))
    sch.reverse_compute_at(copy, warp, preserve_unit_loops=True)
    row, within = _in_fragments(sch, copy, fragments.edges("c"))
    sch.set_scope(copy, 0, fragments.scope)
    if tile.slices > 1:
        sch.reverse_compute_at(found.block, j, preserve_unit_loops=True)
        _write(sch, out, j, count, found)
    else:
        _write(sch, out, row, 1, found)
    start = sch.decompose_reduction(tiles, strip)
    if isinstance(fragments, Registers):
        sch.transform_layout(copy, ("read", 0), partial(fragments.tiles, "c"))
    copy = sch.blockize(within)
    sch.storage_align(copy, 0, axis=-2, factor=8, offset=4)
    sch.tensorize(copy, fragments.store())
    sch.tensorize(sch.get_loops(sch.get_child_blocks(start)[0])[-2], fragments.fill())
    sch.tensorize(sch.get_loops(block)[-3], fragments.multiply())


def _instructions(found: _Product) -> Fragments | Registers:
    if found.dtype == "float32":
        return Registers(found.dtype, found.left, found.right)
    shape = (8, 32, 16) if found.extents[1] <= 8 else (16, 16, 16)
    return Fragments(shape, found.dtype, found.left, found.right)


def _neighbours(sch: Schedule, found: _Product, number: int) -> int:
    """How many elements of an operand, a power of 2, are neighbours in memory wherever one that is
    a multiple of it begins."""
    body = sch.get(found.block)
    load = (_factors(body) or ())[number]
    extents = {axis.var: int(axis.dom.extent) for axis in body.iter_vars}
    for index in reversed(load.indices):
        along = [extents[variable] for variable in variables_of(index)]
        if any(each > 1 for each in along):
            return math.gcd(_VECTOR, *(each for each in along if each > 1))
    return 1


def _as_one_product(sch: Schedule, found: _Product) -> None:
    """The block as sums[batch, row, column] += left * right, its operands copied before."""
    block = found.block
    producers = [sch.get(each).name_hint for each in sch.get_producers(block)]
    inline_producers(sch, keep={sch.get(block).name_hint, *producers})
    left = ("batch", "term", "row") if found.left else ("batch", "row", "term")
    right = ("batch", "column", "term") if found.right else ("batch", "term", "column")
    places = (("read", 0), ("read", 1), ("write", 0))
    for place, order in zip(places, (left, right, ("batch", "row", "column")), strict=True):
        sch.reindex(block, place)
        body = sch.get(block)
        accessed = body.body if place[0] == "write" else (_factors(body) or ())[place[1]]
        sch.transform_layout(block, place, _merged(sch, found, list(accessed.indices), order))
    axes = [axis.var for axis in sch.get(block).iter_vars]
    every = _merged(sch, found, axes, ("batch", "row", "column", "term"))
    sch.transform_block_layout(block, every)


def _merged(sch: Schedule, found: _Product, axes: list[Any], order: Sequence[str]) -> Any:
    """The index map that makes one axis of all those of each kind, in the order of kinds."""
    body = sch.get(found.block)
    kinds_dtype = str(body.iter_vars[0].dom.extent.ty)
    kinds = {
        axis.var: (kind, int(axis.dom.extent))
        for axis, kind in zip(body.iter_vars, found.kinds, strict=True)
    }

    given = [tirx.Var(f"i{number}", kinds_dtype) for number, _ in enumerate(axes)]
    result: dict[str, Any] = {}
    for index, axis in zip(given, axes, strict=True):
        kind, count = kinds.get(axis, ("unit", 1))
        if kind != "unit":
            result[kind] = result[kind] * count + index if kind in result else index
    return tirx.IndexMap(
        given, [result.get(kind, tirx.const(0, kinds_dtype)) for kind in order], None
    )


def _rest(sch: Schedule, block: Any) -> Any:
    """The one block with what follows of the sums, its axes those of the product."""
    (out,) = sch.get_consumers(block)
    while consumers := sch.get_consumers(out):
        if len(consumers) > 1:
            raise _Unfit
        sch.compute_inline(out)
        (out,) = consumers
    body = sch.get(out)
    sums = sch.get(block).writes[0].source
    places = [load.indices for load in loads_in(body) if load.source.same_as(sums)]
    axes = [axis.var for axis in body.iter_vars]
    first = places[0]
    if any(not structural_equal_expr(a, b) for each in places for a, b in zip(first, each)):
        raise _Unfit
    sch.transform_block_layout(out, tirx.IndexMap(axes, list(first), None))
    return out


def _inline_into(sch: Schedule, block: Any) -> None:
    """Inline all that makes an operand into the copy that reads it."""
    while producers := sch.get_producers(block):
        for producer in producers:
            sch.compute_inline(producer)


def _fetch(sch: Schedule, copy: Any, warps: int, neighbours: int) -> None:
    """A strip's copy into shared memory, shared out among all threads of a block."""
    widest = max(item_bytes(str(load.source.dtype)) for load in loads_in(sch.get(copy)))
    loop = sch.fuse(*sch.get_loops(copy)[-3:])
    lanes = min(neighbours, _VECTOR // widest, max(1, extent(sch, loop) // (warps * _WARP)))
    several, y, x, lane = sch.split(loop, [None, warps, _WARP, lanes])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)
    sch.storage_align(
        copy, 0, axis=-2, factor=16, offset=_PAD // item_bytes(written_dtype(sch.get(copy)))
    )
    sch.annotate(copy, "tirx.manifest_shared_memory_local_stage", 1)


def _in_fragments(sch: Schedule, copy: Any, edges: tuple[int, int]) -> tuple[Any, Any]:
    """The loops of a copy over whole fragments; returns that over their rows, and the first one
    within a fragment."""
    row, column = sch.get_loops(copy)[-2:]
    row, row_in = sch.split(row, [None, edges[0]])
    column, column_in = sch.split(column, [None, edges[1]])
    sch.reorder(row, column, row_in, column_in)
    return row, row_in


def _write(sch: Schedule, out: Any, at: Any, warps: int, found: _Product) -> None:
    """What follows of the sums, done for those that lie in shared memory in loop `at`."""
    sch.reverse_compute_at(out, at, preserve_unit_loops=True)
    loop = sch.fuse(*sch.get_loops(out)[-3:])
    lanes = math.gcd(found.extents[2], min(4, max(1, extent(sch, loop) // (warps * _WARP))))
    several, y, x, lane = sch.split(loop, [None, warps, _WARP, lanes])
    if warps > 1:
        sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)
    if warps > 1:
        sch.compute_at(found.block, x)
        sch.set_scope(found.block, 0, "local")
