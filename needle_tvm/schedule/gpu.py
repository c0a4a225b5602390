"""Schedules for GPUs: the plainest there is, TVM's default ones, and our own rules before those."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from needle_tvm._tvm import NODES, IRModule, PrimFunc, Schedule, Target, by_dlight, nests, tirx
from needle_tvm.schedule.blocks import blocks_of, extent
from needle_tvm.schedule.mark import mark_scheduled, schedule_each

_THREADS = 256  # of a block: whole warps, and several blocks to a processor

NAMES: tuple[str, ...] = ()


def one_thread_each(module: IRModule, target: Target) -> IRModule:
    """Every function with a thread for each element of each of its blocks, and nothing else done.

    A GPU runs no code without threads: this is the plainest schedule it takes.
    """
    return schedule_each(module, _one_thread_each)


def by_default(module: IRModule, target: Target) -> IRModule:
    """Every function by the first that fits of dlight's rules, TVM's default schedules of a GPU."""
    return by_dlight(_without_isnan(module), target)


def schedule(module: IRModule, target: Target, without: Collection[str] = ()) -> IRModule:
    """Every function by the first that fits of our rules, in the end by dlight's.

    `without` names those of `NAMES` that are left out.
    """
    return by_dlight(_without_isnan(module), target)


def _without_isnan(module: IRModule) -> IRModule:
    """Every function with |x| <= infinity asked instead of isnan(x).

    Of a vector TVM writes isnan as one comparison, which CUDA does not have; x != x it takes to be
    false.
    """

    def compared(call: Any) -> Any:
        if getattr(call.op, "name", "") != "tirx.isnan":
            return call
        (value,) = call.args
        return tirx.Not(tirx.abs(value) <= tirx.infinity(str(value.ty)))

    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = nests.map_nodes(function.body, NODES.call, compared)
            module.update_func(name, function.with_body(body))
    return module


def _one_thread_each(function: PrimFunc) -> PrimFunc:
    sch = Schedule(function)
    for block in blocks_of(sch):
        loops = sch.get_loops(block)
        kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
        each = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == nests.SPATIAL]
        each = each or [sch.add_unit_loop(block)]
        others = [loop for loop in loops if loop not in each]
        sch.reorder(*each, *others)
        bind_threads(sch, sch.fuse(*each), _THREADS)
    return mark_scheduled(sch.mod["main"], function)


def bind_threads(sch: Schedule, loop: Any, threads: int) -> None:
    """A loop shared out among blocks of at most that many threads."""
    outer, inner = sch.split(loop, [None, min(threads, extent(sch, loop))])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
