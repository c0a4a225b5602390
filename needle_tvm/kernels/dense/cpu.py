"""Dense layers on packed weights: one register tile.

`dense` keeps a tile of the accumulator in vector registers while it walks one packed weight panel
front to back (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS
2008, section 4; the panel is already in the order the kernel reads it).
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
    item_bytes,
    lanes_of,
    share_out,
    sum_in_registers,
    vector_registers,
    write_back,
)
from needle_tvm.kernels.rule import annotated
from needle_tvm.tir import bf16

DENSE = "needle.dense"  # block annotations: [rows, columns] of the register tile
PAIRS = "needle.pairs"  # the same of a product of bfloat16, two terms at a time

_REDUCTION_UNROLL = 4
_LATENCY = 8  # cycles: multiply-adds begun before the first one ends
_IDLE = 0.05  # of the cores' time, for the sake of fewer parts
_SHARED_SUM = 1 << 17  # terms that pay for a second pass over the results

# An L1 cache of 32 kB in 8 ways: what lies a multiple of so many bytes apart meets in one set.
# Larger caches have more ways, and rarely more sets.
_SETS, _WAYS = 4096, 8


@dataclass(frozen=True)
class Tile:
    """Extents of the accumulator tile that is held in registers."""

    rows: int
    columns: int


@dataclass(frozen=True)
class DenseKnobs:
    """What of the dense rule is a matter of choice; the defaults need no search."""

    unroll: int = _REDUCTION_UNROLL
    rows_first: bool = False  # a task is one block of rows, and not all rows along one panel


DENSE_VARIANTS = tuple(  # the first is used where nothing is measured
    DenseKnobs(unroll=unroll, rows_first=rows_first)
    for rows_first in (False, True)
    for unroll in (_REDUCTION_UNROLL, 1, 2, 8)
)


def dense_tile(m: int, k: int, n: int, dtype: str, target: Target) -> Tile:
    """Register tile of an (m, k) @ (k, n) product: the one whose slowest core is done first.

    A tile reads its rows side by side: where they meet in one set of the L1 cache, it has no more
    of them than the set holds (1024 terms in 14 rows, float32, Zen 4: a fifth slower than in 8).
    Among equals the one that has the weights read by fewest cores, then the one that reads them
    least often, then the one with most arithmetic for what it loads, then the smallest.
    """
    cores = int(target.attrs["num-cores"])
    registers, width = vector_registers(target)
    lanes = width // item_bytes(dtype)
    most_rows = _WAYS if k * item_bytes(dtype) % _SETS == 0 else registers
    tiles = [
        Tile(rows=-(-m // -(-m // rows)), columns=vectors * lanes)  # the last one is nearly full
        for vectors in TILE_VECTORS
        for rows in range(1, max(1, min(most_rows, (registers - vectors - 2) // vectors)) + 1)
        if vectors == 1 or (vectors // 2) * lanes < n
    ]

    def cost(tile: Tile) -> tuple[float, int, int, float, int]:
        rows, vectors = tile.rows, tile.columns // lanes
        cycles = max(rows * vectors, rows + vectors, 2 * vectors, _LATENCY)
        panels, blocks = -(-n // tile.columns), -(-m // rows)
        parts = row_parts(panels, blocks, cores)
        share = -(-panels * parts // cores) / parts  # of the panels, of the busiest core
        loads = (rows + vectors) / (rows * vectors)
        return share * blocks * cycles, parts, blocks, loads, rows * vectors

    return min(tiles, key=cost)


def row_parts(panels: int, blocks: int, cores: int) -> int:
    """Into how many parts to cut `blocks` of rows, so that as many times `panels` tasks keep all
    cores busy to the end: as few as leave at most a twentieth of their time idle."""

    def idle(parts: int) -> float:
        tasks = panels * parts
        return 1 - tasks / (-(-tasks // cores) * cores)

    some = range(1, min(blocks, TASKS * cores) + 1)
    divisors = [*(parts for parts in some if blocks % parts == 0), blocks]
    return next((parts for parts in divisors if idle(parts) <= _IDLE), min(divisors, key=idle))


@annotated(DENSE, DENSE_VARIANTS)
def dense(sch: Schedule, tiles: Any, target: Target, knobs: DenseKnobs) -> None:
    """Schedule a product of `dense.pack_weights`, or a batch of them, and what was fused after it.

    Threads share out the panels: each stays in its core's cache while all rows, or a part of them,
    walk along it.
    """
    tile = Tile(*(int(size) for size in sch.get(tiles).annotations[DENSE]))
    cores = int(target.attrs["num-cores"])
    accumulators = tile.rows * tile.columns // lanes_of(sch, tiles, target)
    between, last = after(sch, [tiles])
    shared = cores > 1 and _share_sum(sch, tiles, accumulators, cores, knobs)
    at = _tiled(sch, tiles, between, last, tile, target, knobs)
    if shared:
        _add_up(sch, tiles, at)
    else:
        _accumulate(sch, tiles, at, accumulators, knobs)


@annotated(PAIRS, DENSE_VARIANTS)
def pairs(sch: Schedule, tiles: Any, target: Target, knobs: DenseKnobs) -> None:
    """Schedule a product of `kernels.dense.pack_pairs`: as `dense`, two terms to an instruction."""
    tile = Tile(*(int(size) for size in sch.get(tiles).annotations[PAIRS]))
    between, last = after(sch, [tiles])
    if _is_cut_short(sch, between, last, tile):
        at = _stored_whole(sch, tiles, between, last, tile, target, knobs)
    else:
        at = _tiled(sch, tiles, between, last, tile, target, knobs)
    sch.compute_at(tiles, at, preserve_unit_loops=True)
    i, j, k, pair = sch.get_loops(tiles)[-4:]
    vector, lane = sch.split(j, [None, bf16.LANES])
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
    sch.tensorize(lane, bf16.multiply_add())
    sch.annotate(at, bf16.PRAGMA, bf16.SOURCE)


def _is_cut_short(sch: Schedule, between: list[Any], last: Any, tile: Tile) -> bool:
    """Whether a tile computed beside what reads it would end within a vector, as where the only
    panel is wider than the result and blocks of the result's own shape come before the last one.

    `bf16.multiply_add` is an instruction for whole vectors.
    """
    n = extent(sch, sch.get_loops(last)[-1])
    own = bool(between) or calls_functions(sch, last)  # see write_back
    return own and n < tile.columns and n % bf16.LANES != 0


def _stored_whole(
    sch: Schedule,
    tiles: Any,
    between: list[Any],
    last: Any,
    tile: Tile,
    target: Target,
    knobs: DenseKnobs,
) -> Any:
    """Tiles in registers that are written to memory before anything reads them; the loop in which
    one is to be computed."""
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
) -> Any:
    """Tasks and tiles of the last block; the loop in which a tile of `tiles` is to be computed."""
    *batch, m, n = sch.get_loops(last)
    m_block, m_inner = sch.split(m, [None, tile.rows])
    panel, n_inner = sch.split(n, [None, tile.columns])
    blocks = extent(sch, m_block)
    panels = math.prod(extent(sch, loop) for loop in (*batch, panel))
    cores = int(target.attrs["num-cores"])
    parts = blocks if knobs.rows_first else row_parts(panels, blocks, cores)
    m_part, m_block = sch.split(m_block, [parts, None])
    sch.reorder(*batch, m_part, panel, m_block, m_inner, n_inner)
    # Fused with the loop over blocks as well, a task would compute its addresses anew in each.
    share_out(sch, sch.fuse(*batch, m_part, panel), tiles, target)
    write_back(sch, tiles, between, last, m_block, [m_inner, n_inner])
    return m_block


def _share_sum(sch: Schedule, tiles: Any, accumulators: int, cores: int, knobs: DenseKnobs) -> bool:
    """Have the cores share out the terms of long sums, where the results are too few to be shared
    out themselves; whether that is so. `tiles` then adds up what each of them found."""
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
        i, j, k = sch.get_loops(tiles)[-3:]
        k_outer, k_inner = sch.split(k, [None, _unroll(extent(sch, k), knobs.unroll)])
        sum_in_registers(sch, tiles, k_outer, [k_inner, i], j)
        return
    _add_up(sch, tiles, at)
    own = len(sch.get_loops(partial))
    sch.compute_at(partial, at, preserve_unit_loops=True)
    part, *_, i, j, k = sch.get_loops(partial)[-own:]
    sum_in_registers(sch, partial, k, [part, i], j)


def _add_up(sch: Schedule, tiles: Any, at: Any) -> None:
    """Add up, tile by tile in loop `at`, the partial sums of `tiles` in registers."""
    own = len(sch.get_loops(tiles))
    sch.compute_at(tiles, at, preserve_unit_loops=True)
    part, *_, i, j = sch.get_loops(tiles)[-own:]
    sum_in_registers(sch, tiles, part, [i], j)
    sch.unroll(part)  # so that every partial sum is known by a register


def _partial_sums(sch: Schedule, tiles: Any, accumulators: int) -> Any:
    """The block of several sums for each one of `tiles`, over terms in turn; None where there are
    accumulators enough to begin a multiply-add before the last one ends, or too few terms."""
    *_, k = sch.get_loops(tiles)
    parts = _unroll(extent(sch, k), -(-_LATENCY // accumulators))
    if parts == 1 or extent(sch, k) < 4 * parts:
        return None
    _, part = sch.split(k, [None, parts])
    return sch.rfactor(part, factor_axis=0)


def _unroll(extent: int, most: int) -> int:
    return next(factor for factor in range(min(most, extent), 0, -1) if extent % factor == 0)
