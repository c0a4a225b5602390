"""Reductions on a GPU with several threads per result: softmax, norms, means, maxima.

dlight gives some of these functions a block of 256 threads per row, whatever the row's length.
Others, such as a single maximum, get only one thread per result. Here a short row gets one warp,
and a block handles several such rows. A long row gets enough warps that each thread has only a few
terms:

    for rows (blockIdx.x, threadIdx.y):
        for each reduction: for terms (threadIdx.x): the thread's partial result;
            the threads' partial results are combined by shuffles and in shared memory
        for results of the row (threadIdx.x): the epilogue of the reductions

If neighbouring rows are contiguous in memory but neighbouring terms are not (a reduction over the
first axis), threadIdx.x runs over the rows and threadIdx.y over the terms. Intermediates along a
row are kept in shared memory if there is room.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from needle_runtime.target.kind import GPU
from needle_tvm._tvm.names import SCHEDULE_ERROR, PrimFunc, Schedule, Target, tirx
from needle_tvm.kernels.blocks import (
    blocks_of,
    extent,
    inline_producers,
    item_bytes,
    sums_along_rows,
)
from needle_tvm.kernels.rule import rule
from needle_tvm.tir import nests
from needle_tvm.tir.functions import loads_in, variables_of

_WARP = 32
_THREADS = 256  # threads of a block with several rows
_LEAST_TERMS = 32  # terms of a row; with fewer, one thread computes a row
_BLOCKS = 128  # roughly the number of multiprocessors of a large GPU
_BUSY_ROWS = 32 * _BLOCKS  # with this many rows, one warp per row keeps all multiprocessors busy
_EACH, _EACH_BUSY = 8, 32  # terms per thread; with more, a row gets more threads
_SHARED_BYTES = 24 << 10  # per block, so that several blocks fit on a multiprocessor
_UNROLLED = 64  # iterations of a thread's loop, so that several loads are in flight


@dataclass(frozen=True)
class _Threads:
    """How a block's threads are divided: `rows` rows, with `terms` threads for each."""

    rows: int
    terms: int
    along: bool  # whether neighbouring threads work on the same row; otherwise on different rows

    @property
    def tags(self) -> tuple[str, str]:
        """The thread axes of the rows and the terms."""
        return ("threadIdx.y", "threadIdx.x") if self.along else ("threadIdx.x", "threadIdx.y")


@rule(GPU, order=40)
def shared_reductions(function: PrimFunc, target: Target) -> Schedule | None:
    """Schedule reductions over the same rows, and the values computed from them, with several
    threads per row.

    The rule fits if all reductions have the same rows and layout, and the function ends in one
    block. Each reduction must have at least 32 terms, and an operand whose elements each
    contribute to only one result. Returns None if the rule does not fit, or if one thread per row
    is enough.
    """
    sch = Schedule(function)
    inline_producers(sch, keep=set())
    try:
        return sch if _schedule(sch) else None
    except SCHEDULE_ERROR:
        return None  # values of other rows are needed, or a loop cannot be split among threads


def _schedule(sch: Schedule) -> bool:
    """Schedule the function; return False if the rule does not fit."""
    blocks = blocks_of(sch)
    ends = [block for block in blocks if not sch.get_consumers(block)]
    if len(ends) != 1 or not all(_is_plain(sch, block) for block in blocks):
        return False
    (end,) = ends
    reductions = [block for block in blocks if sch.get(block).init is not None]
    if not reductions or not all(_reads_each_once(sch, block) for block in reductions):
        return False
    rows = {_size(sch, block, nests.SPATIAL) for block in reductions}
    terms = [_size(sch, block, nests.REDUCED) for block in reductions]
    along = {sums_along_rows(sch, block) for block in reductions}
    if len(rows) != 1 or len(along) != 1 or min(terms) < _LEAST_TERMS:
        return False
    results = [sch.get(block).writes[0].source for block in reductions]
    row_loops = _row_loops(sch, end, results)
    extents = [extent(sch, loop) for loop in row_loops]
    if {prod(extents)} != rows:
        return False
    choose = _neighbouring_terms if along.pop() else _neighbouring_rows
    threads = choose(prod(extents), ([1, *extents])[-1], max(terms))
    if threads is None:
        return False
    others = [block for block in blocks if sch.get_consumers(block)]
    kept = _without_copies(sch, others, prod(extents), threads)
    at = _bind_end(sch, end, row_loops, threads)
    if not all(_compute_in_row(sch, block, at, size, threads) for block, size in reversed(kept)):
        return False
    # Bind this loop last: inside a thread loop, shared values would be computed for each thread.
    sch.bind(at, threads.tags[0])
    return True


def _is_plain(sch: Schedule, block: Any) -> bool:
    """Return whether a block has one loop per axis, each of a known extent other than 0."""
    axes = list(sch.get(block).iter_vars)
    known = all(isinstance(axis.dom.extent, tirx.IntImm) for axis in axes)
    kinds = {axis.iter_type for axis in axes} <= {nests.SPATIAL, nests.REDUCED}
    return (
        known
        and kinds
        and len(sch.get_loops(block)) == len(axes)
        and all(int(axis.dom.extent) > 0 for axis in axes)
    )


def _size(sch: Schedule, block: Any, kind: int) -> int:
    axes = sch.get(block).iter_vars
    return prod(int(axis.dom.extent) for axis in axes if axis.iter_type == kind)


def _reads_each_once(sch: Schedule, block: Any) -> bool:
    """Return whether a reduction has an operand each of whose elements is used by only one result.
    A factor shared by several results is not such an operand, nor are overlapping windows."""
    details = sch.get(block)
    axes = [axis for axis in details.iter_vars if int(axis.dom.extent) > 1]
    everything = {axis.var for axis in axes}
    reduced = {axis.var for axis in axes if axis.iter_type == nests.REDUCED}
    for load in loads_in(details):
        used = [variables_of(index) for index in load.indices]
        mixed = any(each & reduced and each - reduced for each in used)
        if not mixed and everything <= set().union(*used):
            return True
    return False


def _row_loops(sch: Schedule, end: Any, results: list[Any]) -> list[Any]:
    """Return the loops of the last block that run over the rows."""
    details, loops = sch.get(end), sch.get_loops(end)
    axes = list(details.iter_vars)
    if details.init is not None:
        over = {axis.var for axis in axes if axis.iter_type == nests.SPATIAL}
    else:
        reads = [load for load in loads_in(details) if _among(load.source, results)]
        over = set().union(*(variables_of(index) for load in reads for index in load.indices))
    return [
        loop
        for loop, axis in zip(loops, axes, strict=True)
        if axis.var in over and extent(sch, loop) > 1
    ]


def _among(buffer: Any, buffers: list[Any]) -> bool:
    return any(buffer.same_as(each) for each in buffers)


def _neighbouring_terms(rows: int, last: int, terms: int) -> _Threads:
    """Return one warp per row, or more for long rows if there are too few rows to keep all
    multiprocessors busy.

    The rows of a block are consecutive along the last of the row axes.
    """
    busy = rows >= _BUSY_ROWS
    each, most = (_EACH_BUSY if busy else _EACH), (_THREADS if rows >= _BLOCKS else 4 * _THREADS)
    lanes = _WARP
    while lanes < most and terms > lanes * each:
        lanes *= 2
    own = max(1, _THREADS // lanes)
    while own > 1 and (last % own or rows // own < _BLOCKS):
        own //= 2
    return _Threads(own, lanes, along=True)


def _neighbouring_rows(rows: int, last: int, terms: int) -> _Threads | None:
    """Return several threads per row if one thread per row would leave the GPU partly idle. Return
    None if one thread is enough, or if rows do not fill whole warps: all threads of a block must
    reach the barriers."""
    slices = 1
    while slices < _THREADS // _WARP and rows * slices < _BLOCKS * _THREADS:
        if terms < 2 * slices * _EACH:
            break
        slices *= 2
    if slices == 1 or last % _WARP:
        return None
    return _Threads(_WARP, slices, along=False)


def _without_copies(
    sch: Schedule, blocks: list[Any], rows: int, threads: _Threads
) -> list[tuple[Any, int]]:
    """Inline the blocks that need no buffer; return the others, each with its number of results
    per row.

    The others are the reductions, and those intermediates with several results per row that fit
    into shared memory.
    """
    kept, left = [], _SHARED_BYTES
    for block in blocks:
        details = sch.get(block)
        of_row = _size(sch, block, nests.SPATIAL) // rows
        size = of_row * threads.rows * item_bytes(str(details.writes[0].source.dtype))
        if details.init is not None:
            kept.append((block, of_row))
        elif of_row > 1 and size <= left:
            kept.append((block, of_row))
            left -= size
        else:
            sch.compute_inline(block)
    return kept


def _bind_end(sch: Schedule, end: Any, rows: list[Any], threads: _Threads) -> Any:
    """Bind the loops of the function's last TIR block, except the loops over rows, to threads, and
    the rows to thread blocks; return the loop over the rows of one thread block."""
    loops = sch.get_loops(end)
    others = [loop for loop in loops if not any(sch.get(loop).same_as(sch.get(r)) for r in rows)]
    sch.reorder(*rows, *others)
    inner = sch.fuse(*others) if others else None
    row = sch.fuse(*rows) if rows else sch.add_unit_loop(end if inner is None else inner)
    if inner is None:
        inner = sch.add_unit_loop(end)
    grid, own = sch.split(row, [None, threads.rows])
    sch.bind(grid, "blockIdx.x")
    _bind_terms(sch, inner, threads)
    return own


def _bind_terms(sch: Schedule, loop: Any, threads: _Threads) -> None:
    steps, lane = sch.split(loop, [None, threads.terms])
    sch.reorder(lane, steps)
    sch.bind(lane, threads.tags[1])
    sch.annotate(steps, "pragma_auto_unroll_max_step", _UNROLLED)
    sch.annotate(steps, "pragma_unroll_explicit", 1)


def _compute_in_row(sch: Schedule, block: Any, at: Any, of_row: int, threads: _Threads) -> bool:
    """Compute a TIR block for one row at a time; return False if a row needs other rows' results.

    `of_row` is the number of results that the block has per row.
    """
    # Every thread of a row gets a reduction's result, so the result needs no shared memory.
    sch.set_scope(block, 0, "local" if sch.get(block).init is not None else "shared")
    sch.compute_at(block, at, preserve_unit_loops=True)
    _, _, *loops = sch.get_loops(block)
    axes = sch.get(block).iter_vars
    own = [
        extent(sch, loop)
        for loop, axis in zip(loops, axes, strict=True)
        if axis.iter_type == nests.SPATIAL
    ]
    if prod(own) != of_row:
        return False
    _bind_terms(sch, sch.fuse(*loops), threads)
    return True
