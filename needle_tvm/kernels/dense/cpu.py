"""Schedules dense layers on packed weights, one register tile at a time.

`dense` keeps a tile of accumulators in vector registers while it reads one packed weight panel
front to back (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS
2008, section 4). The panel is already in the order in which the kernel reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import Schedule, Target
from needle_tvm.kernels.blocks import (
    TASKS,
    TILE_VECTORS,
    after,
    block_work,
    calls_functions,
    extent,
    is_symbolic,
    item_bytes,
    lanes_of,
    most_beside,
    share_out,
    sum_in_registers,
    write_back,
)
from needle_tvm.kernels.rule import annotated
from needle_tvm.target import dots
from needle_tvm.target.info import target_info

DENSE = "needle.dense"  # block annotations: [rows, columns] of the register tile
PAIRS = "needle.pairs"  # the same for a matmul of bfloat16, two terms at a time

_REDUCTION_UNROLL = 4
LATENCY = 8  # multiply-adds that begin before the first one ends
_IDLE = 0.05  # idle fraction of the cores' time that is accepted for fewer parts
_MANY_ROWS = 64  # assumed for a symbolic number of rows when panels are chosen
_SHARED_SUM = 1 << 17  # terms that are worth a second pass over the results


@dataclass(frozen=True)
class Tile:
    """Extents of the tile of accumulators that registers hold."""

    rows: int
    columns: int


@dataclass(frozen=True)
class DenseKnobs:
    """The choices that the dense rule leaves to a search; the defaults need no search."""

    unroll: int = _REDUCTION_UNROLL
    rows_first: bool = False  # a task is one block of rows, not all rows along one panel


DENSE_VARIANTS = tuple(  # without measurements, the first is used
    DenseKnobs(unroll=unroll, rows_first=rows_first)
    for rows_first in (False, True)
    for unroll in (_REDUCTION_UNROLL, 1, 2, 8)
)


def dense_tile(m: int, k: int, n: int, dtype: str, target: Target) -> Tile:
    """Return the register tile for which an (m, k) @ (k, n) matmul ends first on its slowest core.

    A tile reads from all its rows in turn, and has no more rows than the L1 cache keeps. Of equally
    fast tiles, take the one whose weights are read by the fewest cores, then the one whose weights
    are read least often, then the one with the most arithmetic per load, then the smallest.
    """
    cores = target_info(target).cores
    lanes = target_info(target).lanes(dtype)
    tiles = [
        Tile(rows=-(-m // -(-m // rows)), columns=vectors * lanes)  # the last one is nearly full
        for vectors in TILE_VECTORS
        for rows in range(1, most_rows(k, vectors, dtype, target) + 1)
        if vectors == 1 or (vectors // 2) * lanes < n
    ]

    def cost(tile: Tile) -> tuple[float, int, int, float, int]:
        rows, vectors = tile.rows, tile.columns // lanes
        cycles = max(rows * vectors, rows + vectors, 2 * vectors, LATENCY)
        panels, blocks = -(-n // tile.columns), -(-m // rows)
        parts = row_parts(panels, blocks, cores)
        share = -(-panels * parts // cores) / parts  # the busiest core's part of the panels
        loads = (rows + vectors) / (rows * vectors)
        return share * blocks * cycles, parts, blocks, loads, rows * vectors

    return min(tiles, key=cost)


def most_rows(k: int, vectors: int, dtype: str, target: Target) -> int:
    """Return the most rows of a tile of `vectors` vectors, for sums over k terms."""
    registers = target_info(target).vectors.number
    fit = (registers - vectors - 2) // vectors
    return max(1, min(most_beside(k * item_bytes(dtype)), fit))


def symbolic_tile(k: int, n: int, dtype: str, target: Target) -> Tile:
    """Return the register tile for a symbolic number of rows: the tile for many rows. Its columns
    are the width of the panels; `dense_by_rows` adds tiles for other numbers of rows."""
    return dense_tile(_MANY_ROWS, k, n, dtype, target)


def row_parts(panels: int, blocks: int, cores: int) -> int:
    """Return the number of parts to cut `blocks` of rows into. It is the smallest number p for
    which `panels` * p tasks leave the cores idle for at most a twentieth of their time."""

    def idle(parts: int) -> float:
        tasks = panels * parts
        return 1 - tasks / (-(-tasks // cores) * cores)

    some = range(1, min(blocks, TASKS * cores) + 1)
    divisors = [*(parts for parts in some if blocks % parts == 0), blocks]
    return next((parts for parts in divisors if idle(parts) <= _IDLE), min(divisors, key=idle))


@annotated(DENSE, DENSE_VARIANTS)
def dense(sch: Schedule, tiles: Any, target: Target, knobs: DenseKnobs, beside: int = 1) -> None:
    """Schedule a matmul of `dense.pack_weights`, or a batch of them, with its fused epilogue.

    The panels are distributed over the threads: each panel stays in its core's cache while all
    rows, or a part of them, are multiplied by it. `beside` tiles are computed side by side;
    `beside` must divide the number of panels.
    """
    tile = Tile(*(int(size) for size in sch.get(tiles).annotations[DENSE]))
    cores = target_info(target).cores
    accumulators = beside * tile.rows * tile.columns // lanes_of(sch, tiles, target)
    between, last = after(sch, [tiles])
    shared = cores > 1 and _share_sum(sch, tiles, accumulators, cores, knobs)
    at = _tiled(sch, tiles, between, last, tile, target, knobs, 1 if shared else beside)
    if shared:
        _add_up(sch, tiles, at)
    else:
        _accumulate(sch, tiles, at, accumulators, knobs)


@annotated(PAIRS, DENSE_VARIANTS)
def pairs(sch: Schedule, tiles: Any, target: Target, knobs: DenseKnobs) -> None:
    """Schedule a matmul of `kernels.dense.pack_pairs` like `dense`, two terms per instruction."""
    tile = Tile(*(int(size) for size in sch.get(tiles).annotations[PAIRS]))
    between, last = after(sch, [tiles])
    if _is_cut_short(sch, between, last, tile):
        at = _stored_whole(sch, tiles, between, last, tile, target, knobs)
    else:
        at = _tiled(sch, tiles, between, last, tile, target, knobs)
    sch.compute_at(tiles, at, preserve_unit_loops=True)
    i, j, k, pair = sch.get_loops(tiles)[-4:]
    vector, lane = sch.split(j, [None, dots.LANES])
    k_outer, k_inner = sch.split(k, [None, _unroll(extent(sch, k), knobs.unroll)])
    sch.reorder(k_outer, k_inner, i, vector, lane, pair)
    sch.set_scope(tiles, 0, "local")
    for loop in (k_inner, i, vector):
        sch.unroll(loop)
    start = sch.decompose_reduction(tiles, k_outer)
    *_, i, vector, start_lane = sch.get_loops(start)
    sch.unroll(i)
    sch.unroll(vector)
    sch.vectorize(start_lane)
    sch.tensorize(lane, dots.BF16_PAIRS.tensor_intrinsic())
    sch.annotate(at, dots.PRAGMA, dots.BF16_PAIRS.source)


def _is_cut_short(sch: Schedule, between: list[Any], last: Any, tile: Tile) -> bool:
    """Return whether a tile computed next to its reader would end within a vector. This happens if
    the only panel is wider than the result and blocks of the result's shape precede the last block.

    `dots.BF16_PAIRS` is an instruction for whole vectors.
    """
    n = extent(sch, sch.get_loops(last)[-1])
    own = bool(between) or calls_functions(sch, last)  # see write_back
    return own and n < tile.columns and n % dots.LANES != 0


def _stored_whole(
    sch: Schedule,
    tiles: Any,
    between: list[Any],
    last: Any,
    tile: Tile,
    target: Target,
    knobs: DenseKnobs,
) -> Any:
    """Store whole tiles to memory before anything reads them. Return the loop in which to compute
    one tile in registers."""
    stored = sch.cache_write(tiles, 0, "local")
    _tiled(sch, stored, between, last, tile, target, knobs)
    block, panel, i, j = sch.get_loops(stored)
    share_out(sch, block, tiles, target)
    sch.unroll(i)
    sch.vectorize(j)
    return panel


def _tiled(
    sch: Schedule,
    tiles: Any,
    between: list[Any],
    last: Any,
    tile: Tile,
    target: Target,
    knobs: DenseKnobs,
    beside: int = 1,
) -> Any:
    """Split the last block into tasks and tiles. Return the loop in which to compute `beside`
    tiles."""
    *batch, m, n = sch.get_loops(last)
    m_block, m_inner = sch.split(m, [None, tile.rows])
    panel, n_inner = sch.split(n, [None, tile.columns])
    side = []
    if beside > 1:
        panel, *side = sch.split(panel, [None, beside])
    blocks = extent(sch, m_block)
    panels = math.prod(extent(sch, loop) for loop in (*batch, panel))
    cores = target_info(target).cores
    parts = blocks if knobs.rows_first else row_parts(panels, blocks, cores)
    if is_symbolic(sch, m_block) and parts > 1:
        m_part, m_block = sch.split(m_block, [None, 1])
    else:
        m_part, m_block = sch.split(m_block, [parts, None])
    sch.reorder(*batch, m_part, panel, m_block, *side, m_inner, n_inner)
    # If the loop over blocks were fused too, a task would recompute its addresses in each block.
    share_out(sch, sch.fuse(*batch, m_part, panel), tiles, target)
    write_back(sch, tiles, between, last, m_block, [*side, m_inner, n_inner], target, axes=2)
    return m_block


def _share_sum(sch: Schedule, tiles: Any, accumulators: int, cores: int, knobs: DenseKnobs) -> bool:
    """Let the cores share the reduction axis of long sums if there are too few results for all
    cores; return whether they share it. If so, `tiles` then adds the cores' partial sums."""
    *counts, _, _, k = sch.get_loops(tiles)
    results = math.prod(extent(sch, loop) for loop in counts)
    if results > cores // 2 or block_work(sch, tiles) < _SHARED_SUM:
        return False
    shares = next((s for s in range(cores, 4 * cores + 1) if extent(sch, k) % s == 0), None)
    if shares is None:
        return False
    share, _ = sch.split(k, [shares, None])
    partial = sch.rfactor(share, factor_axis=0)
    stored = sch.cache_write(partial, 0, "local")
    share, *batch, block, panel, i, j = sch.get_loops(stored)
    sch.reorder(share, *batch, panel, block, i, j)
    sch.parallel(share)
    _accumulate(sch, partial, block, accumulators, knobs)
    sch.unroll(i)
    sch.vectorize(j)
    return True


def _accumulate(sch: Schedule, tiles: Any, at: Any, accumulators: int, knobs: DenseKnobs) -> None:
    """Compute the tiles one by one in loop `at`, in `accumulators` registers each."""
    partial = _partial_sums(sch, tiles, accumulators)
    if partial is None:
        sch.compute_at(tiles, at, preserve_unit_loops=True)
        panel, i, j, k = sch.get_loops(tiles)[-4:]
        k_outer, k_inner = sch.split(k, [None, _unroll(extent(sch, k), knobs.unroll)])
        beside = [panel] if extent(sch, panel) > 1 else []
        sum_in_registers(sch, tiles, k_outer, [k_inner, *beside, i], j)
        return
    _add_up(sch, tiles, at)
    own = len(sch.get_loops(partial))
    sch.compute_at(partial, at, preserve_unit_loops=True)
    part, *_, i, j, k = sch.get_loops(partial)[-own:]
    sum_in_registers(sch, partial, k, [part, i], j)


def _add_up(sch: Schedule, tiles: Any, at: Any) -> None:
    """Add the partial sums of `tiles` in registers, tile by tile in loop `at`."""
    own = len(sch.get_loops(tiles))
    sch.compute_at(tiles, at, preserve_unit_loops=True)
    part, *_, i, j = sch.get_loops(tiles)[-own:]
    sum_in_registers(sch, tiles, part, [i], j)
    sch.unroll(part)  # so that every partial sum has its own register


def _partial_sums(sch: Schedule, tiles: Any, accumulators: int) -> Any:
    """Split each sum of `tiles` into several over interleaved terms. Return the block of partial
    sums; None if the accumulators hide the latency of a multiply-add, or there are too few terms.
    """
    *_, k = sch.get_loops(tiles)
    parts = _unroll(extent(sch, k), -(-LATENCY // accumulators))
    if parts == 1 or extent(sch, k) < 4 * parts:
        return None
    _, part = sch.split(k, [None, parts])
    return sch.rfactor(part, factor_axis=0)


def _unroll(extent: int, most: int) -> int:
    return next(factor for factor in range(min(most, extent), 0, -1) if extent % factor == 0)
