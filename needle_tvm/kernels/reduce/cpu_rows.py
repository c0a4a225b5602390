"""Schedules functions with several steps per row, such as normalisations and softmax, row by row.

All steps of one row (or of the slab under one index of the leading axes) run before those of the
next row. Intermediates stay in the core's own cache, and there is only one parallel region.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import SCHEDULE_ERROR, Schedule, Target, tirx
from needle_tvm.kernels.blocks import (
    PARALLEL_WORK,
    block_work,
    blocks_of,
    can_fuse,
    divides,
    extent,
    in_tasks,
    inline_producers,
    is_partial,
    is_symbolic,
    is_written,
    least_extent,
    sums_along_rows,
    vectors_of_partial,
)
from needle_tvm.target.info import target_info
from needle_tvm.tir.functions import NODES, loads_in, nodes_in, written_dtype

_FEW_LOADS = 3  # an expression with at most this many loads is not worth a buffer


def rows(sch: Schedule, target: Target) -> bool:
    """Schedule a function of several steps row by row. If it does not fit, return False and leave
    the schedule as it is.

    The function's producers must be inlined already. It fits if it has several blocks, no axis of
    extent 0 and no reduction in its last block. All other blocks must be computable under some
    leading loops of the last block, in every iteration and without recomputation.
    """
    depth = _shared_loops(sch)
    if depth == 0:
        return False
    machine = target_info(target)
    work = _work(sch)
    _inline_cheap(sch)
    partial = set()
    for block in blocks_of(sch)[:-1]:
        if is_partial(sch, block) or is_written(sch, block):
            continue
        lanes = machine.lanes(written_dtype(sch.get(block)))
        partial.add(_partial_results(sch, block, lanes))
    names = [sch.get(block).name_hint for block in blocks_of(sch)]
    row = _computed_together(sch, depth)
    # This comes before reductions are decomposed: afterwards no block would be a whole reduction.
    shared = 1
    if machine.cores > 1 and work >= PARALLEL_WORK and extent(sch, row) > 1:
        tasks = in_tasks(sch, row, machine.cores)
        shared = len(tasks)
        sch.parallel(tasks[0])
    for name in names:
        block = sch.get_sblock(name)
        lanes = machine.lanes(written_dtype(sch.get(block)))
        if is_written(sch, block):
            continue
        if is_partial(sch, block):
            vectors_of_partial(sch, block, shared)
        elif name in partial:
            lane, *others = sch.get_loops(block)[shared:]
            sch.reorder(*others, lane)
            sch.vectorize(lane)
        else:
            _vectors(sch, sch.get_loops(block)[shared:], block, lanes)
    return True


def keeps_few_partial_results(sch: Schedule) -> bool:
    """Return whether `cpu_partial`'s vectors of partial results are kept for one row at a time."""
    if not any(is_partial(sch, block) for block in blocks_of(sch)):
        return True
    trial = sch.copy()
    inline_producers(trial, keep=set())
    partial = [block for block in blocks_of(trial) if is_partial(trial, block)]
    few = all(len(trial.get_loops(block)) <= 2 for block in partial)
    return few or _shared_loops(trial) > 0


def _work(sch: Schedule) -> int:
    return sum(block_work(sch, block) for block in blocks_of(sch))


def _shared_loops(sch: Schedule) -> int:
    """Return the number of the last block's loops that all blocks can share; 0 if none."""
    blocks = blocks_of(sch)
    if len(blocks) < 2 or not all(map(_is_plain, (sch.get(b) for b in blocks))):
        return 0
    if any(axis.iter_type != tirx.IterVar.DataPar for axis in sch.get(blocks[-1]).iter_vars):
        return 0
    work = _work(sch)
    # Vectors of partial results stay in cache even if the rows have one result each.
    most = len(sch.get_loops(blocks[-1])) - (not any(is_partial(sch, block) for block in blocks))
    for depth in range(most, 0, -1):
        if not can_fuse(sch, sch.get_loops(blocks[-1])[:depth]):
            continue
        trial = sch.copy()
        try:
            row = _computed_together(trial, depth)
            trial.parallel(row)  # TVM raises an error if rows overwrite each other's values
            if _work(trial) <= work:
                _check_order_is_free(trial)
                return depth
        except SCHEDULE_ERROR:
            continue
    return 0


def _check_order_is_free(sch: Schedule) -> None:
    """Raise SCHEDULE_ERROR if the loops under the shared loop cannot be reordered. This happens if
    only some of the rows compute a block."""
    for block in blocks_of(sch)[:-1]:
        own = sch.get_loops(block)[1:]
        if own:
            sch.reorder(*own[:-1], *sch.split(own[-1], [None, 1]))


def _is_plain(block: Any) -> bool:
    """Return whether a block writes one buffer and no axis has extent 0."""
    extents = [axis.dom.extent for axis in block.iter_vars]
    empty = any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents)
    return not empty and len(block.writes) == 1


def _computed_together(sch: Schedule, depth: int) -> Any:
    """Fuse the last block's first `depth` loops, compute all other blocks under the fused loop, and
    return it."""
    *inner, last = blocks_of(sch)
    row = sch.fuse(*sch.get_loops(last)[:depth])
    for block in reversed(inner):
        sch.compute_at(block, row, preserve_unit_loops=True)
    return row


def _inline_cheap(sch: Schedule) -> None:
    """Inline blocks that are cheaper to recompute than to store: differences from a mean, casts."""
    for block in blocks_of(sch)[:-1]:
        details = sch.get(block)
        if is_partial(sch, block) or is_written(sch, block):
            continue
        if nodes_in(details.body, NODES.call) or len(loads_in(details)) > _FEW_LOADS:
            continue
        if any(is_written(sch, consumer) for consumer in sch.get_consumers(block)):
            continue
        try:
            sch.compute_inline(block)
        except SCHEDULE_ERROR:
            continue  # a reduction


def _partial_results(sch: Schedule, block: Any, lanes: int) -> str | None:
    """Split a sum over contiguous terms into a vector of partial results and their sum.

    Return the name of the block that computes the partial results, or None if there is none.
    """
    if not sums_along_rows(sch, block):
        return None
    term = sch.get_loops(block)[-1]
    width = _divisor(sch, term, lanes)
    if width == 1:
        return None
    _, lane = sch.split(term, [None, width])
    spatial = [a for a in sch.get(block).iter_vars if a.iter_type == tirx.IterVar.DataPar]
    try:
        partial = sch.rfactor(lane, factor_axis=len(spatial))
    except SCHEDULE_ERROR:
        return None  # a custom reducer: its terms are combined one after another
    return str(sch.get(partial).name_hint)


def _divisor(sch: Schedule, term: Any, lanes: int) -> int:
    """Return the width of the vector of partial results, or 1 if no width fits.

    The width must divide the number of terms, since TVM 0.27 loses a block's bounds when the block
    is computed at another block. Whole vectors are tried first, then other widths down to 4.
    """
    widths = [lanes, *range(2 * lanes, 3, -1)]
    terms = least_extent(sch, term)
    return next((w for w in widths if w > 1 and terms >= 2 * w and divides(sch, term, w)), 1)


def _vectors(sch: Schedule, own: list[Any], block: Any, lanes: int) -> None:
    """Vectorise a block under the shared loop."""
    kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
    kinds = kinds[len(kinds) - len(own) :]
    spatial = [loop for loop, kind in zip(own, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    summed = [loop for loop in own if loop not in spatial]
    if not spatial or (summed and sums_along_rows(sch, block)):
        return
    *_, last = spatial
    if extent(sch, last) < lanes or lanes == 1:
        return
    whole = divides(sch, last, lanes)
    rest, vector = sch.split(last, [None, lanes])
    # Ask for a separate loop for the remainder. TVM 0.27 fails to partition loops whose variables
    # it does not narrow to 32 bits, because it compares numbers of two types. This happens around a
    # sum if an extent is symbolic, and if a choice between int64 values depends on the variables.
    symbolic = any(is_symbolic(sch, loop) for loop in sch.get_loops(block))
    wide = written_dtype(sch.get(block)) == "int64"
    if not whole and not (summed and symbolic) and not wide:
        sch.annotate(rest, "pragma_loop_partition_hint", 1)
    sch.reorder(*spatial[:-1], rest, *summed, vector)
    sch.vectorize(vector)
