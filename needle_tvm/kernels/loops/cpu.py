"""The default CPU schedule, for functions that no rule fits: threads outside, vectors inside."""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import SCHEDULE_ERROR, Schedule, Target, tirx, tvm
from needle_tvm.kernels.blocks import (
    PARALLEL_WORK,
    TASKS,
    block_work,
    blocks_of,
    calls_functions,
    can_fuse,
    divides,
    extent,
    inline_producers,
    is_partial,
    is_symbolic,
    is_written,
    least_extent,
    sums_along_rows,
    vector_side,
    vectors_of_partial,
)
from needle_tvm.kernels.loops.split_loops import cuts
from needle_tvm.kernels.reduce.cpu_rows import rows
from needle_tvm.target.info import target_info
from needle_tvm.tir import nests
from needle_tvm.tir.functions import loads_in, variables_of, written_dtype


def loops(sch: Schedule, target: Target) -> None:
    """Schedule any function: inline blocks with one reader, run outer loops on threads, and
    vectorise inner loops."""
    inline_producers(sch, keep=set())
    for block in blocks_of(sch):
        if not sch.get_loops(block):
            sch.add_unit_loop(block)  # `rfactor` fails on any block if some block has no loop
    if rows(sch, target):
        return
    machine = target_info(target)
    for block in blocks_of(sch):
        if is_partial(sch, block):
            vectors_of_partial(sch, block, 0)
            continue
        kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
        nest = sch.get_loops(block)
        if not nest or len(kinds) != len(nest):
            continue
        parallel = machine.cores > 1 and block_work(sch, block) >= PARALLEL_WORK
        lanes = machine.lanes(written_dtype(sch.get(block)))
        spatial = [
            loop for loop, kind in zip(nest, kinds, strict=True) if kind == tirx.IterVar.DataPar
        ]
        reduced = [loop for loop in nest if loop not in spatial]
        if is_written(sch, block):
            outer = spatial
        elif not reduced:
            outer = _across(sch, block, spatial, lanes) or _vectors_last(sch, block, spatial, lanes)
        elif len(sch.get(block).writes) > 1:
            outer = spatial  # TVM vectorises a reduction of pairs (argmax) wrongly
        elif spatial and not sums_along_rows(sch, block):
            outer = _columns_last(sch, spatial, reduced, lanes)
        else:
            outer = _partial_results(sch, spatial, reduced, lanes)
        if outer and parallel:
            sch.parallel(sch.fuse(*_outermost(sch, outer, machine.cores)))


def _outermost(sch: Schedule, loops: list[Any], cores: int) -> list[Any]:
    """Return as many outermost loops as are needed to give each core a share.

    The other loops stay separate, because recovering the indices of a fused loop costs a division
    per value.
    """
    chosen: list[Any] = []
    tasks = 1
    for loop in loops:
        if not can_fuse(sch, [*chosen, loop]):
            break
        chosen.append(loop)
        tasks *= least_extent(sch, loop)
        if tasks >= TASKS * cores:
            break
    return chosen


def _vectors_last(sch: Schedule, block: Any, spatial: list[Any], lanes: int) -> list[Any]:
    """Vectorise the last axis and return the loops outside the vectors."""
    *outer, last = spatial
    if extent(sch, last) < lanes:
        return outer
    in_pieces = bool(outer and cuts(sch.get(block), lanes))
    rest, vector = sch.split(last, [None, lanes])
    sch.vectorize(vector)
    return outer if in_pieces else [*outer, rest]  # `split_loops` divides only an unfused loop


def _across(sch: Schedule, block: Any, spatial: list[Any], lanes: int) -> list[Any]:
    """Tile a transposition (a block that reads along one axis and writes along another) in squares.

    A tile uses all elements of its cache lines before the next tile's lines are loaded. Returns the
    loops outside the tiles, or [] if the block is not a transposition.
    """
    crossing, rows = _crossing(sch, block, spatial)
    if crossing is None:
        return []
    width = lanes if calls_functions(sch, block) else vector_side(sch, spatial[-1], lanes)
    if not lanes // 4 <= width <= extent(sch, spatial[-1]):
        return []
    outer, inner = sch.split(crossing, [None, vector_side(sch, crossing, lanes)])
    rest, vector = sch.split(spatial[-1], [None, width])
    around = [outer if loop is crossing else loop for loop in spatial[:-1]]
    # The operand's rows are read in order, since caches prefetch along this axis.
    around.insert(len(around) - rows, rest)
    sch.reorder(*around, inner, vector)
    sch.vectorize(vector)
    return around


def _crossing(sch: Schedule, block: Any, spatial: list[Any]) -> tuple[Any, int]:
    """Return the loop along which an operand is contiguous, if the last loop has a larger stride in
    that operand; else None. Also return how many of the operand's axes follow the last loop's axis,
    if the loops just before the last one index them in order; else 0.
    """
    details = sch.get(block)
    *others, last = [axis.var for axis in details.iter_vars]
    analyzer = tvm.sym.Analyzer()  # a reshape leaves divisions that the axes' ranges resolve
    for axis in details.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    for load in loads_in(details):
        if not load.indices:
            continue
        *before, along = (analyzer.simplify(index) for index in load.indices)
        across = [last in variables_of(index) for index in before]
        for axis, loop in zip(others, spatial, strict=False):
            if any(across) and axis.same_as(along) and extent(sch, loop) > 1:
                after = [*before, along][across.index(True) + 1 :]
                neighbours = others[len(others) - len(after) :]
                alike = len(neighbours) == len(after) and all(map(nests.same, after, neighbours))
                return loop, len(after) if alike else 0
    return None, 0


def _columns_last(sch: Schedule, spatial: list[Any], reduced: list[Any], lanes: int) -> list[Any]:
    """Vectorise a reduction across neighbouring results: each lane sums its own terms."""
    *outer, last = spatial
    if extent(sch, last) > 2 * lanes:
        rest, last = sch.split(last, [None, 2 * lanes])
        outer = [*outer, rest]
    sch.reorder(*outer, *reduced, last)
    if extent(sch, last) > 1 and not is_symbolic(sch, last):
        sch.vectorize(last)
    return outer


def _partial_results(
    sch: Schedule, spatial: list[Any], reduced: list[Any], lanes: int
) -> list[Any]:
    """Sum terms that are contiguous in memory into a vector of partial results."""
    sch.reorder(*spatial, *reduced)
    whole = divides(sch, reduced[-1], lanes)
    if not whole or least_extent(sch, reduced[-1]) < 2 * lanes or lanes == 1:
        return spatial
    _, lane = sch.split(reduced[-1], [None, lanes])
    try:
        partial = sch.rfactor(lane, factor_axis=len(spatial))
    except SCHEDULE_ERROR:
        return spatial  # a custom reducer: its terms are combined one after another
    vector = sch.get_loops(partial)[-1]
    if spatial:
        sch.compute_at(partial, spatial[-1], preserve_unit_loops=True)
        # The new loops are one per axis: first the spatial axes, then the vector, then the sums.
        vector, *sums = sch.get_loops(partial)[2 * len(spatial) :]
        sch.reorder(*sums, vector)
    sch.set_scope(partial, 0, "local")
    sch.vectorize(vector)
    return spatial
