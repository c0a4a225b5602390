"""Schedules for GPUs: the plainest there is, TVM's default ones, and our own rules before those."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target, tirx
from needle_tvm.kernels.blocks import bind_threads, blocks_of, extent
from needle_tvm.kernels.dlight import by_dlight
from needle_tvm.kernels.mark import is_scheduled, mark_scheduled, schedule_each
from needle_tvm.kernels.reduce.gpu_nan import keeping_nan
from needle_tvm.kernels.rule import GPU, rules
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in

_THREADS = 256  # of a block: whole warps, and several blocks to a processor


def names() -> tuple[str, ...]:
    """Our rules, any of which may be left out."""
    return tuple(each.name for each in rules(GPU))


def one_thread_each(module: IRModule, target: Target) -> IRModule:
    """Every function with a thread for each element of each of its blocks, and nothing else done.

    A GPU runs no code without threads: this is the plainest schedule it takes.
    """
    return schedule_each(prepared(module), _one_thread_each)


def by_default(module: IRModule, target: Target) -> IRModule:
    """Every function by the first that fits of dlight's rules, TVM's default schedules of a GPU.

    Those that none fits get `one_thread_each`.
    """
    return schedule_each(prepared(module), lambda function: _by_default(function, target))


def schedule(module: IRModule, target: Target, without: Collection[str] = ()) -> IRModule:
    """Every function by the first that fits of our rules, in the end as `by_default` does it.

    `without` names those of `names()` that are left out.
    """
    return schedule_each(
        prepared(module), lambda function: schedule_function(function, target, without)
    )


def schedule_function(
    function: PrimFunc, target: Target, without: Collection[str] = ()
) -> PrimFunc:
    """One function of `prepared`, scheduled as `schedule` does it."""
    for rule in rules(GPU):
        found = None if rule.name in without else rule.apply(function, target, None)
        if found is not None:
            return mark_scheduled(found.mod["main"], function)
    return _by_default(function, target)


def _by_default(function: PrimFunc, target: Target) -> PrimFunc:
    found = by_dlight(function, target)
    return _one_thread_each(function) if found is None else mark_scheduled(found, function)


def prepared(module: IRModule) -> IRModule:
    """Every function as a GPU's code can be made of it, whatever schedules it."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            module.update_func(name, _particular(keeping_nan(function)))
    return module


def _particular(function: PrimFunc) -> PrimFunc:
    """The function, scheduled where no rule knows it: written statements, and empty loops."""
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
    """The buffers that a function is given to write to."""
    given = list(function.params)
    stores = nodes_in(function.body, NODES.store)
    return [each for each in given if any(store.buffer.same_as(each) for store in stores)]


def _on_threads(function: PrimFunc) -> PrimFunc:
    """Statements that an op wrote itself, their parallel loop over the grid; else in one thread."""

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
    """The loop with a block of one thread for each of its steps."""
    index = tirx.Var("blockIdx.x", str(loop.loop_var.ty))
    thread = tirx.IterVar(None, index, tirx.IterVar.ThreadIndex, "blockIdx.x")
    kind = tirx.ForKind.THREAD_BINDING
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, thread)


def _one_thread_each(function: PrimFunc) -> PrimFunc:
    sch = Schedule(function)
    for block in blocks_of(sch):
        loops = sch.get_loops(block)  # none of a single element
        axes = sch.get(block).iter_vars
        each = [
            loop for loop, axis in zip(loops, axes, strict=False) if axis.iter_type == nests.SPATIAL
        ] or [sch.add_unit_loop(block)]
        if 0 in [extent(sch, loop) for loop in each]:
            continue  # nothing is left of it
        others = [loop for loop in loops if loop not in each]
        sch.reorder(*each, *others)
        bind_threads(sch, sch.fuse(*each), _THREADS)
    return mark_scheduled(sch.mod["main"], function)
