"""The search space of a task, its TuneContext, and the cost model that ranks candidates.

The space is the union of our own rules' variants and TVM's generated space. `search` builds all
three.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from needle_runtime.target.kind import CPU, GPU
from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import IRModule, Schedule, Target, ms
from needle_tvm.kernels.search_interface import rules_of
from needle_tvm.target.info import target_info
from needle_tvm.tune.gate.analysis import multiplied_dtypes

_POPULATION = 64  # schedules; TVM's default is 512, but a batch takes only 8 to 16 of them
_GENERATIONS = 3  # TVM's default is 4; each generation replays the whole population's schedules
_UNMEASURED = 16  # at least this many schedules in the population have never been measured
_WARM_UP = 32  # results that the cost model needs before its predictions are used

_TENSOR_CORES = 70  # sm_70 is the first with tensor cores; TVM's space uses them only for float16


def _on_processor(module: IRModule, target: Target) -> str:
    # For AVX-512, TVM would add VNNI's tensor intrinsics, which are only for 8-bit integers.
    return "llvm"


def _on_gpu(module: IRModule, target: Target) -> str:
    """Return TVM's rules for tensor cores if the function multiplies float16 pairs, else "cuda"."""
    halves = "float16" in multiplied_dtypes(module["main"])
    has_cores = target_info(target).capability >= _TENSOR_CORES
    return "cuda-tensorcore" if halves and has_cores else "cuda"


# By code generator, functions that return TVM's name for its rules, postprocessors and mutators.
_RULES: dict[str, Callable[[IRModule, Target], str]] = {CPU: _on_processor, GPU: _on_gpu}


def context(module: IRModule, target: Target, name: str, seed: int, threads: int) -> Any:
    """Return a TuneContext for the task `module`: TVM's evolutionary search over `design_space`."""
    rules = _RULES[target_info(target).kind](module, target)
    with tvm_names.tensor_intrinsics(cuda=rules == "cuda-tensorcore"):
        return ms.TuneContext(
            mod=module,
            target=target,
            space_generator=design_space(target, rules),
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=_POPULATION,
                init_min_unmeasured=_UNMEASURED,
                genetic_num_iters=_GENERATIONS,
            ),
            task_name=name,
            rand_state=seed + 1,
            num_threads=threads,
        )


def has_cost_model() -> bool:
    """Return whether xgboost, which the cost model needs to rank candidates, is installed."""
    return find_spec("xgboost") is not None


def cost_model(threads: int) -> Any:
    """Return a new cost model: boosted trees over TVM's features of a program.

    Without xgboost, which a GPU host may lack, the model is random.
    """
    if not has_cost_model():
        return ms.cost_model.RandomModel()
    return ms.cost_model.XGBModel(num_warmup_samples=_WARM_UP, num_tuning_cores=threads)


def design_space(target: Target, rules: str) -> Any:
    """Return the union of TVM's generated space and every variant of our own rules."""

    def own(sch: Schedule) -> list[Schedule]:
        return list(rules_of(target).variants(sch.mod["main"], target))

    names = {"sch_rules": rules, "postprocs": rules, "mutator_probs": rules}
    generators = [
        ms.space_generator.ScheduleFn(own, **names),
        ms.space_generator.PostOrderApply(**names),
    ]
    return ms.space_generator.SpaceGeneratorUnion(generators, **names)
