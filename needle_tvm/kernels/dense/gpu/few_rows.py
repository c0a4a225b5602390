"""Matmuls of a few rows on a GPU, such as a dense layer for a small batch.

dlight's tiles have 32 rows or more (missing rows are computed as zeros) and form a grid of a few
blocks, so that most of the GPU is idle. Here a block of 256 threads computes all rows of a few
columns, and its threads share the reduction axis. 8 columns fill the smallest memory transaction,
32 bytes. The threads' sums are combined in shared memory once.

    for columns (blockIdx.x):
        for slice of the terms (threadIdx.y), column (threadIdx.x):
            for term of the slice: for row: sums[row] += x[row, term] * w[term, column]
            shared[slice, row, column] = sums[row]
        for row (threadIdx.y), column (threadIdx.x):
            y[row, column] = the sum of shared[:, row, column], and the epilogue

Splitting the terms among a block's threads is NVIDIA's "sliced-K" (CUTLASS, "Efficient GEMM in
CUDA").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from needle_runtime.target.kind import GPU
from needle_tvm._tvm.names import SCHEDULE_ERROR, PrimFunc, Schedule, Target, tirx
from needle_tvm.kernels.blocks import blocks_of, extent, inline_producers
from needle_tvm.kernels.rule import rule
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in, variables_of

_MOST_ROWS = 16  # sums that a thread keeps in registers
_LEAST_TERMS = 128  # with fewer terms, each thread has too little to do
_COLUMNS = (32, 16, 8)
_BLOCKS = 128  # wanted blocks: about as many as large GPUs have multiprocessors


@dataclass(frozen=True)
class NarrowKnobs:
    """The choices that the rule leaves to a search; the defaults need no search.

    `threads` is the number of a block's threads, and `columns` the number of its columns (None:
    chosen by the number of blocks). `step` is the number of neighbouring terms that a thread reads
    at a time; four terms are one vector of x.
    """

    threads: int = 256
    columns: int | None = None
    step: int = 4


_DEFAULT = NarrowKnobs()
NARROW_KNOBS = tuple(
    NarrowKnobs(threads, columns, step)
    for step in (4, 8)
    for columns in (8, 16, 32)
    for threads in (256, 128, 512)
)


@dataclass(frozen=True)
class _Product:
    """A block that sums products, with the columns as its last axis, and the block of its
    result."""

    block: Any
    result: Any
    columns: int
    terms: int


@rule(GPU, order=20, knobs=lambda *_: NARROW_KNOBS)
def narrow(function: PrimFunc, target: Target, knobs: NarrowKnobs = _DEFAULT) -> Schedule | None:
    """Schedule a matmul of few rows and its epilogue, with threads sharing the reduction axis.

    The rule fits float32 sums of at most 16 rows, at least 8 columns and at least 128 terms, with a
    weight that all rows share and whose neighbouring columns are contiguous. Returns None for any
    other function.
    """
    trial = Schedule(function)
    inline_producers(trial, keep=set())
    try:
        found = _product(trial)
        if found is None:
            return None
        _schedule(trial, found, knobs)
    except SCHEDULE_ERROR:
        return None  # other rules handle a result in another order or of another shape
    return trial


def _product(sch: Schedule) -> _Product | None:
    blocks = blocks_of(sch)
    sums = [block for block in blocks if sch.get(block).init is not None]
    if len(sums) != 1:
        return None
    (block,) = sums
    body = sch.get(block)
    axes = list(body.iter_vars)
    *spatial, term = axes
    if len(spatial) < 1 or term.iter_type != nests.REDUCED:
        return None
    if any(axis.iter_type != nests.SPATIAL for axis in spatial):
        return None
    if not all(isinstance(axis.dom.extent, tirx.IntImm) for axis in axes):
        return None
    extents = [int(axis.dom.extent) for axis in axes]
    rows, columns, terms = 1, extents[-2], extents[-1]
    for each in extents[:-2]:
        rows *= each
    if not (1 <= rows <= _MOST_ROWS and terms >= _LEAST_TERMS and columns >= _COLUMNS[-1]):
        return None
    if str(body.writes[0].source.dtype) != "float32":
        return None
    if not _is_shared_weight(body, [axis.var for axis in spatial], term.var):
        return None
    consumers = sch.get_consumers(block)
    if len(consumers) > 1 or len(blocks) != 1 + len(consumers):
        return None
    result = consumers[0] if consumers else sch.cache_write(block, 0, "local")
    if [extent(sch, loop) for loop in sch.get_loops(result)] != extents[:-1]:
        return None
    return _Product(block, result, columns, terms)


def _is_shared_weight(block: Any, spatial: list[Any], term: Any) -> bool:
    """Return whether an operand stores neighbouring columns side by side for each term, and is
    shared by all rows."""
    *rows, column = spatial
    value = block.body.value
    if not isinstance(value, tirx.Add):
        return False
    for load in nodes_in(value, NODES.load):
        *before, last = list(load.indices)
        used = variables_of(last)
        leading = set().union(*map(variables_of, before)) if before else set()
        if last.same_as(column) and used == {column} and term in leading:
            return not leading & set(rows)
    return False


def _schedule(sch: Schedule, product: _Product, knobs: NarrowKnobs) -> None:
    fitting = (n for n in _COLUMNS if product.columns >= n * _BLOCKS)
    columns = knobs.columns or next(fitting, _COLUMNS[-1])
    slices = knobs.threads // columns
    while slices > 1 and product.terms < slices * knobs.step:
        slices //= 2
    if product.terms % (slices * knobs.step):  # pad with zero terms: rfactor drops a condition
        axes = len(sch.get(product.block).iter_vars)
        sch.pad_einsum(product.block, [*[1] * (axes - 1), slices * knobs.step])
        for producer in sch.get_producers(product.block):
            sch.compute_inline(producer)
    term = sch.get_loops(product.block)[-1]
    _, each_slice, _ = sch.split(term, [None, slices, knobs.step])
    part = sch.rfactor(each_slice, 0)
    shared = sch.cache_write(part, 0, "local")
    sch.set_scope(shared, 0, "shared")

    *rows, column = sch.get_loops(product.result)
    grid, lane = sch.split(column, [None, columns])
    row = sch.fuse(*rows) if rows else sch.add_unit_loop(lane)
    # The epilogue has as many threads as the sum, since a thread axis has the same extent in the
    # whole kernel. The first threads compute one row each.
    several, at = sch.split(row, [None, slices])
    sch.reorder(grid, several, at, lane)
    sch.bind(grid, "blockIdx.x")
    sch.bind(at, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.compute_at(product.block, lane, preserve_unit_loops=True)
    sch.set_scope(product.block, 0, "local")

    sch.compute_at(shared, grid, preserve_unit_loops=True)
    _, own_slice, *own_rows, own_column = sch.get_loops(shared)
    sch.reorder(own_slice, own_column, *own_rows)
    sch.bind(own_slice, "threadIdx.y")
    sch.bind(own_column, "threadIdx.x")
    sch.compute_at(part, own_column, preserve_unit_loops=True)
    *part_rows, step, within = sch.get_loops(part)[3:]
    sch.reorder(step, within, *part_rows)
    for loop in (*part_rows, within):
        sch.unroll(loop)
    sch.decompose_reduction(part, step)
