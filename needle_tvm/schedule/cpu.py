"""Schedule rules for CPUs.

`dense` keeps a tile of the accumulator in vector registers while it walks one packed weight panel
front to back (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS
2008, section 4; the panel is already in the order the kernel reads it). `loops` is what every
other function gets: producers inlined, outer loops on the threads, the last axis in vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm import (
    SCHEDULE_ERROR,
    IRModule,
    PrimFunc,
    Schedule,
    Target,
    cpu_features,
    loads_in,
    tirx,
    variables_of,
    written_dtype,
)

DENSE = "needle.dense"  # block annotation: [rows, columns] of the register tile

# Waking the pool takes a few microseconds; below about this many scalar operations one core is done
# sooner.
_PARALLEL_WORK = 1 << 15

_REDUCTION_UNROLL = 4

_TASKS = 16  # for each core, so that the last ones end at about the same time

# Loads in one inlined expression; more would only be spilled, and compile slowly.
_MOST_LOADS = 32


@dataclass(frozen=True)
class Tile:
    """Extents of the accumulator tile that is held in registers."""

    rows: int
    columns: int


@dataclass(frozen=True)
class DenseKnobs:
    """What of the dense rule is a matter of choice; the defaults need no search."""

    unroll: int = _REDUCTION_UNROLL
    rows_first: bool = False  # walk all rows of one panel (False) or all panels of one row block


DENSE_VARIANTS = tuple(
    DenseKnobs(unroll=unroll, rows_first=rows_first)
    for rows_first in (False, True)
    for unroll in (1, 2, 4, 8)
)


def vector_registers(target: Target) -> tuple[int, int]:
    """(number, bytes) of the vector registers LLVM may use for this target."""
    features = set(cpu_features(target))
    if "avx512f" in features:
        return 32, 64
    if "avx" in features:
        return 16, 32
    return (32, 16) if "neon" in features else (16, 16)


def dense_tile(m: int, n: int, dtype: str, target: Target) -> Tile:
    """Register tile of an (m, n) product.

    Two vectors wide where there are rows enough to hide the latency of the multiply-add behind
    independent accumulators, wider where there are not; as many rows as the registers hold beside
    one weight row and a broadcast, split evenly so that the last tile is nearly full.
    """
    registers, width = vector_registers(target)
    lanes = width // (8 if dtype == "float64" else 4)
    vectors = next(v for v in (2, 4, 8) if v * m >= 8 or v == 8)
    while vectors > 1 and lanes * vectors // 2 >= n:
        vectors //= 2
    most = max(1, (registers - vectors - 2) // vectors)
    most = min(most, 8) if m > most else most
    blocks = -(-m // most)
    return Tile(rows=-(-m // blocks), columns=lanes * vectors)


def schedule(module: IRModule, target: Target) -> IRModule:
    """The module with every PrimFunc scheduled that is not marked as scheduled already."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and not _is_scheduled(function):
            module.update_func(name, schedule_function(function, target))
    return module


def schedule_function(function: PrimFunc, target: Target) -> PrimFunc:
    """One PrimFunc scheduled by the first rule that fits it."""
    sch = Schedule(function)
    block = annotated(sch, DENSE)
    if block is not None:
        dense(sch, block, int(target.attrs["num-cores"]), DenseKnobs())
    else:
        loops(sch, target)
    return mark_scheduled(sch.mod["main"], function)


def mark_scheduled(scheduled: PrimFunc, original: PrimFunc) -> PrimFunc:
    """`scheduled` with the attributes of `original`, marked so that no later rule touches it.

    A function that was scheduled alone is called "main", and must not be in a module that has one.
    """
    if "global_symbol" not in (original.attrs or {}):
        scheduled = scheduled.without_attr("global_symbol")
    return scheduled.with_attrs({**dict(original.attrs or {}), "tirx.is_scheduled": True})


def _is_scheduled(function: PrimFunc) -> bool:
    return "tirx.is_scheduled" in (function.attrs or {})


def annotated(sch: Schedule, key: str) -> Any:
    """The block that carries annotation `key`, None where there is none."""
    for block in _blocks(sch):
        if key in sch.get(block).annotations:
            return block
    return None


def dense(sch: Schedule, tiles: Any, cores: int, knobs: DenseKnobs) -> None:
    """Schedule a product of `passes.pack_weights` with what was fused after it.

    A convolution's pixels are its rows, and its reduction has three loops instead of one.
    """
    rows, columns = (int(extent) for extent in sch.get(tiles).annotations[DENSE])
    inline_producers(sch, keep={sch.get(tiles).name_hint})
    *between, write_back = [
        block for block in _blocks(sch) if sch.get(block).name_hint != sch.get(tiles).name_hint
    ]
    m, n = sch.get_loops(write_back)
    m_outer, m_inner = sch.split(m, [None, rows])
    n_outer, n_inner = sch.split(n, [None, columns])
    outer = (m_outer, n_outer) if knobs.rows_first else (n_outer, m_outer)
    sch.reorder(*outer, m_inner, n_inner)
    block_loop = sch.fuse(*outer)
    if cores > 1 and _work(sch, tiles) >= _PARALLEL_WORK and _extent(sch, block_loop) > 1:
        sch.parallel(block_loop)
    # An epilogue's intermediate that is used more than once lives for one tile, in registers.
    for block in reversed(between):
        sch.compute_at(block, block_loop, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
        *_, row, column = sch.get_loops(block)
        sch.unroll(row)
        sch.vectorize(column)
    sch.compute_at(tiles, block_loop, preserve_unit_loops=True)
    reductions = [a for a in sch.get(tiles).iter_vars if a.iter_type == tirx.IterVar.CommReduce]
    i, j, *ks = sch.get_loops(tiles)[-2 - len(reductions) :]
    *k_around, k = ks
    k_outer, k_inner = sch.split(k, [None, _unroll(_extent(sch, k), knobs.unroll)])
    sch.reorder(*k_around, k_outer, k_inner, i, j)
    # Scope and vectors come before the reduction is decomposed: afterwards the initialisation
    # would keep loops of its own.
    sch.set_scope(tiles, 0, "local")
    sch.unroll(k_inner)
    sch.unroll(i)
    sch.vectorize(j)
    sch.unroll(m_inner)
    sch.vectorize(n_inner)
    sch.decompose_reduction(tiles, (*k_around, k_outer)[0])


def loops(sch: Schedule, target: Target) -> None:
    """Any function: inline what has one reader, then threads outside and vectors inside."""
    inline_producers(sch, keep=set())
    vector_bytes = vector_registers(target)[1]
    cores = int(target.attrs["num-cores"])
    for block in _blocks(sch):
        kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
        nest = sch.get_loops(block)
        if not nest or len(kinds) != len(nest):
            continue
        parallel = cores > 1 and _work(sch, block) >= _PARALLEL_WORK
        lanes = max(1, vector_bytes // _item_bytes(written_dtype(sch.get(block))))
        spatial = [
            loop for loop, kind in zip(nest, kinds, strict=True) if kind == tirx.IterVar.DataPar
        ]
        reduced = [loop for loop in nest if loop not in spatial]
        if not reduced:
            outer = _vectors_last(sch, spatial, lanes)
        elif len(sch.get(block).writes) > 1:
            outer = spatial  # TVM vectorises a reduction of pairs (argmax) wrongly
        elif spatial and not _sums_along_rows(sch, block):
            outer = _columns_last(sch, spatial, reduced, lanes)
        else:
            outer = _partial_results(sch, spatial, reduced, lanes)
        if outer and parallel:
            sch.parallel(sch.fuse(*_outermost(sch, outer, cores)))


def _outermost(sch: Schedule, loops: list[Any], cores: int) -> list[Any]:
    """As many of the loops, from outside, as give each core its share.

    The others stay loops of their own: an index that is taken apart again costs a division for
    every value.
    """
    chosen, tasks = [], 1
    for loop in loops:
        chosen.append(loop)
        tasks *= _extent(sch, loop)
        if tasks >= _TASKS * cores:
            break
    return chosen


def _vectors_last(sch: Schedule, spatial: list[Any], lanes: int) -> list[Any]:
    """The last axis in vectors; the loops left outside of them."""
    *outer, last = spatial
    if _extent(sch, last) < lanes:
        return outer
    rest, vector = sch.split(last, [None, lanes])
    sch.vectorize(vector)
    return [*outer, rest]


def _columns_last(sch: Schedule, spatial: list[Any], reduced: list[Any], lanes: int) -> list[Any]:
    """A reduction's neighbouring results side by side in a vector, over the same terms."""
    *outer, last = spatial
    if _extent(sch, last) > 2 * lanes:
        rest, last = sch.split(last, [None, 2 * lanes])
        outer = [*outer, rest]
    sch.reorder(*outer, *reduced, last)
    if _extent(sch, last) > 1:
        sch.vectorize(last)
    return outer


def _partial_results(
    sch: Schedule, spatial: list[Any], reduced: list[Any], lanes: int
) -> list[Any]:
    """A reduction's terms that lie side by side in memory: a vector of partial results."""
    sch.reorder(*spatial, *reduced)
    terms = _extent(sch, reduced[-1])
    if terms % lanes or terms < 2 * lanes or lanes == 1:
        return spatial
    _, lane = sch.split(reduced[-1], [None, lanes])
    try:
        partial = sch.rfactor(lane, factor_axis=len(spatial))
    except SCHEDULE_ERROR:
        return spatial  # a reducer of its own kind: one term after the other
    vector = sch.get_loops(partial)[-1]
    if spatial:
        sch.compute_at(partial, spatial[-1], preserve_unit_loops=True)
        # A loop per axis anew: spatial ones, the vector's among them last, then the sums.
        vector, *sums = sch.get_loops(partial)[2 * len(spatial) :]
        sch.reorder(*sums, vector)
    sch.set_scope(partial, 0, "local")
    sch.vectorize(vector)
    return spatial


def _sums_along_rows(sch: Schedule, block: Any) -> bool:
    """Whether every value a reduction reads is indexed last by an axis that is summed over."""
    details = sch.get(block)
    result = details.writes[0].source
    summed = {a.var for a in details.iter_vars if a.iter_type == tirx.IterVar.CommReduce}
    sources = [load for load in loads_in(details) if not load.source.same_as(result)]
    return all(variables_of(load.indices[-1]) & summed for load in sources if load.indices)


def inline_producers(sch: Schedule, keep: set[str]) -> None:
    """Inline every block that one other block alone reads and that is no reduction.

    A consumer that reads a value twice gets its expression twice, and a chain of such blocks
    exponentially often: past a certain size they keep loops of their own.
    """
    for block in _blocks(sch):
        if sch.get(block).name_hint in keep:
            continue
        consumers = sch.get_consumers(block)
        if len(consumers) != 1:
            continue
        result = sch.get(block).writes[0].source
        reads = loads_in(sch.get(consumers[0]))
        copies = sum(load.source.same_as(result) for load in reads)
        if copies * len(loads_in(sch.get(block))) + len(reads) > _MOST_LOADS:
            continue
        try:
            sch.compute_inline(block)
        except SCHEDULE_ERROR:
            continue  # a reduction: it keeps its loops


def _blocks(sch: Schedule) -> list[Any]:
    """The blocks there are to schedule: none in a statement that an op wrote itself."""
    try:
        root = sch.get_sblock("root")
    except SCHEDULE_ERROR:
        return []
    return list(sch.get_child_blocks(root))


def _extent(sch: Schedule, loop: Any) -> int:
    return int(sch.get(loop).extent)


def work(function: PrimFunc) -> int:
    """Scalar operations of a function, the largest of its blocks counted."""
    sch = Schedule(function)
    return max((_work(sch, block) for block in _blocks(sch)), default=0)


def reduction_length(function: PrimFunc) -> int:
    """Number of terms of the longest reduction in a function; 1 where there is none."""
    sch = Schedule(function)
    longest = 1
    for block in _blocks(sch):
        terms = 1
        for axis in sch.get(block).iter_vars:
            if axis.iter_type == tirx.IterVar.CommReduce:
                terms *= int(axis.dom.extent)
        longest = max(longest, terms)
    return longest


def _work(sch: Schedule, block: Any) -> int:
    """Scalar operations of a block: the product of its loops' extents."""
    work = 1
    for loop in sch.get_loops(block):
        extent = sch.get(loop).extent
        work *= int(extent) if isinstance(extent, tirx.IntImm) else 1 << 20
    return work


def _unroll(extent: int, most: int) -> int:
    return next(factor for factor in range(min(most, extent), 0, -1) if extent % factor == 0)


def _item_bytes(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits or 8) // 8)
