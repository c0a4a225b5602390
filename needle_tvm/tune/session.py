"""One tuning session: find tasks, search within a budget, and use correct, faster candidates.

`compiler.compiler` calls `tune`. The search itself runs in a child process (`search.search`), which
is restarted if it dies. The budget belongs to the tuned model: tasks, target, versions and seed
identify a session in the record store, and every trial in the store names the session that paid for
it. So a restarted search continues where the last one stopped, whatever the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from needle_runtime.errors import TargetError
from needle_runtime.process.child import Child, ChildError
from needle_runtime.process.threads import available_cores, thread_environment
from needle_runtime.text import counted
from needle_tvm._tvm.names import IRModule, PrimFunc, tvm
from needle_tvm.errors import TuningError
from needle_tvm.kernels.blocks import work
from needle_tvm.kernels.scheduled import is_scheduled, mark_scheduled
from needle_tvm.kernels.search_interface import rules_of
from needle_tvm.target.spec import TargetSpec
from needle_tvm.tir.extents import symbols_of
from needle_tvm.tir.functions import calls_of, prim_funcs
from needle_tvm.tune.options import Options
from needle_tvm.tune.records.store import default_path
from needle_tvm.tune.status import Status
from needle_tvm.tune.task import RULE as RULE
from needle_tvm.tune.task import SEARCH as SEARCH

_ANSWER_SECONDS = 900.0  # limit for an answer from the search process; workers have other limits
_LEAST_WORK = 1 << 12  # scalar operations below which a function is not worth searching

Progress = Callable[["str | Status"], None]


def tune(
    module: IRModule, spec: TargetSpec, options: Options, progress: Progress | None = None
) -> tuple[IRModule, list[dict[str, Any]]]:
    """Replace each function of the `module` by the best verified candidate if that is faster.

    Returns the module and one note per task: its trials, the rejected candidates and reasons, the
    times of the rule and of the best candidates, the choice and its reason. Candidates are built,
    judged and measured in processes that end with this call. `spec` is the target and `options` has
    the budget. `progress` is called with lines of text and with `status.Status`. Raises TuningError
    if the search itself fails, and TargetError if this machine lacks the device for measuring.
    """
    _check(spec, options)
    target = spec.to_tvm()
    rules_here = rules_of(target)
    written = prim_funcs(module)
    module = rules_here.prepared(module)
    tasks = find_tasks(module)
    if not tasks:
        return module, []
    if options.cluster is not None:
        from needle_tvm.tune.measure.cluster import check_cluster

        check_cluster(options.cluster, spec.resolved())
    rules = {
        name: tvm.IRModule({"main": rules_here.schedule_function(plain["main"], target)})
        for name, (plain, _) in tasks.items()
    }
    notes = search(
        tasks,
        rules,
        spec.resolved(),
        options,
        written={name: _alone(written[name]) for name in tasks},
        device=(spec.device, spec.index),
        progress=progress,
    )
    candidates = {name: note.pop("candidate") for name, note in notes.items()}
    chosen = {
        name: tvm.ir.load_json(candidates[name])["main"]
        for name, note in notes.items()
        if note["chosen"] == SEARCH
    }
    for name, function in chosen.items():
        module.update_func(module.get_global_var(name), mark_scheduled(function, module[name]))
    return module, list(notes.values())


def _check(spec: TargetSpec, options: Options) -> None:
    if spec.missing:
        arch = spec.fields["arch"]
        raise TargetError(f"target {spec.device} ({arch}): cannot measure here: {spec.missing}")
    if spec.is_gpu and options.cluster is not None:
        raise TuningError(
            f"cluster={options.cluster!r}: candidates for a GPU are only measured on this machine"
        )


def find_tasks(module: IRModule) -> dict[str, tuple[IRModule, int]]:
    """Return the functions that are worth tuning, each as "main" of a module and with the number of
    its calls per inference.

    Functions with symbolic extents are left out, because TVM's search needs numbers.
    """
    calls: Counter[str] = Counter(calls_of(module, "main"))
    tasks = {}
    for variable, function in module.functions_items():
        name = variable.name_hint
        if not isinstance(function, PrimFunc) or not calls[name] or is_scheduled(function):
            continue
        if not symbols_of(function) and work(function) >= _LEAST_WORK:
            tasks[name] = (_alone(function), calls[name])
    return tasks


def _alone(function: PrimFunc) -> IRModule:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def search(
    tasks: dict[str, tuple[IRModule, int]],
    rules: dict[str, IRModule],
    target: dict[str, Any],
    options: Options,
    *,
    written: dict[str, IRModule] | None = None,
    device: tuple[str, int] = ("cpu", 0),
    store: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Run `search.search` for `tasks`, whose candidates must beat the schedules in `rules`; return
    results per task.

    `target` is TVM's description, including the processor's name, and `options` has the budget.
    `written` has the functions that define correct results, if they are not the tasks themselves.
    Candidates are measured on `device` (kind and index). `store` is the record store's folder, by
    default the user's.
    """
    threads = int(target.get("num-cores") or available_cores())
    setup = {
        "target": target,
        "device": list(device),
        "threads": threads,
        "tasks": {
            name: {
                "plain": tvm.ir.save_json(plain),
                "written": tvm.ir.save_json((written or {}).get(name, plain)),
                "rule": tvm.ir.save_json(rules[name]),
                "calls": calls,
            }
            for name, (plain, calls) in tasks.items()
        },
        "trials": options.trials or None,
        "seconds": options.seconds,
        "seed": options.seed,
        "store": str(store or default_path()),
        "environment": thread_environment(threads),
        "cluster": options.cluster,
    }
    say = progress or (lambda _: None)
    say(f"tuned: searching {counted(len(tasks), 'kernel')}")
    reached = -1
    while True:
        start = reached
        try:
            with Child(
                "tuner",
                "needle_tvm.tune.search:search",
                setup,
                timeout=_ANSWER_SECONDS,
                environment=thread_environment(threads),
            ) as child:
                while True:
                    answer = child.receive("search")
                    if "results" in answer:
                        results: dict[str, dict[str, Any]] = answer["results"]
                        return results
                    if "said" in answer:
                        say(answer["said"])
                        continue
                    status = Status(**answer["status"])
                    reached = max(reached, status.trials)
                    say(status)
        except ChildError as error:
            # TVM's code may crash the process. If there was no new trial, it would crash again.
            if reached <= start:
                raise TuningError(f"the search failed: {error}") from error
            say(f"tuned: {error}; continuing after {counted(reached, 'trial')}")
