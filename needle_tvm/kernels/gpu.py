"""Schedules functions for GPUs: one thread per element, TVM's default rules, and our own rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from needle_runtime.target.kind import GPU
from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target, tirx
from needle_tvm.kernels.blocks import bind_threads, blocks_of, extent
from needle_tvm.kernels.dlight import by_dlight
from needle_tvm.kernels.reduce.gpu.nan import keeping_nan
from needle_tvm.kernels.rule import rules
from needle_tvm.kernels.scheduled import is_scheduled, mark_scheduled, schedule_each
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in

_THREADS = 256  # threads per block: whole warps, and several blocks per multiprocessor


def names() -> tuple[str, ...]:
    """Return the names of our rules, which the `without` argument of `schedule` accepts."""
    return tuple(each.name for each in rules(GPU))


def one_thread_each(module: IRModule, target: Target) -> IRModule:
    """Schedule every function with one thread per element of each TIR block, and nothing else.

    GPU code has to run in threads, and this is the simplest schedule that does.
    """
    return schedule_each(prepared(module), _one_thread_each)


def by_default(module: IRModule, target: Target) -> IRModule:
    """Schedule every function with the first of dlight's rules (TVM's default for GPUs) that fits.

    Functions that no rule fits get `one_thread_each`.
    """
    return schedule_each(prepared(module), lambda function: _by_default(function, target))


def schedule(module: IRModule, target: Target, without: Collection[str] = ()) -> IRModule:
    """Schedule every function with the first of our rules that fits, or else as `by_default` does.

    `without` lists the `names()` to leave out.
    """
    return schedule_each(
        prepared(module), lambda function: schedule_function(function, target, without)
    )


def schedule_function(
    function: PrimFunc, target: Target, without: Collection[str] = ()
) -> PrimFunc:
    """Schedule one function of a `prepared` module as `schedule` does."""
    for rule in rules(GPU):
        found = None if rule.name in without else rule.apply(function, target, None)
        if found is not None:
            return mark_scheduled(found.mod["main"], function)
    return _by_default(function, target)


def _by_default(function: PrimFunc, target: Target) -> PrimFunc:
    found = by_dlight(function, target)
    return _one_thread_each(function) if found is None else mark_scheduled(found, function)


def prepared(module: IRModule) -> IRModule:
    """Prepare every function of a module for any of the GPU schedules."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            module.update_func(name, _particular(keeping_nan(function)))
    return module


def _particular(function: PrimFunc) -> PrimFunc:
    """Schedule a function with opaque statements or empty loops, which no rule handles; return any
    other function unchanged."""
    if is_scheduled(function):
        return function
    sch = Schedule(function)
    blocks = blocks_of(sch)
    if not blocks:
        return mark_scheduled(_on_threads(function), function)
    results = [buffer for buffer in _written(function) if 0 not in map(int, buffer.shape)]
    if not results:  # a grid of no blocks cannot be launched
        return mark_scheduled(function.with_body(tirx.Evaluate(0)), function)
    loops = [loop for block in blocks for loop in sch.get_loops(block)]
    return _one_thread_each(function) if 0 in [extent(sch, loop) for loop in loops] else function


def _written(function: PrimFunc) -> list[Any]:
    """Return the parameters to which a function writes."""
    given = list(function.params)
    stores = nodes_in(function.body, NODES.store)
    return [each for each in given if any(store.buffer.same_as(each) for store in stores)]


def _on_threads(function: PrimFunc) -> PrimFunc:
    """Put an opaque statement's parallel loops on the grid. Run a statement without such loops in
    one thread."""

    def over_grid(loop: Any) -> Any:
        return _over_grid(loop) if loop.kind == tirx.ForKind.PARALLEL else loop

    if any(loop.kind == tirx.ForKind.PARALLEL for loop in nodes_in(function.body, NODES.loop)):
        return function.with_body(nests.map_nodes(function.body, NODES.loop, over_grid))
    once = tirx.For(
        tirx.Var("once", "int64"),
        tirx.const(0, "int64"),
        tirx.const(1, "int64"),
        tirx.ForKind.SERIAL,
        function.body.block.body,
    )
    return nests.with_root(function, [_over_grid(once)], [])


def _over_grid(loop: Any) -> Any:
    """Return the loop with each iteration as a block of one thread."""
    index = tirx.Var("blockIdx.x", str(loop.loop_var.ty))
    thread = tirx.IterVar(None, index, tirx.IterVar.ThreadIndex, "blockIdx.x")
    kind = tirx.ForKind.THREAD_BINDING
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, thread)


def _one_thread_each(function: PrimFunc) -> PrimFunc:
    sch = Schedule(function)
    for block in blocks_of(sch):
        loops = sch.get_loops(block)  # empty for a single element
        axes = sch.get(block).iter_vars
        each = [
            loop for loop, axis in zip(loops, axes, strict=False) if axis.iter_type == nests.SPATIAL
        ] or [sch.add_unit_loop(block)]
        if 0 in [extent(sch, loop) for loop in each]:
            continue  # the block is empty
        others = [loop for loop in loops if loop not in each]
        sch.reorder(*each, *others)
        bind_threads(sch, sch.fuse(*each), _THREADS)
    return mark_scheduled(sch.mod["main"], function)
