"""Where candidates come from: our own rules' knobs, and the space TVM generates."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import IRModule, Schedule, Target, ms
from needle_tvm.kernels.kinds import rules_of
from needle_tvm.tune.gate.analysis import multiplied_dtypes

_POPULATION = 64  # of the evolution, TVM's default being 512: a batch takes 8 to 16 of them
_GENERATIONS = 3  # TVM's default is 4; each replays the schedules of the whole population
_UNMEASURED = 16  # of them, at least so many that were never measured
_WARM_UP = 32  # results the cost model wants before it is believed

_TENSOR_CORES = 70  # sm_70 has the first ones, of float16 alone as far as TVM's space goes


def _on_processor(module: IRModule, target: Target) -> str:
    # Those TVM takes for AVX-512 add VNNI's tensor intrinsics, of use to 8-bit integers alone.
    return "llvm"


def _on_gpu(module: IRModule, target: Target) -> str:
    """TVM's generated tiles take tensor cores where two float16 are multiplied."""
    arch = int(str(target.attrs["arch"]).removeprefix("sm_").rstrip("a"))
    halves = "float16" in multiplied_dtypes(module["main"])
    return "cuda-tensorcore" if halves and arch >= _TENSOR_CORES else "cuda"


# By what generates the code: TVM's name for its rules, postprocessors and mutators.
_RULES: dict[str, Callable[[IRModule, Target], str]] = {"llvm": _on_processor, "cuda": _on_gpu}


def context(module: IRModule, target: Target, name: str, seed: int, threads: int) -> Any:
    """A TuneContext for the task `module`, whose search is TVM's evolution over `design_space`."""
    rules = _RULES[str(target.kind)](module, target)
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
    """Whether candidates can be sorted by a cost model: what it learns with is installed."""
    return find_spec("xgboost") is not None


def cost_model(threads: int) -> Any:
    """A fresh cost model: boosted trees over TVM's features of a program. Without xgboost, which a
    GPU host may lack, any candidate is as good as another."""
    if not has_cost_model():
        return ms.cost_model.RandomModel()
    return ms.cost_model.XGBModel(num_warmup_samples=_WARM_UP, num_tuning_cores=threads)


def design_space(target: Target, rules: str) -> Any:
    """TVM's generated space, and every variant of our own rules that is a schedule."""

    def own(sch: Schedule) -> list[Schedule]:
        return list(rules_of(target).variants(sch.mod["main"], target))

    names = {"sch_rules": rules, "postprocs": rules, "mutator_probs": rules}
    generators = [
        ms.space_generator.ScheduleFn(own, **names),
        ms.space_generator.PostOrderApply(**names),
    ]
    return ms.space_generator.SpaceGeneratorUnion(generators, **names)
