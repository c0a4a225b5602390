"""Schedules of the input and output transforms of a Winograd convolution (`winograd_te`).

Each transform processes a vector of channels of one tile at a time. It loads all pixels of the
tile, transforms them along one axis, then along the other, and stores them. The loops over a tile
are unrolled, so that the code generator knows which row of the transform an element needs: the
row's coefficients are constants, and zeros among them cost nothing.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import Schedule, Target
from needle_tvm.kernels.blocks import (
    after,
    can_fuse,
    in_registers,
    lanes_of,
    share_out,
    write_back,
)
from needle_tvm.kernels.rule import annotated

# Annotations of the block that transforms along the first axis. The value is the number of results
# of a tile along one axis.
INPUT = "needle.winograd_input"
OUTPUT = "needle.winograd_output"

_AXES = 3  # of a tile: rows, columns, and a vector of channels


@annotated(INPUT)
def transform_input(sch: Schedule, half: Any, target: Target, knobs: None) -> None:
    """Schedule `transformed_input`: the threads share the tiles."""
    (pixels,), (whole,) = sch.get_producers(half), sch.get_consumers(half)
    number, tile, channel = sch.get_loops(whole)
    i, j = sch.split(number, [None, int(sch.get(half).annotations[INPUT]) + 2])
    vector, lane = sch.split(channel, [None, lanes_of(sch, half, target)])
    sch.reorder(tile, vector, i, j, lane)
    share_out(sch, tile, half, target)
    in_registers(sch, half, vector, _AXES)
    in_registers(sch, pixels, vector, _AXES)
    sch.unroll(i)
    sch.unroll(j)
    sch.vectorize(lane)


@annotated(OUTPUT)
def transform_output(sch: Schedule, half: Any, target: Target, knobs: None) -> None:
    """Schedule `transformed_output` with its fused epilogue: the threads share rows of tiles."""
    m = int(sch.get(half).annotations[OUTPUT])
    between, last = after(sch, [half])
    image, row, column, channel = sch.get_loops(last)
    row, i = sch.split(row, [None, m])
    column, j = sch.split(column, [None, m])
    vector, lane = sch.split(channel, [None, lanes_of(sch, half, target)])
    sch.reorder(image, row, column, vector, i, j, lane)
    counts = [image, row]
    shared = sch.fuse(*counts) if can_fuse(sch, counts) else row
    if shared is row:  # each row loops over the images
        sch.reorder(row, image)
    share_out(sch, shared, half, target)
    write_back(sch, half, between, last, vector, [i, j, lane], target)
    in_registers(sch, half, vector, _AXES)
