"""Tiles matmuls for a GPU's shared memory and registers, and chooses the tile.

A block of threads computes a tile of rows and columns. It loops over strips of the terms: its
threads together copy a strip of both operands into shared memory and multiply them there. Each
thread keeps the sums of a few rows and columns in registers (V. Volkov and J. Demmel, "Benchmarking
GPUs to tune dense linear algebra", SC 2008). If that leaves too few blocks, separate threads sum
slices of a strip, and their sums are combined in shared memory once ("sliced-K", CUTLASS,
"Efficient GEMM in CUDA").

    for tile (blockIdx.x):
        for slice (threadIdx.z): for row group (threadIdx.y): for column group (threadIdx.x):
            for strip of the terms:
                shared left, right = the strip's operands, copied by all threads
                for term of the slice: sums[row, column] += left[row, term] * right[term, column]
            partial[slice] = sums
        for result of the tile (all threads): the sum of partial, and the epilogue

A cost model, `cycles`, chooses the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import Any

from needle_runtime.target.gpu import SHARED_BYTES
from needle_runtime.target.kind import GPU
from needle_tvm._tvm.names import SCHEDULE_ERROR, PrimFunc, Schedule, Target
from needle_tvm.kernels.blocks import extent
from needle_tvm.kernels.dense.gpu.product import (
    LEFT,
    PARTIAL,
    PRODUCT,
    RESULT,
    RIGHT,
    Product,
    find,
    whole,
)
from needle_tvm.kernels.dense.gpu.product import Tile as _Extents
from needle_tvm.kernels.rule import rule
from needle_tvm.tir.functions import NODES, linear_in, nodes_in

VECTOR = 4  # elements that a thread loads at once: 16 bytes of float32

_BANKS = 32  # banks of shared memory, each 4 bytes wide
_PROCESSOR_SHARED = 160 << 10  # approximate bytes of shared memory per multiprocessor
_REGISTERS = 65536  # registers per multiprocessor
_OTHERS = 32  # registers per thread for everything besides sums, operands and prefetches
_MOST_REGISTERS = 200  # registers per thread; a thread with more than 255 would spill
_PROCESSORS = 128  # approximate number of multiprocessors of a large GPU
_SCHEDULERS, _WARP = 4, 32  # per multiprocessor: each issues one instruction of a warp per cycle
_FETCH = 700  # cycles from a strip's loads to its use
_BARRIERS = 60  # cycles for a strip's two barriers
_BYTES = 40  # bytes that a multiprocessor gets from the L2 cache per cycle
_BUSY = 256  # threads that hide the latency of multiply-adds
_WORTH = 1 << 12  # multiply-adds; with fewer, one thread per result is fast enough
_USEFUL = 1 / 8  # of the tiles' elements; if a smaller part is useful, other rules may do better
_MOST_BLOCKS = 2**31 - 1  # blocks of a grid along x


@dataclass(frozen=True)
class Tile(_Extents):
    """A tile; each thread computes `own_rows` rows and `own_columns` columns of it."""

    own_rows: int = 1
    own_columns: int = VECTOR

    @property
    def threads(self) -> int:
        """Threads per slice."""
        return self.rows // self.own_rows * (self.columns // self.own_columns)

    @property
    def stride(self) -> int:
        """Elements from one row of a strip to the next. Rows are padded so that eight
        threads, each reading a vector of a different row, access different banks."""
        return whole(max(self.terms - VECTOR, 0), _BANKS) + VECTOR

    @property
    def shared_bytes(self) -> int:
        """Bytes of float32 in shared memory."""
        strips = self.rows * self.stride + self.terms * self.columns
        partial = self.slices * self.rows * self.columns if self.slices > 1 else 0
        return 4 * (strips + partial)

    @property
    def loads(self) -> float:
        """Load instructions from shared memory per multiply-add instruction."""
        own = self.own_rows * self.own_columns
        return (self.own_rows + self.own_columns) / (VECTOR * own)

    @property
    def turns(self) -> float:
        """Shared-memory cycles (128 bytes each) per multiply-add instruction of a warp."""
        own = self.own_rows * self.own_columns
        across = min(self.columns // self.own_columns, _WARP)
        left = self.own_rows / VECTOR * max(1, _WARP // across // 8)
        right = self.own_columns / VECTOR * max(1, across // 8)
        return (left + right) / own

    @property
    def registers(self) -> int:
        """Estimated registers per thread: sums, the current operands, part of the next strip."""
        own = self.own_rows * self.own_columns + VECTOR * self.own_rows + self.own_columns
        fetched = (self.rows + self.columns) * self.terms // (self.threads * self.slices)
        return own + fetched + _OTHERS


@rule(GPU, order=30, knobs=lambda *given: tiles(*given))
def tiled(function: PrimFunc, target: Target, tile: Tile | None = None) -> Schedule | None:
    """Schedule a matmul (or convolution) and its epilogue in tiles of shared memory and registers.

    The rule fits a product that `product.find` recognises if its sums are float32, it has at
    least 4,096 multiply-adds, and some tile fits it. Returns None for any other function. `tile`
    must be one of `tiles`; the default is the first of them.
    """
    found = _worthwhile(function)
    if found is None:
        return None
    if tile is None:
        tile = min(candidates(found), key=lambda tile: cycles(found, tile), default=None)
    return None if tile is None else scheduled(found, tile)


def tiles(function: PrimFunc, target: Target) -> list[Tile]:
    """Return the tiles that `tiled` accepts for a function, sorted by estimated time."""
    found = _worthwhile(function)
    if found is None:
        return []
    return sorted(candidates(found), key=lambda tile: cycles(found, tile))


def _worthwhile(function: PrimFunc) -> Product | None:
    found = find(function)
    if found is None or found.wide != "float32":
        return None
    work = found.batches * found.rows * found.columns * found.terms
    return found if work >= _WORTH else None


def scheduled(found: Product, tile: Tile) -> Schedule | None:
    """Schedule a product with this `tile`; return None if the epilogue does not fit it."""
    sch = Schedule(found.written(tile))
    try:
        _schedule(sch, found, tile)
    except SCHEDULE_ERROR:
        return None
    return sch


def candidates(found: Product) -> Iterator[Tile]:
    """Yield the tiles that fit a product."""
    own = ((1, 4), (2, 4), (4, 4), (8, 4), (8, 8))
    extents = (16, 32, 64, 128)
    for rows, columns, terms in product(extents, extents, extents):
        for slices, (own_rows, own_columns) in product((1, 2, 4, 8), own):
            tile = Tile(rows, columns, terms, slices, own_rows, own_columns)
            if _fits(found, tile):
                yield tile


def _fits(found: Product, tile: Tile) -> bool:
    most = 2  # along each axis, a tile must be less than this many times as long as the product
    threads = tile.threads * tile.slices
    blocks = found.batches * ceil(found.rows / tile.rows) * ceil(found.columns / tile.columns)
    return (
        tile.threads >= 32
        and 64 <= threads <= 512
        and tile.rows % tile.own_rows == 0
        and tile.terms % (tile.slices * VECTOR) == 0
        and tile.rows * tile.columns % threads == 0
        and tile.rows < max(most * found.rows, 17)
        and tile.columns < max(most * found.columns, 17)
        and tile.terms < max(most * found.terms, 17)
        and found.rows * found.columns
        >= _USEFUL * whole(found.rows, tile.rows) * whole(found.columns, tile.columns)
        and tile.shared_bytes <= SHARED_BYTES
        and tile.registers <= min(_MOST_REGISTERS, _REGISTERS // threads)
        and blocks <= _MOST_BLOCKS
    )


def cycles(found: Product, tile: Tile) -> float:
    """Return the estimated cycles of a product.

    A multiprocessor runs several of its blocks at once. They share its arithmetic units and its
    bandwidth to the L2 cache. The next strip's loads run during a strip's arithmetic. So a strip
    takes the longest of three: its arithmetic, its traffic, and the latency of a load.
    """
    blocks = found.batches * ceil(found.rows / tile.rows) * ceil(found.columns / tile.columns)
    strips = ceil(found.terms / tile.terms)
    threads = tile.threads * tile.slices
    mine = ceil(blocks / _PROCESSORS)
    resident = min(
        mine,
        _REGISTERS // (threads * tile.registers),
        _PROCESSOR_SHARED // tile.shared_bytes,
    )
    busy = min(1.0, resident * threads / _BUSY)
    pieces = resident * tile.rows * tile.columns * tile.terms / _WARP
    work = pieces / busy * max(1 / _SCHEDULERS + tile.loads / _SCHEDULERS, tile.turns)
    fetched = resident * (tile.rows + tile.columns) * tile.terms * 4 / _BYTES
    strip = max(work, fetched, _FETCH if strips > 1 else 0) + _BARRIERS
    last = tile.slices * _BARRIERS if tile.slices > 1 else 0
    return ceil(mine / resident) * (_FETCH + strips * strip + last)


def _schedule(sch: Schedule, found: Product, tile: Tile) -> None:
    names = (LEFT, RIGHT, PRODUCT, RESULT)
    left, right, total, result = (sch.get_sblock(name) for name in names)
    threads_y, threads_x = tile.rows // tile.own_rows, tile.columns // tile.own_columns
    *batch, row, column = sch.get_loops(result)
    if tile.slices == 1:
        row, *rows = _shared_out(sch, row, threads_y, tile.own_rows)
        column, *columns = _shared_out(sch, column, threads_x, tile.own_columns)
        own_row, own_column = rows[-1], columns[-1]
        sch.reorder(*batch, row, column, *rows[:-1], *columns[:-1], own_row, own_column)
        grid = sch.fuse(*batch, row, column)
        _bind(sch, grid, rows[:-1], columns[:-1])
        sums = total
        sch.compute_at(sums, columns[-2], preserve_unit_loops=True)
        sch.set_scope(sums, 0, "local")
        *_, sum_row, sum_column, term = sch.get_loops(sums)
        strip, term = sch.split(term, [None, tile.terms])
        if found.columns % VECTOR == 0:
            sch.vectorize(_vector_of(sch, own_column))
    else:
        row, own_row = sch.split(row, [None, tile.rows])
        column, own_column = sch.split(column, [None, tile.columns])
        sch.reorder(*batch, row, column, own_row, own_column)
        grid = sch.fuse(*batch, row, column)
        each = sch.fuse(own_row, own_column)
        each = sch.split(each, [None, tile.slices, threads_y, threads_x])
        _bind(sch, grid, [each[2]], [each[3]], each[1])
        sch.compute_at(total, each[3], preserve_unit_loops=True)
        sch.set_scope(total, 0, "local")
        sums = sch.get_sblock(PARTIAL)
        shared = sch.cache_write(sums, 0, "local")
        sch.set_scope(shared, 0, "shared")
        sch.compute_at(shared, grid, preserve_unit_loops=True)
        slice_, *_, row, column = sch.get_loops(shared)[1:]
        row, own_row = sch.split(row, [None, tile.own_rows])
        column, own_column = sch.split(column, [None, tile.own_columns])
        sch.reorder(slice_, row, column, own_row, own_column)
        for loop, axis in zip((slice_, row, column), "zyx", strict=True):
            sch.bind(loop, f"threadIdx.{axis}")
        sch.vectorize(_vector_of(sch, own_column))
        sch.compute_at(sums, column, preserve_unit_loops=True)
        *_, sum_row, sum_column, strip, term = sch.get_loops(sums)
    step, term = sch.split(term, [None, VECTOR])
    sch.reorder(strip, step, term, sum_row, sum_column)
    for number, factor in ((0, left), (1, right)):
        own = sch.cache_read(sums, number, "local")
        sch.compute_at(own, term if number else step, preserve_unit_loops=True)
        sch.vectorize(_vector_of(sch, sch.get_loops(own)[-1]))
        sch.set_scope(factor, 0, "shared")  # before `compute_at`, which then copies for all threads
        sch.compute_at(factor, strip, preserve_unit_loops=True)
        _fetch(sch, found, factor, tile, number)
    for loop in (term, sum_row, sum_column):
        sch.unroll(loop)
    if extent(sch, strip) > 1:
        _prefetch(sch, strip, (left, right))
    sch.decompose_reduction(sums, strip)


def _prefetch(sch: Schedule, strip: Any, factors: tuple[Any, Any]) -> None:
    """Load the next strip into registers while the current one is multiplied, and store it to
    shared memory afterwards."""
    for factor in factors:
        sch.annotate(factor, "tirx.manifest_shared_memory_local_stage", 1)
    # The loop has five steps: the left operand to registers and then to shared memory, the same two
    # for the right operand, and the matmul.
    sch.annotate(strip, "software_pipeline_stage", [0, 1, 0, 1, 1])
    sch.annotate(strip, "software_pipeline_order", [2, 0, 3, 1, 4])


def _shared_out(sch: Schedule, loop: Any, threads: int, own: int) -> list[Any]:
    """Split a loop into tiles, groups, threads, and each thread's part of a group. In each group,
    neighbouring threads load neighbouring vectors."""
    near = min(own, VECTOR)
    return list(sch.split(loop, [None, own // near, threads, near]))


def _bind(
    sch: Schedule, grid: Any, rows: list[Any], columns: list[Any], slices: Any = None
) -> None:
    sch.bind(grid, "blockIdx.x")
    for axis, loops in (("y", rows), ("x", columns)):
        *groups, thread = loops
        for group in groups:
            if extent(sch, group) > 1:
                sch.bind(group, f"vthread.{axis}")
        sch.bind(thread, f"threadIdx.{axis}")
    if slices is not None:
        sch.bind(slices, "threadIdx.z")


def _vector_of(sch: Schedule, loop: Any) -> Any:
    """Split off and return the innermost part of a loop, one vector long."""
    return sch.split(loop, [None, VECTOR])[1] if extent(sch, loop) > VECTOR else loop


def _fetch(sch: Schedule, found: Product, factor: Any, tile: Tile, number: int) -> None:
    """Distribute the copying of a strip over all threads, in the source's order in memory."""
    value = (found.left, found.right)[number]
    kinds = (("rows", "terms"), ("terms", "columns"))[number]
    first, second = sch.get_loops(factor)[-2:]
    near = kinds[1]
    if _steps(found, value, kinds[0]) == 1 and _steps(found, value, kinds[1]) != 1:
        sch.reorder(second, first)
        first, second, near = second, first, kinds[0]
    last = found.kinds[near][-1]
    vector = VECTOR if _steps(found, value, near) == 1 else 1
    if int(last.dom.extent) % vector:
        vector = 1
    loop = sch.fuse(first, second)
    shape = [tile.slices, tile.rows // tile.own_rows, tile.columns // tile.own_columns]
    while extent(sch, loop) % vector:
        vector //= 2
    _, z, y, x, lane = sch.split(loop, [None, *shape, vector])
    for part, axis in zip((z, y, x), "zyx", strict=True):
        sch.bind(part, f"threadIdx.{axis}")
    if vector > 1:
        sch.vectorize(lane)
    if number == 0:
        sch.storage_align(factor, 0, axis=-2, factor=_BANKS, offset=VECTOR)


def _steps(found: Product, factor: Any, kind: str) -> int | None:
    """Return an operand's stride in memory along the last axis of a kind: 1 if its elements are
    contiguous, None if the stride is unknown or differs between loads."""
    if not found.kinds[kind]:
        return None
    axis = found.kinds[kind][-1].var
    steps = set()
    for load in nodes_in(factor, NODES.load):
        factors = [linear_in(index, [axis]) for index in load.indices]
        if any(each is None for each in factors) or any(each[0] for each in factors[:-1] if each):
            return None
        steps.add(factors[-1][0] if factors and factors[-1] else 0)
    return steps.pop() if len(steps) == 1 else None
