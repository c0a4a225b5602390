"""The two transforms around the products of a Winograd convolution (`passes.winograd_te`).

Each takes a vector of channels of one tile at a time: all of its pixels are loaded, transformed
along one axis, then along the other, and stored. Once the loops over a tile are unrolled it is
known which row of a transform an element is of: its coefficients are constants, and zeros among
them cost nothing.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm import Schedule, Target, written_dtype
from needle_tvm.schedule.blocks import (
    PARALLEL_WORK,
    block_work,
    blocks_of,
    calls_functions,
    copied_before,
    extent,
    inline_producers,
    item_bytes,
    vector_registers,
)

# Block annotations, of a transform along the first axis: results of a tile along an axis.
INPUT = "needle.winograd_input"
OUTPUT = "needle.winograd_output"


def transform_input(sch: Schedule, half: Any, target: Target, knobs: None) -> None:
    """Schedule `transformed_input`: threads share out the tiles."""
    (pixels,), (whole,) = sch.get_producers(half), sch.get_consumers(half)
    i, j, tile, channel = sch.get_loops(whole)
    vector, lane = sch.split(channel, [None, _lanes(sch, half, target)])
    sch.reorder(tile, vector, i, j, lane)
    _shared(sch, half, tile, target)
    _in_registers(sch, half, vector)
    _in_registers(sch, pixels, vector)
    sch.unroll(i)
    sch.unroll(j)
    sch.vectorize(lane)


def transform_output(sch: Schedule, half: Any, target: Target, knobs: None) -> None:
    """Schedule `transformed_output` with what was fused after it."""
    m = int(sch.get(half).annotations[OUTPUT])
    kept = sch.get(half).name_hint
    inline_producers(sch, keep={kept})
    *between, write_back = [each for each in blocks_of(sch) if sch.get(each).name_hint != kept]
    image, row, column, channel = sch.get_loops(write_back)
    row, i = sch.split(row, [None, m])
    column, j = sch.split(column, [None, m])
    vector, lane = sch.split(channel, [None, _lanes(sch, half, target)])
    sch.reorder(image, row, column, vector, i, j, lane)
    _shared(sch, half, sch.fuse(image, row), target)
    heavy = calls_functions(sch, write_back)
    if heavy and not between:
        between = [copied_before(sch, write_back, half)]
    for block in reversed(between):
        _in_registers(sch, block, vector)
    _in_registers(sch, half, vector)
    if not heavy:
        sch.unroll(i)
        sch.unroll(j)
    sch.vectorize(lane)


def _in_registers(sch: Schedule, block: Any, at: Any) -> None:
    """Compute what of a block one vector of channels of a tile needs, in loop `at`."""
    sch.compute_at(block, at, preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    *_, i, j, lane = sch.get_loops(block)
    sch.unroll(i)
    sch.unroll(j)
    sch.vectorize(lane)


def _shared(sch: Schedule, half: Any, loop: Any, target: Target) -> None:
    if int(target.attrs["num-cores"]) > 1 and block_work(sch, half) >= PARALLEL_WORK:
        if extent(sch, loop) > 1:
            sch.parallel(loop)


def _lanes(sch: Schedule, block: Any, target: Target) -> int:
    return vector_registers(target)[1] // item_bytes(written_dtype(sch.get(block)))
