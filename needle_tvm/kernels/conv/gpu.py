"""Depthwise convolutions and pooling on a GPU: one thread per result of a short reduction.

Results of a depthwise convolution or of pooling share few inputs, and each is a short sum. So each
thread computes one result in a register, neighbouring threads compute neighbouring results, and no
intermediate goes through memory.
"""

from __future__ import annotations

from math import prod

from needle_runtime.target.kind import GPU
from needle_tvm._tvm.names import SCHEDULE_ERROR, PrimFunc, Schedule, Target, tirx
from needle_tvm.kernels.blocks import bind_threads, blocks_of, extent, inline_producers
from needle_tvm.kernels.rule import rule
from needle_tvm.tir import nests

_THREADS = 128  # threads per block: windows need few registers, and small blocks spread well
_MOST_TERMS = 256  # longer sums need several threads each, unless there are enough results
_ENOUGH = 1 << 16  # results that keep a large GPU busy with one thread each


@rule(GPU, order=50)
def per_result(function: PrimFunc, target: Target) -> Schedule | None:
    """Schedule one short reduction and its epilogue with one thread per result.

    The rule fits a single reduction that has constant extents and at least 128 results, followed by
    at most one block. A sum of more than 256 terms fits only if there are at least 65,536 results.
    Returns None for any other function.
    """
    sch = Schedule(function)
    inline_producers(sch, keep=set())
    blocks = blocks_of(sch)
    sums = [block for block in blocks if sch.get(block).init is not None]
    if len(sums) != 1 or blocks.index(sums[0]) != 0 or len(blocks) > 2:
        return None
    (block,) = sums
    axes = sch.get(block).iter_vars
    if not all(isinstance(axis.dom.extent, tirx.IntImm) for axis in axes):
        return None
    terms = prod(int(axis.dom.extent) for axis in axes if axis.iter_type == nests.REDUCED)
    results = prod(int(axis.dom.extent) for axis in axes if axis.iter_type == nests.SPATIAL)
    if results < _THREADS or (terms > _MOST_TERMS and results < _ENOUGH):
        return None
    last = blocks[1] if len(blocks) == 2 else sch.cache_write(block, 0, "local")
    try:
        loop = sch.fuse(*sch.get_loops(last))
        if extent(sch, loop) != results:
            return None  # the epilogue reads a result more than once, or not at all
        bind_threads(sch, loop, _THREADS)
        sch.compute_at(block, sch.get_loops(last)[-1], preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    except SCHEDULE_ERROR:
        return None
    return sch
