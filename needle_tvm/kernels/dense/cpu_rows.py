"""Matmuls with a symbolic number of rows: one kernel with several register tiles.

The best tile for a matmul depends on its number of rows. A matmul of one row waits for memory, a
few rows should all fit in one tile, and many rows should fill their tiles. The kernel holds one
loop nest per tile size. All nests read the same packed panels; at run time, the kernel picks one
nest by the number of rows:

    if m <= 1: nest of tiles of 1 row
    elif m <= 2: nest of tiles of 2 rows
    ...
    elif m <= 8, or m > 11 and tiles of 8 rows have fewer spare rows than those of 11: ...
    else: nest of tiles of 11 rows

`dense` would write the same nest for a static number of rows that does not fill the last tile.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from needle_runtime.target.kind import CPU
from needle_tvm._tvm.names import PrimFunc, Schedule, Target, tirx
from needle_tvm.kernels.blocks import annotated, extent
from needle_tvm.kernels.dense.cpu import (
    DENSE,
    DENSE_VARIANTS,
    LATENCY,
    DenseKnobs,
    dense,
    most_rows,
)
from needle_tvm.kernels.rule import rule
from needle_tvm.kernels.variants import covers_best, either
from needle_tvm.target.info import target_info
from needle_tvm.tir import extents, nests
from needle_tvm.tir.functions import NODES, nodes_in, simplified

_ROWS = (1, 2, 4, 6, 7, 8, 11)  # rows of a kernel's tiles, if the registers can hold the tile
_MANY = (6, 7, 8, 11)  # rows of the tiles for matmuls that need more than one tile


@rule(CPU, order=9, knobs=lambda function, target: DENSE_VARIANTS[1:])
def dense_by_rows(
    function: PrimFunc, target: Target, knobs: DenseKnobs = DENSE_VARIANTS[0]
) -> Schedule | None:
    """Schedule a matmul from `dense.pack_weights` whose number of rows is symbolic."""
    block = _tiles(function)
    if block is None or extents.is_static([_rows_of(function, block)]):
        return None
    m = _rows_of(function, block)
    low, high = extents.least(function, m), extents.most(function, m)
    columns = int(block.annotations[DENSE][1])
    dtype, terms = str(block.writes[0].source.dtype), int(block.iter_vars[-1].dom.extent)
    sizes = tile_rows(terms, columns, dtype, target)
    vectors = max(1, columns // target_info(target).lanes(dtype))
    many = [rows for rows in sizes if rows >= _MANY[0]] or sizes[-1:]
    made = []
    for before, rows in itertools.pairwise([0, *sizes]):
        among = [each for each in many if each >= rows] if rows in many else []
        if before < high and (low <= rows or among):
            sch = Schedule(retiled(function, rows))
            tiles = annotated(sch, DENSE)
            dense(sch, tiles, target, knobs, _beside(sch, tiles, rows * vectors, target))
            made.append((covers_best(m, rows, max(sizes), among), sch.mod["main"]))
    return Schedule(either(function, made))


def _beside(sch: Schedule, tiles: Any, accumulators: int, target: Target) -> int:
    """Return the number of tiles (4, 2 or 1) to compute side by side, to hide the latency of a
    multiply-add. If it is above 1, it divides the number of panels, and all cores get equal
    shares."""
    *batch, _, panels, _, _, _ = (extent(sch, loop) for loop in sch.get_loops(tiles))
    cores = target_info(target).cores
    return next(
        (
            count
            for count in (4, 2)
            if count * accumulators <= LATENCY
            and panels % count == 0
            and math.prod(batch) * (panels // count) % cores == 0
        ),
        1,
    )


def tile_rows(terms: int, columns: int, dtype: str, target: Target) -> list[int]:
    """Return the tile sizes, in rows, that a kernel holds for panels of `columns` columns, smallest
    first.

    If a tile has too few accumulators to hide the latency of a multiply-add, it takes as long as a
    tile with one more row, so the kernel holds few such tiles.
    """
    lanes = target_info(target).lanes(dtype)
    vectors = max(1, columns // lanes)
    most = most_rows(terms, vectors, dtype, target)
    return [rows for rows in _ROWS if rows <= most]


def exact(function: PrimFunc) -> PrimFunc:
    """Return a matmul with a symbolic number of rows, retiled to tiles of one row, which compute no
    spare rows; return any other function unchanged."""
    tiles = _tiles(function)
    symbolic = tiles is not None and not extents.is_static([_rows_of(function, tiles)])
    return retiled(function, 1) if symbolic else function


def _tiles(function: PrimFunc) -> Any:
    found = [b for b in nodes_in(function, NODES.sblock) if DENSE in b.annotations]
    return found[0] if found else None


def _rows_of(function: PrimFunc, tiles: Any) -> Any:
    """Return the number of rows of the matmul, from the block that reads the tiles."""
    buffer = tiles.writes[0].source
    reader = next(b for b in nodes_in(function, NODES.sblock) if _reads(b, buffer))
    return reader.iter_vars[-2].dom.extent


def _reads(block: Any, buffer: Any) -> bool:
    return any(region.source.same_as(buffer) for region in block.reads)


def retiled(function: PrimFunc, rows: int) -> PrimFunc:
    """Return an unscheduled matmul from `dense.pack_weights`, retiled to tiles of `rows` rows."""
    tiles = _tiles(function)
    m, old = _rows_of(function, tiles), int(tiles.annotations[DENSE][0])
    buffer = tiles.writes[0].source
    *batch, _, panels, _, columns = buffer.shape
    blocks = tirx.floordiv(m - 1, rows) + 1
    shape = [*batch, blocks, panels, tirx.const(rows, "int64"), columns]
    new_buffer = tirx.decl_buffer(shape, buffer.dtype, buffer.name)
    spatial = [each for each in tiles.iter_vars if each.iter_type == nests.SPATIAL]
    new = [nests.axis(each.var.name, each.dom.extent, each.iter_type) for each in tiles.iter_vars]
    at = len(spatial) - 4
    new[at] = nests.axis(spatial[at].var.name, blocks, nests.SPATIAL)
    new[at + 2] = nests.axis(spatial[at + 2].var.name, rows, nests.SPATIAL)
    values = {axis.var: own.var for axis, own in zip(tiles.iter_vars, new, strict=True)}
    first = new[at].var if rows == 1 else new[at].var * rows
    row = first + new[at + 2].var
    # If all old tiles were full, the body has no bound that keeps the last new tile within m rows.
    if extents.is_multiple(m, old) and not extents.is_multiple(m, rows):
        row = tirx.min(row, m - 1)
    values[spatial[at].var] = row // old
    values[spatial[at + 2].var] = row % old
    place = [each.var for each in new[: len(spatial)]]

    def in_tiles(load: Any) -> Any:
        if not load.source.same_as(buffer):
            return load
        *outer, block, panel, row, column = load.indices
        number = simplified(block * old + row)
        return new_buffer[tuple([*outer, number // rows, panel, number % rows, column])]

    own = new_buffer[tuple(place)]

    def own_sum(load: Any) -> Any:
        return own if load.source.same_as(buffer) else load

    value = nests.map_nodes(tiles.body.value, NODES.load, own_sum)
    value = nests.map_nodes(nests.substitute(value, values), NODES.load, _simplified)
    notes = {**dict(tiles.annotations), DENSE: [rows, int(columns)]}
    nest = nests.nest(
        new,
        tiles.name_hint,
        tirx.BufferStore(new_buffer, value, place),
        tirx.BufferStore(new_buffer, tiles.init.value, place),
        notes,
    )
    root = function.body.block
    statements = list(root.body.seq)
    changed = []
    for statement in statements:
        (block,) = nodes_in(statement, NODES.sblock)
        if block.same_as(tiles):
            changed.append(nest)
        elif _reads(block, buffer):
            store = nests.map_nodes(block.body, NODES.load, in_tiles)
            changed.append(nests.nest(block.iter_vars, block.name_hint, store))
        else:
            changed.append(statement)
    return nests.with_root(function, changed, [new_buffer], dropped=[buffer])


def _simplified(load: Any) -> Any:
    return load.source[tuple(simplified(index) for index in load.indices)]
