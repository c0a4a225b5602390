"""One tuning session: find tasks, search, judge, and put in what is right and faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from needle_tvm._tvm import IRModule, PrimFunc, calls_of, tvm
from needle_tvm.child import Child, ChildError
from needle_tvm.errors import TuningError
from needle_tvm.schedule import cpu
from needle_tvm.target import TargetSpec
from needle_tvm.threads import thread_environment

_TRIAL_SECONDS = 120.0  # no batch of candidates takes longer than this to report
_JUDGE_SECONDS = 60.0
_WORTH_IT = 1.02  # a candidate must be this much faster than our rule to take its place
_LEAST_WORK = 1 << 12  # scalar operations below which a function is not worth a search

Progress = Callable[[str], None]


def tune(
    module: IRModule, spec: TargetSpec, *, trials: int, seed: int, progress: Progress | None
) -> tuple[IRModule, list[dict[str, Any]]]:
    """The module with the best verified candidate in place of each function where one is faster.

    Returns it with one note per task: trials, what the best candidate gave and what was chosen.
    Every candidate is built, run and judged in processes of their own that end with this call.
    Raises TuningError when the search itself fails.
    """
    target = spec.to_tvm()
    tasks = _tasks(module)
    if not tasks:
        return module, []
    description = {**spec.fields, "mcpu": str(target.attrs["mcpu"])}
    environment = thread_environment(spec.threads)
    setup = {
        "target": description,
        "tasks": {name: [tvm.ir.save_json(plain), calls] for name, (plain, calls) in tasks.items()},
        "trials": trials,
        "seed": seed,
    }
    best, tried = _search(setup, trials, environment, progress)
    notes = []
    for name, (plain, _) in tasks.items():
        note: dict[str, Any] = {"task": name, "trials": tried[name], "chosen": "rule"}
        rule = tvm.IRModule({"main": cpu.schedule_function(plain["main"], target)})
        for candidate in best.get(name, []):
            verdict = _judge(
                {
                    "target": description,
                    "plain": tvm.ir.save_json(plain),
                    "rule": tvm.ir.save_json(rule),
                    "candidate": candidate,
                    "seed": seed,
                },
                environment,
            )
            note.setdefault("candidates", []).append(verdict)
            if verdict.get("speedup") is not None and verdict["speedup"] >= _WORTH_IT:
                variable = module.get_global_var(name)
                found = tvm.ir.load_json(candidate)["main"]
                module.update_func(variable, cpu.mark_scheduled(found, module[variable]))
                note["chosen"] = "search"
                break
        _say(progress, f"tuned: {name}: {note['chosen']} ({tried[name]} trials)")
        notes.append(note)
    return module, notes


def _tasks(module: IRModule) -> dict[str, tuple[IRModule, int]]:
    """Functions worth tuning, each alone in a module as "main", with its calls per inference."""
    calls: Counter[str] = Counter(calls_of(module, "main"))
    tasks = {}
    for variable, function in module.functions_items():
        name = variable.name_hint
        if not isinstance(function, PrimFunc) or not calls[name]:
            continue
        if cpu.work(function) >= _LEAST_WORK:
            alone = function.with_attr("global_symbol", "main")
            tasks[name] = (tvm.IRModule({"main": alone}), calls[name])
    return tasks


def _search(
    setup: dict[str, Any],
    trials: int,
    environment: dict[str, str],
    progress: Progress | None,
) -> tuple[dict[str, list[str]], Counter[str]]:
    tried: Counter[str] = Counter()
    fastest: dict[str, float] = {}
    _say(progress, f"tuned: searching {trials} candidates over {len(setup['tasks'])} kernels")
    try:
        with Child(
            "tuner",
            "needle_tvm.tune.worker:search",
            setup,
            timeout=_TRIAL_SECONDS,
            environment=environment,
        ) as child:
            while True:
                answer = child.receive("search")
                if "best" in answer:
                    return answer["best"], tried
                name = answer["task"]
                tried[name] += 1
                if "seconds" in answer:
                    fastest[name] = min(fastest.get(name, answer["seconds"]), answer["seconds"])
                shown = f", best {fastest[name] * 1e6:.1f} us" if name in fastest else ""
                _say(progress, f"tuned: trial {tried.total()} of {trials}: {name}{shown}")
    except ChildError as error:
        raise TuningError(f"the search failed: {error}") from error


def _judge(setup: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """The verdict on a candidate; one that crashes or hangs is rejected by that name."""
    try:
        with Child(
            "candidate",
            "needle_tvm.tune.worker:judge",
            setup,
            timeout=_JUDGE_SECONDS,
            environment=environment,
        ) as child:
            return child.receive("judge")
    except ChildError as error:
        return {"rejected": str(error)}


def _say(progress: Progress | None, line: str) -> None:
    if progress is not None:
        progress(line)
