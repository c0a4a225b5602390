"""Where candidates come from: our own rule's knobs, and the space TVM generates."""

from __future__ import annotations

from typing import Any

from needle_tvm import _tvm
from needle_tvm._tvm import IRModule, Schedule, Target, ms
from needle_tvm.schedule import cpu

_POPULATION = 64  # of the evolution, TVM's default being 512: a batch takes 8 to 16 of them
_GENERATIONS = 3  # TVM's default is 4; each replays the schedules of the whole population
_UNMEASURED = 16  # of them, at least so many that were never measured
_WARM_UP = 32  # results the cost model wants before it is believed

# TVM's rules for any LLVM target. Those it takes for AVX-512 add VNNI's tensor intrinsics, of use
# to 8-bit integers alone, for which it imports every intrinsic of every target: 10 s.
_RULES = {"sch_rules": "llvm", "postprocs": "llvm", "mutator_probs": "llvm"}


def context(module: IRModule, target: Target, name: str, seed: int, threads: int) -> Any:
    """A TuneContext for the task `module`, whose search is TVM's evolution over `design_space`."""
    with _tvm.without_tensor_intrinsics():
        return ms.TuneContext(
            mod=module,
            target=target,
            space_generator=design_space(target),
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=_POPULATION,
                init_min_unmeasured=_UNMEASURED,
                genetic_num_iters=_GENERATIONS,
            ),
            task_name=name,
            rand_state=seed + 1,
            num_threads=threads,
        )


def cost_model(threads: int) -> Any:
    """A fresh cost model: boosted trees over TVM's features of a program."""
    return ms.cost_model.XGBModel(num_warmup_samples=_WARM_UP, num_tuning_cores=threads)


def design_space(target: Target) -> Any:
    """TVM's generated space, and every variant of our own rules."""

    def own(sch: Schedule) -> list[Schedule]:
        return list(cpu.variants(sch, target))

    generators = [
        ms.space_generator.ScheduleFn(own, **_RULES),
        ms.space_generator.PostOrderApply(**_RULES),
    ]
    return ms.space_generator.SpaceGeneratorUnion(generators, **_RULES)
