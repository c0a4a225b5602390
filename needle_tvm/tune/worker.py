"""What tuning does in processes of its own: `search` for candidates, `judge` one of them.

Both are services of `needle_tvm.child`. Modules travel as TVM's JSON text.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from needle_tvm import bfloat16
from needle_tvm._tvm import IRModule, PrimFunc, Schedule, Target, make_target, ms, tvm
from needle_tvm.child import Messages
from needle_tvm.processes import die_with_parent
from needle_tvm.runtime import aligned_copy
from needle_tvm.schedule import cpu
from needle_tvm.tolerance import relative_tolerance

_BUILD_SECONDS, _RUN_SECONDS = 30.0, 15.0  # limits of one candidate
_CANDIDATES = 2  # per task, handed to `judge`, best first
_BATCH = 16  # trials measured before the cost model learns from them
_BLOCKS, _BLOCK_SECONDS = 9, 0.03  # of `judge`'s timing


def search(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Measure `trials` candidates over the tasks; yields progress, then the best of each task.

    setup: `target` (TVM's description), `tasks` ({name: [module JSON, calls per inference]}),
    `trials`, `seed`. Answers: {"task", "seconds" or "rejected"} per trial, at the end
    {"best": {name: [module JSON, ...]}}.
    """
    target = make_target(setup["target"])
    answers: SimpleQueue[dict[str, Any] | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            answers.put({"best": _search(setup, target, answers.put)})
        except BaseException as error:  # re-raised by the reader below
            answers.put(error)

    # The search is one long native call; its progress is read here meanwhile.
    Thread(target=work, daemon=True).start()
    while True:
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        yield answer
        if "best" in answer:
            return


def _search(
    setup: dict[str, Any], target: Target, report: Callable[[dict[str, Any]], None]
) -> dict[str, list[str]]:
    cores = int(target.attrs["num-cores"])
    parent = os.getpid()
    names = list(setup["tasks"])
    modules = {name: tvm.ir.load_json(text) for name, (text, _) in setup["tasks"].items()}
    database = ms.database.MemoryDatabase()
    with tempfile.TemporaryDirectory(prefix="needle-tune-") as folder:
        contexts = [
            ms.TuneContext(
                mod=modules[name],
                target=target,
                space_generator=_space(target),
                search_strategy=ms.search_strategy.EvolutionarySearch(population_size=128),
                task_name=name,
                rand_state=setup["seed"] + 1,
                num_threads=cores,
            )
            for name in names
        ]
        ms.tune_tasks(
            tasks=contexts,
            task_weights=[float(setup["tasks"][name][1]) for name in names],
            work_dir=folder,
            max_trials_global=setup["trials"],
            num_trials_per_iter=min(_BATCH, setup["trials"]),
            builder=ms.builder.LocalBuilder(
                max_workers=cores,
                timeout_sec=_BUILD_SECONDS,
                f_build=_build,
                initializer=_Initializer(parent),
            ),
            runner=ms.runner.LocalRunner(
                timeout_sec=_RUN_SECONDS,
                evaluator_config=ms.runner.EvaluatorConfig(
                    number=3, repeat=3, min_repeat_ms=20, enable_cpu_cache_flush=False
                ),
                initializer=_Initializer(parent),
            ),
            database=database,
            cost_model=ms.cost_model.XGBModel(num_tuning_cores=cores),
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
                _reporting(names, report),
                ms.measure_callback.RemoveBuildArtifact(),
            ],
        )
    return {name: _best(database, modules[name]) for name in names}


def _space(target: Target) -> Any:
    """TVM's generated space, and every choice of our own rule's knobs where the rule fits."""
    cores = int(target.attrs["num-cores"])

    def own(sch: Schedule) -> list[Schedule]:
        variants = []
        for knobs in cpu.DENSE_VARIANTS:
            variant = sch.copy()
            block = cpu.annotated(variant, cpu.DENSE)
            if block is None:
                cpu.loops(variant, target)
                return [variant]
            cpu.dense(variant, block, cores, knobs)
            variants.append(variant)
        return variants

    return ms.space_generator.SpaceGeneratorUnion(
        [ms.space_generator.ScheduleFn(own), ms.space_generator.PostOrderApply()]
    )


class _Initializer:
    """Picklable: ends a worker with the search process, also when it hangs in native code."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self) -> None:
        die_with_parent(self.parent)


def _build(module: IRModule, target: Target, _params: Any) -> Any:
    """Compile a candidate. TVM's own build function first imports every tensor intrinsic: 10 s."""
    return tvm.tirx.build(module, target=target)


def _reporting(names: list[str], report: Callable[[dict[str, Any]], None]) -> Any:
    @tvm.ir.utils.derived_object
    class Reporting(ms.measure_callback.PyMeasureCallback):
        def apply(
            self, _scheduler: Any, task: int, _candidates: Any, builds: Any, runs: Any
        ) -> None:
            for built, ran in zip(builds, runs, strict=True):
                reason = built.error_msg or ran.error_msg
                if reason:
                    lines = str(reason).strip().splitlines() or ["no reason given"]
                    report({"task": names[task], "rejected": lines[-1]})
                else:
                    seconds = statistics.median(float(s) for s in ran.run_secs)
                    report({"task": names[task], "seconds": seconds})

    return Reporting()


def _best(database: Any, module: IRModule) -> list[str]:
    """The fastest measured candidates of a task as scheduled modules, best first."""
    found = []
    workload = database.commit_workload(module)
    for record in database.get_top_k(workload, _CANDIDATES):
        schedule = Schedule(module)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        found.append(tvm.ir.save_json(schedule.mod))
    return found


def judge(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Compare one candidate with the unscheduled function, then time it against our rule.

    setup: `target`, `plain`, `rule` and `candidate` (module JSON), `seed`. One answer:
    {"difference", "tolerance", "speedup"}, the first two relative to the largest magnitude of the
    result; `speedup` is the rule's time over the candidate's, None when the result is wrong.
    """
    target = make_target(setup["target"])
    modules = {name: tvm.ir.load_json(setup[name]) for name in ("plain", "rule", "candidate")}
    function = _only_function(modules["plain"])
    compiled = {name: tvm.tirx.build(module, target=target) for name, module in modules.items()}
    run = {name: library["main"] for name, library in compiled.items()}
    tolerance = relative_tolerance(
        str(_buffers(function)[-1].dtype), cpu.reduction_length(function)
    )
    difference = max(
        _difference(function, run["plain"], run["candidate"], arguments)
        for arguments in _test_arguments(function, setup["seed"])
    )
    speedup = None
    if difference <= tolerance:
        arguments = next(iter(_test_arguments(function, setup["seed"])))
        tensors = [bfloat16.to_tensor(tvm.runtime, argument) for argument in arguments]
        speedup = _speedup(lambda: run["rule"](*tensors), lambda: run["candidate"](*tensors))
    yield {"difference": difference, "tolerance": tolerance, "speedup": speedup}


def _only_function(module: IRModule) -> PrimFunc:
    (function,) = (f for f in module.functions.values() if isinstance(f, PrimFunc))
    return function


def _buffers(function: PrimFunc) -> list[Any]:
    return list(function.params)


def _test_arguments(function: PrimFunc, seed: int) -> Iterator[list[np.ndarray[Any, Any]]]:
    """Arguments for a function, its output last: ordinary values, then large, tiny, negative
    zeros, infinities and NaNs strewn among them."""
    rng = np.random.default_rng(seed)
    for special in ((), (1e30, 1e-30, -0.0, 0.0), (np.inf, -np.inf, np.nan)):
        arguments = []
        for buffer in _buffers(function):
            shape = tuple(int(extent) for extent in buffer.shape)
            dtype = np.dtype(str(buffer.dtype))
            if dtype.kind == "f" or dtype.name == "bfloat16":
                array = rng.standard_normal(shape).astype(dtype)
                for value in special:
                    array[rng.random(shape) < 1e-3] = value
            else:
                array = rng.integers(0, 2, shape).astype(dtype)
            arguments.append(aligned_copy(array))
        yield arguments


def _difference(
    function: PrimFunc, plain: Any, candidate: Any, arguments: list[np.ndarray[Any, Any]]
) -> float:
    """Largest difference of two functions' results, relative to the largest finite magnitude;
    infinite where a NaN or an infinity stands in one of them only."""
    results = []
    for run in (plain, candidate):
        output = aligned_copy(np.zeros_like(arguments[-1]))
        run(*(bfloat16.to_tensor(tvm.runtime, array) for array in (*arguments[:-1], output)))
        results.append(output)
    expected, found = (result.astype(np.float64) for result in results)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(found[finite]).all():
        return float("inf")
    gap = np.abs(expected[finite] - found[finite]).max(initial=0.0)
    scale = np.abs(expected[finite]).max(initial=0.0)
    return float(gap / scale) if scale > 0 else float(gap)


def _speedup(rule: Callable[[], object], candidate: Callable[[], object]) -> float:
    """Median over alternating blocks of rule's time / candidate's time."""
    for run in (rule, candidate):
        _block(run, 1)
    calls = max(1, int(_BLOCK_SECONDS / max(_block(rule, 3), 1e-7)))
    ratios = []
    for number in range(_BLOCKS):
        order = (rule, candidate) if number % 2 else (candidate, rule)
        seconds = {run: _block(run, calls) for run in order}
        ratios.append(seconds[rule] / seconds[candidate])
    return statistics.median(ratios)


def _block(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def as_json(module: IRModule) -> str:
    """TVM's JSON text of a module, checked to be JSON."""
    text: str = tvm.ir.save_json(module)
    json.loads(text)
    return text
