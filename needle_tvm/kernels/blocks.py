"""Helpers shared by the schedule rules: queries about blocks and targets, and common steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from typing import Any

from needle_tvm._tvm.names import (
    SCHEDULE_ERROR,
    PrimFunc,
    Schedule,
    Target,
    tirx,
    tvm,
    tvm_ffi,
)
from needle_tvm.target.info import target_info
from needle_tvm.tir import extents
from needle_tvm.tir.functions import NODES, loads_in, nodes_in, variables_of, written_dtype

# Kernels with fewer scalar operations run on one core. `merge_kernels` decides later whether waking
# the thread pool pays off, over all kernels that share the wake-up.
PARALLEL_WORK = 1 << 12

TASKS = 16  # tasks per core, so that all cores finish at about the same time

# Widths of a register tile, in vectors. LLVM scalarises tiles of three, which then run at an eighth
# of the speed.
TILE_VECTORS = (1, 2, 4, 8)

# An L1 cache of 32 kB with 8 ways: addresses that are a multiple of this many bytes apart map to
# the same set. Larger caches have more ways, and rarely more sets.
_SETS, _WAYS = 4096, 8
L1_BYTES = _SETS * _WAYS

# Annotation of blocks that compute vectors of partial results: they keep buffers of their own.
PARTIAL = "needle.partial"

# Annotation of blocks that already spell out their vectors and registers, such as the blocks that
# `columns` and `windows` write. Its value is the number of scalar operations of one block. The
# loops around the block are to be parallelised.
WRITTEN = "needle.written"

_FUNCTIONS = {
    f"tirx.{name}"
    for name in ("cos", "erf", "exp", "log", "pow", "sigmoid", "sin", "tanh", "call_pure_extern")
}

_ERF = 8  # registers for each vector of erf's operand: with fewer, LLVM spills

# Most loads in one inlined expression: beyond this, registers spill and compiling gets slow.
_MOST_LOADS = 32


def most_beside(step: int) -> int:
    """Return the most cache lines, `step` bytes apart, that an L1 cache keeps at once.

    With 1024 float32 channels on a Zen 4, tiles of 14 rows or pixels are a fifth to a quarter
    slower than tiles of 8 or 7.
    """
    return _WAYS * (_SETS // math.gcd(step, _SETS))


def blocks_of(sch: Schedule) -> list[Any]:
    """Return the blocks to schedule; empty for a statement that an op wrote itself."""
    try:
        root = sch.get_sblock("root")
    except SCHEDULE_ERROR:
        return []
    return list(sch.get_child_blocks(root))


def extent(sch: Schedule, loop: Any) -> int:
    """Return the number of a loop's iterations; the upper bound if it is symbolic."""
    count = sch.get(loop).extent
    return int(count) if isinstance(count, tirx.IntImm) else extents.most(sch.mod["main"], count)


def least_extent(sch: Schedule, loop: Any) -> int:
    """Return the fewest iterations that a loop may have."""
    count = sch.get(loop).extent
    return int(count) if isinstance(count, tirx.IntImm) else extents.least(sch.mod["main"], count)


def is_symbolic(sch: Schedule, loop: Any) -> bool:
    """Return whether a loop's number of iterations is known only at the call."""
    return not isinstance(sch.get(loop).extent, tirx.IntImm)


def can_fuse(sch: Schedule, loops: Sequence[Any]) -> bool:
    """Return whether TVM 0.27 can fuse loops. It must derive their indices from the fused loop's
    index, with divisions by all extents but the first one. It can do this if the symbolic extents
    are different variables."""
    symbolic = [loop for loop in loops if is_symbolic(sch, loop)]
    if all(loop is loops[0] for loop in symbolic):
        return True
    counts = [sch.get(loop).extent for loop in symbolic]
    alike = any(a.same_as(b) for a, b in itertools.combinations(counts, 2))
    return not alike and all(isinstance(each, tvm.ir.Var) for each in counts)


def divides(sch: Schedule, loop: Any, factor: int) -> bool:
    """Return whether a loop's number of iterations is always a multiple of `factor`."""
    return extents.is_multiple(sch.get(loop).extent, factor)


def block_work(sch: Schedule, block: Any) -> int:
    """Return the number of scalar operations of a block: the product of its loops' extents."""
    work = int(sch.get(block).annotations.get(WRITTEN, 1))
    return work * math.prod(extent(sch, loop) for loop in sch.get_loops(block))


def calls_functions(sch: Schedule, block: Any, names: Container[str] = _FUNCTIONS) -> bool:
    """Return whether a block calls one of these functions; by default, exponentials and similar
    functions, whose unrolled code is long."""
    return has_functions(sch.get(block).body, names)


def has_functions(root: Any, names: Container[str] = _FUNCTIONS) -> bool:
    """Return whether an expression or a statement calls one of these functions."""
    return any(getattr(call.op, "name", "") in names for call in nodes_in(root, NODES.call))


def copied_before(sch: Schedule, reader: Any, block: Any) -> Any:
    """Copy the result of `block` to a local buffer for `reader`; return the copying block."""
    written = sch.get(block).writes[0].source
    reads = [region.source.same_as(written) for region in sch.get(reader).reads]
    return sch.cache_read(reader, reads.index(True), "local")


def annotated(sch: Schedule, key: str) -> Any:
    """Return the block that carries annotation `key`, or None if none does."""
    for block in blocks_of(sch):
        if key in sch.get(block).annotations:
            return block
    return None


def is_written(sch: Schedule, block: Any) -> bool:
    """Return whether a block's vectors are already written out (`WRITTEN`).

    Nothing may be inlined into such a block: TVM would recompute the regions that it reads and
    writes, and count its registers among them.
    """
    return WRITTEN in sch.get(block).annotations


def is_partial(sch: Schedule, block: Any) -> bool:
    """Return whether `kernels.reduce.cpu_partial` created a block."""
    return PARTIAL in sch.get(block).annotations


def vectors_of_partial(sch: Schedule, block: Any, shared: int) -> None:
    """Vectorise a block of `partial_results` in registers, below `shared` loops of other blocks."""
    axes = sch.get(block).iter_vars
    if int(sch.get(block).annotations[PARTIAL]) == 1:
        return  # one number per vector, which may be the function's result
    own = sch.get_loops(block)[shared:]
    kinds = [axis.iter_type for axis in axes][len(axes) - len(own) :]
    summed = [loop for loop, kind in zip(own, kinds, strict=True) if kind != tirx.IterVar.DataPar]
    lanes = [loop for loop in own if loop not in summed]
    if not lanes or extent(sch, lanes[-1]) == 1:
        return
    sch.reorder(*lanes[:-1], *summed, lanes[-1])
    sch.set_scope(block, 0, "local")
    sch.vectorize(lanes[-1])
    if summed:
        sch.decompose_reduction(block, summed[0])


def work(function: PrimFunc) -> int:
    """Return an upper bound on the number of scalar operations of a function's largest block."""
    sch = Schedule(function)
    return max((block_work(sch, block) for block in blocks_of(sch)), default=0)


def least_work(function: PrimFunc) -> int:
    """Return the number of scalar operations of a function's largest block when its symbolic
    extents have their least values (but at least one)."""
    sch = Schedule(function)

    def work(block: Any) -> int:
        count = int(sch.get(block).annotations.get(WRITTEN, 1))
        loops = sch.get_loops(block)
        return count * math.prod(
            max(1, least_extent(sch, each)) if is_symbolic(sch, each) else extent(sch, each)
            for each in loops
        )

    return max(map(work, blocks_of(sch)), default=0)


def inline_producers(sch: Schedule, keep: set[str]) -> None:
    """Inline every block that is not a reduction and has one reader, or converts one number.

    A consumer that reads a value twice gets the value's expression twice, so a chain of such
    consumers grows exponentially. Blocks beyond a certain size keep their own loops.
    """
    for block in blocks_of(sch):
        if sch.get(block).name_hint in keep or is_partial(sch, block) or is_written(sch, block):
            continue
        consumers = sch.get_consumers(block)
        if len(consumers) != 1 and not _converts_a_number(sch, block):
            continue
        if not consumers or any(is_written(sch, each) for each in consumers):
            continue
        result = sch.get(block).writes[0].source
        reads = loads_in(sch.get(consumers[0]))
        copies = sum(load.source.same_as(result) for load in reads)
        if copies * len(loads_in(sch.get(block))) + len(reads) > _MOST_LOADS:
            continue
        if calls_functions(sch, block) and calls_functions(sch, consumers[0]):
            continue  # a chain of functions in one expression takes TVM exponentially long
        try:
            sch.compute_inline(block)
        except SCHEDULE_ERROR:
            continue  # a reduction: it keeps its loops


def _converts_a_number(sch: Schedule, block: Any) -> bool:
    """Return whether a block converts a 0-d tensor: inlined into a loop, it is converted once."""
    found = sch.get(block)
    value = getattr(found.body, "value", None)
    if not found.writes or found.writes[0].source.shape or not isinstance(value, NODES.cast):
        return False
    return isinstance(value.value, NODES.load)


def sum_in_registers(
    sch: Schedule, block: Any, outer: Any, unrolled: Sequence[Any], vector: Any
) -> None:
    """Keep a sum over `outer` in registers: its unrolled loops and its vector form the tile."""
    sch.reorder(outer, *unrolled, vector)
    # Set scope and vectors before decomposing the reduction: afterwards the initialisation would
    # keep its own loops.
    sch.set_scope(block, 0, "local")
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(vector)
    sch.decompose_reduction(block, outer)


def in_tasks(sch: Schedule, loop: Any, cores: int) -> list[Any]:
    """Split a long loop in two; the outer one is to be distributed over the cores.

    A buffer used within an iteration is allocated again in each iteration of the parallel loop. A
    loop with a symbolic number of iterations is not split, because each block inside would check
    where the loop ends.
    """
    if is_symbolic(sch, loop):
        return [loop]
    count = extent(sch, loop)
    tasks = next(n for n in range(min(count, TASKS * cores), count + 1) if count % n == 0)
    return [loop] if tasks == count else list(sch.split(loop, [tasks, None]))


def share_out(sch: Schedule, loop: Any, block: Any, target: Target) -> None:
    """Parallelise a loop over the cores if `block` has enough work."""
    enough = target_info(target).cores > 1 and block_work(sch, block) >= PARALLEL_WORK
    if enough and extent(sch, loop) > 1:
        sch.parallel(loop)


def after(sch: Schedule, kept: Sequence[Any]) -> tuple[list[Any], Any]:
    """Inline the blocks that can be inlined. Return the remaining blocks that the last block needs,
    without `kept`, and the last block."""
    names = {sch.get(block).name_hint for block in kept}
    inline_producers(sch, keep=names)
    *between, last = [each for each in blocks_of(sch) if sch.get(each).name_hint not in names]
    return between, last


def write_back(
    sch: Schedule,
    tiles: Any,
    between: list[Any],
    last: Any,
    at: Any,
    loops: Sequence[Any],
    target: Target,
    axes: int | None = None,
) -> None:
    """Schedule the blocks that follow one tile of `tiles` (the epilogue). The last block's `loops`
    over the tile's `axes` (by default, one loop for each) lie in loop `at`.

    An intermediate used more than once lives for one tile, in registers. The operands of functions
    such as exp also live for one tile, but on the stack: functions process the tile vector by
    vector. For erf, a row of the tile is cut into pieces that fit the registers (`_ERF`).
    """
    heavy = calls_functions(sch, last)
    if heavy and not between:
        between = [copied_before(sch, last, tiles)]
    for block in reversed(between):
        in_registers(sch, block, at, axes or len(loops))
    for loop in () if heavy else loops[:-1]:
        sch.unroll(loop)
    vector = loops[-1]
    piece = lanes_of(sch, tiles, target) * erf_vectors(target)
    if extent(sch, vector) > piece and calls_functions(sch, last, {"tirx.erf"}):
        _, vector = sch.split(vector, [None, piece])
    sch.vectorize(vector)


def erf_vectors(target: Target) -> int:
    """Return the number of vectors for which registers hold all that erf needs."""
    return max(1, target_info(target).vectors.number // _ERF)


def in_registers(sch: Schedule, block: Any, at: Any, axes: int) -> None:
    """Compute, in loop `at`, the part of a block that the loop needs: a tile of `axes` axes in
    registers."""
    sch.compute_at(block, at, preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    *unrolled, vector = sch.get_loops(block)[-axes:]
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(vector)


def lanes_of(sch: Schedule, block: Any, target: Target) -> int:
    """Return the number of elements that a block writes per vector register."""
    return target_info(target).lanes(written_dtype(sch.get(block)))


def item_bytes(dtype: str) -> int:
    """Return the size of a dtype's elements in memory, in bytes."""
    return int(tvm_ffi.dtype(dtype).itemsize)


def vector_side(sch: Schedule, loop: Any, lanes: int) -> int:
    """Return the side of a square tile along an axis: a divisor of the axis's length if one exceeds
    half a vector, so that no tile has to check where the axis ends."""
    if extent(sch, loop) <= lanes:
        return extent(sch, loop)
    most = next(part for part in range(lanes, 0, -1) if divides(sch, loop, part))
    return most if 2 * most > lanes else lanes


def sums_along_rows(sch: Schedule, block: Any) -> bool:
    """Return whether a reduction reads its terms along rows: each operand that differs between
    terms has a reduction axis in its last index."""
    details = sch.get(block)
    result = details.writes[0].source
    summed = {a.var for a in details.iter_vars if a.iter_type == tirx.IterVar.CommReduce}
    terms = [
        load.indices
        for load in loads_in(details)
        if not load.source.same_as(result)
        and any(variables_of(index) & summed for index in load.indices)
    ]
    return bool(terms) and all(variables_of(indices[-1]) & summed for indices in terms)


def bind_threads(sch: Schedule, loop: Any, threads: int) -> None:
    """Split a loop into blocks of at most `threads` threads and bind both halves."""
    outer, inner = sch.split(loop, [None, min(threads, extent(sch, loop))])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
