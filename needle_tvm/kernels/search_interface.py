"""The interface between the search and the schedule rules, for CPUs and for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from needle_runtime.target.kind import CPU, GPU
from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target
from needle_tvm.kernels import cpu, gpu, gpu_knobs
from needle_tvm.target.info import target_info
from needle_tvm.tir.extents import note_bounds


@dataclass(frozen=True)
class Rules:
    """The schedule rules of one kind of target, as a search uses them.

    `prepared` is applied to a module before tasks are extracted. `schedule_function` returns the
    baseline schedule, which a search tries to beat. A candidate from `variants` is a schedule that
    TVM's search may mutate further. A candidate from `choices` is not scheduled yet: it only
    carries an annotation that names a schedule rule and its knobs. `realised` applies that rule,
    and returns all other candidates unchanged.
    """

    prepared: Callable[[IRModule], IRModule]
    schedule_function: Callable[[PrimFunc, Target], PrimFunc]
    variants: Callable[[PrimFunc, Target], Iterator[Schedule]]
    choices: Callable[[PrimFunc, Target], Iterator[Schedule]]
    realised: Callable[[IRModule, Target], IRModule]


_RULES = {
    CPU: Rules(
        prepared=note_bounds,
        schedule_function=cpu.schedule_function,
        variants=cpu.variants,
        choices=cpu.choices,
        realised=cpu.realised,
    ),
    GPU: Rules(
        prepared=gpu.prepared,
        schedule_function=gpu.schedule_function,
        variants=lambda function, target: iter(()),
        choices=gpu_knobs.choices,
        realised=gpu_knobs.realised,
    ),
}


def rules_of(target: Target) -> Rules:
    """Return the rules for a target."""
    return _RULES[target_info(target).kind]
