"""Matmuls of narrow operands on a GPU's tensor cores: dense layers, batches, convolutions.

A matmul is in the form of `product`, with float16, bfloat16 or (annotated) tf32 operands and
float32 sums. Operands are rounded, zero-padded and gathered from windows on their way into shared
memory, and the epilogue is computed when the sums are written back.

    for tile of the results (blockIdx.x):
        for strip of the terms:
            shared left, right = the strip's operands   (while one is multiplied, the next is read)
            for fragment of the strip's terms, of rows, of columns: sums += left * right
        shared = sums, some rows at a time
        result = epilogue of the sums

If there are too few tiles for a GPU, the warps of a block share the terms of one small tile
("sliced-K", CUTLASS, "Efficient GEMM in CUDA"), and their sums are combined in shared memory. The
tile is the largest that leaves about one block per multiprocessor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from needle_runtime.target.gpu import SHARED_BYTES
from needle_runtime.target.kind import GPU
from needle_tvm._tvm.names import SCHEDULE_ERROR, PrimFunc, Schedule, Target
from needle_tvm.kernels.blocks import extent, item_bytes
from needle_tvm.kernels.dense.gpu import product
from needle_tvm.kernels.dense.gpu.mma import Registers
from needle_tvm.kernels.dense.gpu.product import (
    LEFT,
    PARTIAL,
    PRODUCT,
    RESULT,
    RIGHT,
    Product,
    find,
)
from needle_tvm.kernels.dense.gpu.wmma import Fragments
from needle_tvm.kernels.rule import rule
from needle_tvm.target.info import target_info
from needle_tvm.tir.functions import NODES, loads_in, written_dtype

TF32 = "needle.tf32"  # annotation of blocks whose float32 operands are rounded to tf32

Instructions = Fragments | Registers

_SINCE = {
    "float16": 75,
    "bfloat16": 80,
    "float32": 80,
}  # least compute capability by dtype of the operands, which is float32 for tf32
_WARP = 32
_BLOCKS = 128  # about as many as large GPUs have multiprocessors
_MOST_BLOCKS = 2**31 - 1  # blocks of a grid along x
_PAD = 16  # bytes between a strip's rows, so that a fragment's rows lie in different banks
_SUMS_PAD = 4  # padding, in sums, between the rows of sums that are written
_VECTOR = 16  # bytes that a thread reads at once
_DEEP = 32  # terms of a strip that is not divided into slices
_LEAST = 8  # least number of columns and of terms
_LEAST_ROWS = 5  # with fewer rows, a thread per column multiplies as fast as it reads


@dataclass(frozen=True)
class WarpTile:
    """A block's tile: its warps, which lie side by side or share the terms, and each warp's
    fragments of sums, by rows and by columns."""

    columns: int
    slices: int
    by_rows: int
    by_columns: int


# The tiles, from large to small. A warp's sums take at most 64 registers per thread. Strips and
# results together stay below the 48 kB of shared memory that every GPU allows without opting in.
TILES = (
    WarpTile(columns=4, slices=1, by_rows=4, by_columns=2),
    WarpTile(columns=4, slices=1, by_rows=2, by_columns=1),
    WarpTile(columns=1, slices=4, by_rows=2, by_columns=2),
    WarpTile(columns=1, slices=8, by_rows=1, by_columns=2),
    WarpTile(columns=1, slices=8, by_rows=1, by_columns=1),
)


@rule(GPU, order=10, knobs=lambda *given: warp_tiles(*given))
def tensor_core(
    function: PrimFunc, target: Target, tile: WarpTile | None = None
) -> Schedule | None:
    """Schedule a matmul of narrow operands and its epilogue on tensor cores.

    The rule fits products that `product.find` recognises, with operands of the same dtype (float16,
    bfloat16, or float32 annotated as tf32) that the target's tensor cores support, float32 sums, at
    least 5 rows, and at least 8 columns and terms. Returns None for any other function. `tile` is
    one of `warp_tiles`; the default is the first of them.
    """
    taken = _taken(function, target)
    if taken is None:
        return None
    found, instructions = taken
    if tile is None:
        tile = _tile(found, instructions)
    if _blocks(found, instructions, tile) > _MOST_BLOCKS:
        return None
    m, n, k = instructions.shape
    whole = product.Tile(
        m * tile.by_rows,
        n * tile.columns * tile.by_columns,
        _depth(found, k, tile),
        tile.slices,
    )
    sch = Schedule(found.written(whole))
    try:
        _schedule(sch, found, instructions, tile)
    except SCHEDULE_ERROR:
        return None
    return sch


def warp_tiles(function: PrimFunc, target: Target) -> list[WarpTile]:
    """Return the tiles that `tensor_core` accepts for a function; the first one is its default."""
    taken = _taken(function, target)
    return [] if taken is None else list(dict.fromkeys([_tile(*taken), *_others(*taken)]))


def _taken(function: PrimFunc, target: Target) -> tuple[Product, Instructions] | None:
    """Return the product that a function computes and its instructions; None if the rule does not
    fit."""
    found = find(function)
    if found is None or found.wide != "float32":
        return None
    dtypes = {_dtype(factor) for factor in (found.left, found.right)}
    if len(dtypes) > 1 or not dtypes <= set(_SINCE):
        return None
    (dtype,) = dtypes
    if dtype == "float32" and TF32 not in found.block.annotations:
        return None
    if target_info(target).capability < _SINCE[dtype]:
        return None
    if found.rows < _LEAST_ROWS or min(found.columns, found.terms) < _LEAST:
        return None
    return found, _instructions(found, dtype)


def _dtype(factor: Any) -> str:
    """Return the dtype of an operand before it is cast to the dtype of the sums."""
    return str((factor.value if isinstance(factor, NODES.cast) else factor).ty)


def _instructions(found: Product, dtype: str) -> Instructions:
    left = found.innermost(found.left) in found.kinds["rows"]
    right = found.innermost(found.right) in found.kinds["terms"]
    if dtype == "float32":
        return Registers(dtype, left, right)
    return Fragments((8, 32, 16) if found.rows <= 8 else (16, 16, 16), dtype, left, right)


def _tile(found: Product, instructions: Instructions) -> WarpTile:
    m, n, _ = instructions.shape
    for tile in TILES:
        high, wide = m * tile.by_rows, n * tile.columns * tile.by_columns
        filled = 2 * found.rows > high and 2 * found.columns > wide
        fits = _shared_bytes(found, instructions, tile) <= SHARED_BYTES
        if fits and filled and _blocks(found, instructions, tile) >= _BLOCKS:
            break
    return _as_deep(found, instructions, tile)


def _others(found: Product, instructions: Instructions) -> list[WarpTile]:
    """Return other tiles, from large to small, all less than twice as large as the result."""
    m, n, _ = instructions.shape
    every = (
        _as_deep(found, instructions, WarpTile(columns, slices, by_rows, by_columns))
        for columns, slices in ((8, 1), (4, 1), (2, 1), (1, 8), (1, 4), (1, 2))
        for by_rows, by_columns in ((4, 2), (2, 4), (2, 2), (1, 4), (2, 1), (1, 2), (1, 1))
        if m * by_rows < 2 * found.rows and n * columns * by_columns < 2 * found.columns
    )
    return [tile for tile in every if _shared_bytes(found, instructions, tile) <= SHARED_BYTES]


def _as_deep(found: Product, instructions: Instructions, tile: WarpTile) -> WarpTile:
    """Return the tile without slices that would have no terms and would only multiply zeros."""
    slices, terms = tile.slices, instructions.shape[2]
    while slices > 1 and found.terms <= terms * (slices // 2):
        slices //= 2
    return replace(tile, slices=slices)


def _shared_bytes(found: Product, instructions: Instructions, tile: WarpTile) -> int:
    """Return the bytes of shared memory per block: a strip of each operand, and the sums that are
    written at once."""
    m, n, k = instructions.shape
    high, wide = m * tile.by_rows, n * tile.columns * tile.by_columns
    depth, item = _depth(found, k, tile), item_bytes(instructions.dtype)
    strips = [(high, depth), (depth, wide)]
    turned = (instructions.left, instructions.right)
    sums = m if tile.slices == 1 else tile.slices * high
    return sums * (wide + _SUMS_PAD) * item_bytes("float32") + sum(
        rows * (columns * item + _PAD)
        for rows, columns in (
            strip[::-1] if transposed else strip
            for strip, transposed in zip(strips, turned, strict=True)
        )
    )


def _blocks(found: Product, instructions: Instructions, tile: WarpTile) -> int:
    m, n, _ = instructions.shape
    high, wide = m * tile.by_rows, n * tile.columns * tile.by_columns
    return found.batches * math.ceil(found.rows / high) * math.ceil(found.columns / wide)


def _depth(found: Product, terms: int, tile: WarpTile) -> int:
    """Return the terms of a strip: two fragments per slice if there are enough terms."""
    if tile.slices == 1:
        return _DEEP
    return terms * tile.slices * (2 if found.terms > terms * tile.slices else 1)


def _schedule(sch: Schedule, found: Product, instructions: Instructions, tile: WarpTile) -> None:
    m, n, k = instructions.shape
    total, out = sch.get_sblock(PRODUCT), sch.get_sblock(RESULT)
    if tile.slices == 1:
        sums = total
        *batch, i, j, r = sch.get_loops(sums)
        strip, r = sch.split(r, [None, _DEEP])
        shared = []
    else:
        sums = sch.get_sblock(PARTIAL)
        at, *batch, i, j, strip, r = sch.get_loops(sums)
        shared = [at]
    i, i_own, i_in = sch.split(i, [None, tile.by_rows, m])
    j, j_warp, j_own, j_in = sch.split(j, [None, tile.columns, tile.by_columns, n])
    piece, r_in = sch.split(r, [None, k])
    sch.reorder(*batch, i, j, *shared, j_warp, strip, piece, i_own, j_own, i_in, j_in, r_in)
    grid, warp = sch.fuse(*batch, i, j), sch.fuse(*shared, j_warp)
    tiles = sch.blockize(i_in)
    sch.bind(grid, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    warps = tile.slices * tile.columns

    for number, name in enumerate("ab"):
        factor = sch.get_sblock((LEFT, RIGHT)[number])
        transposed = (instructions.left, instructions.right)[number]
        if transposed:
            sch.transform_layout(factor, ("write", 0), _last_two_exchanged)
        sch.set_scope(factor, 0, instructions.scope)
        sch.compute_at(factor, strip, preserve_unit_loops=True)
        value = (found.left, found.right)[number]
        _fetch(sch, factor, transposed, warps, _neighbours(found, value))
        fragment = sch.cache_read(tiles, number, instructions.memory(name))
        sch.compute_at(fragment, piece, preserve_unit_loops=True)
        _, within = _in_fragments(sch, fragment, instructions.edges(name))
        if isinstance(instructions, Registers):
            sch.transform_layout(fragment, ("write", 0), partial(instructions.tiles, name))
        sch.tensorize(within, instructions.load(name))
    if extent(sch, strip) > 1:
        # The loop has these steps: left to registers, left to shared memory, the same for right,
        # the matmul.
        sch.annotate(strip, "software_pipeline_stage", [0, 1, 0, 1, 1])
        sch.annotate(strip, "software_pipeline_order", [2, 0, 3, 1, 4])

    copy = sch.cache_write(tiles, 0, instructions.memory("c"))
    sch.set_scope(copy, 0, instructions.scope)
    sch.reverse_compute_at(copy, warp, preserve_unit_loops=True)
    row, within = _in_fragments(sch, copy, instructions.edges("c"))
    if tile.slices == 1:
        _write(sch, found, out, row, 1)
    else:
        sch.reverse_compute_at(total, grid, preserve_unit_loops=True)
        thread = _write(sch, found, out, grid, warps)
        sch.compute_at(total, thread)
        sch.set_scope(total, 0, "local")
    start = sch.decompose_reduction(tiles, strip)
    if isinstance(instructions, Registers):
        sch.transform_layout(copy, ("read", 0), partial(instructions.tiles, "c"))
    copy = sch.blockize(within)
    sch.storage_align(copy, 0, axis=-2, factor=8, offset=_SUMS_PAD)
    sch.tensorize(copy, instructions.store())
    sch.tensorize(sch.get_loops(sch.get_child_blocks(start)[0])[-2], instructions.fill())
    sch.tensorize(sch.get_loops(sums)[-3], instructions.multiply())


def _last_two_exchanged(*at: Any) -> tuple[Any, ...]:
    *outer, first, second = at
    return (*outer, second, first)


def _neighbours(found: Product, factor: Any) -> int:
    """Return the length, a power of 2, of the aligned runs of an operand's elements that are
    contiguous in memory."""
    axis = found.innermost(factor)
    return 1 if axis is None else math.gcd(_VECTOR, int(axis.dom.extent))


def _fetch(sch: Schedule, factor: Any, transposed: bool, warps: int, neighbours: int) -> None:
    """Copy a strip into shared memory, distributed over all threads of a block."""
    widest = max(item_bytes(str(load.source.dtype)) for load in loads_in(sch.get(factor)))
    padding = _PAD // item_bytes(written_dtype(sch.get(factor)))
    first, second = sch.get_loops(factor)[-2:]
    if transposed:
        sch.reorder(second, first)
        first, second = second, first
    loop = sch.fuse(first, second)
    lanes = min(neighbours, _VECTOR // widest, max(1, extent(sch, loop) // (warps * _WARP)))
    _, y, x, lane = sch.split(loop, [None, warps, _WARP, lanes])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)
    sch.storage_align(factor, 0, axis=-2, factor=16, offset=padding)
    sch.annotate(factor, "tirx.manifest_shared_memory_local_stage", 1)


def _in_fragments(sch: Schedule, copy: Any, edges: tuple[int, int]) -> tuple[Any, Any]:
    """Tile a copy by whole fragments. Return the loop over their rows and the first loop within a
    fragment."""
    row, column = sch.get_loops(copy)[-2:]
    row, row_in = sch.split(row, [None, edges[0]])
    column, column_in = sch.split(column, [None, edges[1]])
    sch.reorder(row, column, row_in, column_in)
    return row, row_in


def _write(sch: Schedule, found: Product, out: Any, at: Any, warps: int) -> Any:
    """Compute the epilogue of the sums that loop `at` has put into shared memory. Return the loop
    over a warp's threads."""
    sch.reverse_compute_at(out, at, preserve_unit_loops=True)
    row, column = sch.get_loops(out)[-2:]
    high, wide = extent(sch, row), extent(sch, column)
    lanes = math.gcd(found.columns, 4, max(1, high * wide // (warps * _WARP)))
    # Rows and columns stay separate: if one loop covered both, TVM could not tell which sums it
    # reads and would allocate too much memory.
    side_by_side = min(_WARP, wide // lanes)
    column, x, lane = sch.split(column, [None, side_by_side, lanes])
    row, y, x_row = sch.split(row, [None, warps, _WARP // side_by_side])
    sch.reorder(row, column, y, x_row, x, lane)
    x = sch.fuse(x_row, x)
    if warps > 1:
        sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)
    return x
