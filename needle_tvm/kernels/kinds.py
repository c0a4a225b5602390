"""What a search needs of the schedule rules, for CPUs and for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from needle_tvm._tvm.names import IRModule, PrimFunc, Schedule, Target
from needle_tvm.kernels import cpu, gpu, gpu_knobs


@dataclass(frozen=True)
class Rules:
    """What our rules make of functions: by `schedule_function`, what a search competes with.

    `prepared` is done to a module before tasks are taken from it. A candidate of `variants` is a
    schedule, which TVM's search may go on from; one of `choices` stands for what `realised` makes
    of its module, as of that of any candidate.
    """

    prepared: Callable[[IRModule], IRModule]
    schedule_function: Callable[[PrimFunc, Target], PrimFunc]
    variants: Callable[[PrimFunc, Target], Iterator[Schedule]]
    choices: Callable[[PrimFunc, Target], Iterator[Schedule]]
    realised: Callable[[IRModule, Target], IRModule]


_RULES = {
    "llvm": Rules(
        prepared=lambda module: module,
        schedule_function=cpu.schedule_function,
        variants=cpu.variants,
        choices=lambda function, target: iter(()),
        realised=lambda module, target: module,
    ),
    "cuda": Rules(
        prepared=gpu.prepared,
        schedule_function=gpu.schedule_function,
        variants=lambda function, target: iter(()),
        choices=gpu_knobs.choices,
        realised=gpu_knobs.realised,
    ),
}


def rules_of(target: Target) -> Rules:
    """The rules for a target."""
    return _RULES[str(target.kind)]
