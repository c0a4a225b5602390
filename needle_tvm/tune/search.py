"""The search: a service of `needle_tvm.child`, so that it ends with its parent and cannot take it
along.

It proposes candidates, has them built and measured by `workers`, and keeps every trial in the
record store the moment it is over. Modules travel as TVM's JSON text.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from needle_tvm import _tvm
from needle_tvm._tvm import IRModule, Schedule, Target, make_target, ms, structural_hash, tvm
from needle_tvm.child import Messages
from needle_tvm.records import near, rows
from needle_tvm.records.database import RecordDatabase, trace_text
from needle_tvm.records.keys import Key
from needle_tvm.records.rows import GATED, REJECTED
from needle_tvm.records.store import Store
from needle_tvm.scratch import scratch_folder
from needle_tvm.tune import budget, roofline, space
from needle_tvm.tune.status import Status, TaskStatus
from needle_tvm.tune.workers import OK, Limits, Outcome, Workers

WRONG = "wrong"  # the kind of a candidate that ran and gave something else
SEARCH = "search"  # who proposed a trial

_PREPARE_SECONDS, _BUILD_SECONDS, _RUN_SECONDS = 300.0, 10.0, 15.0  # limits of one request
_SERVICE = "needle_tvm.tune.services:serve"
# How a candidate is timed: as meta_schedule does by default.
_EVALUATOR: dict[str, Any] = {"number": 3, "repeat": 1, "min_repeat_ms": 100}
_CANDIDATES = 2  # per task, compared with the rule at the end
_WORTH_IT = 1.02  # a candidate must be this much faster than our rule to take its place
_NEAR = 1.03  # times the rule's time: measurements minutes apart differ by that much
_LEARNED = 64  # stored records per task that the cost model is taught when a search begins
_FRUITLESS = 2  # batches with nothing new in them, after which a task is exhausted
_REMOTE_COMPARISONS = 5
_SEEDS = 8  # records of near shapes that a task starts from


class Runner(Protocol):
    """What measures: `workers.Workers` here, `remote.RemoteRunner` elsewhere."""

    def map(
        self, requests: Sequence[dict[str, Any]], limits: Limits | None = None
    ) -> Iterator[tuple[int, Outcome]]: ...


@dataclass
class Task:
    """One function to be tuned. `gate` is the folder with what its results are compared with."""

    name: str
    calls: int
    plain: IRModule
    rule: str
    gate: Path
    flops: int
    share: budget.Share
    context: Any = None
    trials: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    best_seconds: float | None = None
    rule_seconds: float | None = None
    rule_library: Path | None = None
    fruitless: int = 0
    notes: dict[str, Any] = field(default_factory=dict)

    def saw(self, seconds: float | None) -> None:
        """Take in what a right candidate took; None for one that did not run."""
        if seconds is not None:
            best = self.best_seconds
            self.best_seconds = seconds if best is None else min(best, seconds)

    def is_promising(self, seconds: float | None) -> bool:
        """Whether a candidate that took so long may be faster than the rule."""
        if self.rule_seconds is None or seconds is None:
            return seconds is not None
        return seconds <= _NEAR * self.rule_seconds

    @property
    def status(self) -> TaskStatus:
        """What is shown of it."""
        return TaskStatus(
            self.name,
            self.calls,
            trials=self.trials,
            rejected=self.rejected,
            best=self.best_seconds,
            rule=self.rule_seconds,
            flops=self.flops,
            floor=self.share.floor,
        )


def search(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Search within a budget; yields {"status": ...} all along, {"results": ...} at the end.

    setup: `target` (TVM's description), `tasks` ({name: {"plain": JSON, "rule": JSON, "calls":
    n}}), `trials` and `seconds` (None: no limit), `seed`, `store` (folder), `environment` of the
    processes that measure, `tracker` and `key` (None: measured here). A result says per task what
    was tried and what came of it; `candidate` is the JSON of the fastest right one, None where
    there is none, and `chosen` is "search" where it is worth taking the rule's place.
    """
    logging.getLogger("tvm").setLevel(logging.ERROR)
    threads = int(setup["target"]["num-cores"])
    memory = _memory()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("needle-tune-"))
        # What compiler and linker leave behind when they are killed goes with the folder.
        environment = {**setup["environment"], "TMPDIR": str(folder)}
        builders = stack.enter_context(
            Workers(
                "builder",
                _SERVICE,
                processes=threads,
                limits=Limits(_BUILD_SECONDS, memory),
                environment=environment,
            )
        )
        local = Workers(
            "runner",
            _SERVICE,
            processes=1,
            limits=Limits(_RUN_SECONDS, memory),
            environment=environment,
        )
        runner: Runner = stack.enter_context(local)
        if setup["tracker"] is not None:
            from needle_tvm.tune.remote import RemoteRunner

            runner = stack.enter_context(
                RemoteRunner(setup["tracker"], setup["key"], limits=Limits(_RUN_SECONDS, memory))
            )
        store = stack.enter_context(Store(setup["store"]))
        yield from Search(setup, folder, builders, local, runner, store).run()


class Search:
    """One search. `runner` measures candidates; `local` does what must be done on this machine."""

    def __init__(
        self,
        setup: dict[str, Any],
        folder: Path,
        builders: Workers,
        local: Workers,
        runner: Runner,
        store: Store,
    ) -> None:
        self.setup, self.folder = setup, folder
        self.builders, self.local, self.runner, self.store = builders, local, runner, store
        self.target: Target = make_target(setup["target"])
        self.threads = int(setup["target"]["num-cores"])
        self.remote = setup["tracker"] is not None
        self.database = RecordDatabase(store, Key.of(self.target), seeds=self._near)
        self.cost_model = space.cost_model(self.threads)
        self.limits: roofline.Limits | None = None
        self.tasks: dict[str, Task] = {}
        self.session = self._session()
        self.spent_trials, self.spent_seconds = store.spent(self.session)
        self.resumed, self.resumed_seconds = self.spent_trials, self.spent_seconds
        self._mark = time.monotonic()
        self._current: str | None = None
        self._libraries = 0  # so many were named
        self._seeds: dict[str, list[Any]] = {}

    def _session(self) -> str:
        """Names what this search's budget is for: the same tasks, key and seed spend from one."""
        tasks = sorted(
            [structural_hash(tvm.ir.load_json(task["plain"])), task["calls"]]
            for task in self.setup["tasks"].values()
        )
        parts = [tasks, self.database.key.text, self.setup["seed"]]
        return hashlib.sha256(rows.canonical(parts).encode()).hexdigest()

    def _near(self, database: RecordDatabase, module: IRModule, limit: int) -> list[Any]:
        """Records of near shapes, looked for once per task: TVM asks for each batch."""
        key = structural_hash(module)
        if key not in self._seeds:
            self._seeds[key] = near.seeds(database, module, _SEEDS)
        return self._seeds[key][:limit]

    def run(self) -> Iterator[dict[str, Any]]:
        """All of it; what `search` yields."""
        self._probe()
        yield from self._prepare()
        yield from self._spend()
        yield from self._choose()
        yield {"results": {name: self._result(task) for name, task in self.tasks.items()}}

    def _probe(self) -> None:
        if not self.remote:  # another machine's limits are not known
            outcome = self.local.call({"do": "probe", "target": self.setup["target"]})
            if outcome.kind == OK:
                self.limits = roofline.Limits.from_json(outcome.value)

    # Preparing: what each task's results are compared with, and what our own rule takes.

    def _prepare(self) -> Iterator[dict[str, Any]]:
        for number, (name, given) in enumerate(self.setup["tasks"].items()):
            plain = tvm.ir.load_json(given["plain"])
            flops, traffic = roofline.work(plain["main"])
            floor = roofline.floor(self.limits, flops, traffic) if self.limits else 0.0
            gate, calls = self.folder / f"gate-{number}", given["calls"]
            share = budget.Share(calls, floor)
            self.tasks[name] = Task(name, calls, plain, given["rule"], gate, flops, share)
        tasks = list(self.tasks.values())
        requests = [
            {
                "do": "prepare",
                "module": self.setup["tasks"][task.name]["plain"],
                "target": self._local_target(),
                "folder": str(task.gate),
                "seed": self.setup["seed"],
            }
            for task in tasks
        ]
        limits = Limits(_PREPARE_SECONDS, _memory())
        for number, outcome in self.builders.map(requests, limits):
            task = tasks[number]
            if outcome.kind == OK:
                task.notes["gate"] = outcome.value
            else:  # nothing can be judged, so nothing is searched: the rule stays
                task.share.exhausted = True
                task.notes["gate"] = {"failed": f"{outcome.kind}: {outcome.detail}"}
            self._current = task.name
            yield self._status()
        judged = [task for task in tasks if not task.share.exhausted]
        modules = [task.rule for task in judged]
        for number, path, outcome in self._measure(judged, modules, [t.gate for t in judged]):
            task = judged[number]
            task.rule_library = path
            if outcome.kind == OK:
                task.rule_seconds = _seconds(outcome)
            else:
                task.notes["rule"] = f"{outcome.kind}: {outcome.detail}"
            task.saw(task.rule_seconds)
            for _, record in self.database.best(task.plain, 1):
                task.saw(_mean(record.run_secs))
            task.share.best = task.best_seconds
            self._current = task.name
            yield self._status()

    def _local_target(self) -> dict[str, Any]:
        """For what runs here: the servers' processor may have what this one has not."""
        if not self.remote:
            return dict(self.setup["target"])
        return {"kind": "llvm", "mcpu": _tvm.host_cpu(), "num-cores": self.threads}

    # Spending the budget.

    def _spend(self) -> Iterator[dict[str, Any]]:
        size = budget.batch_size(self.setup["trials"], max(1, len(self.tasks)))
        self._mark = time.monotonic()
        while not self._over():
            name = budget.pick((task.name, task.share) for task in self.tasks.values())
            if name is None:
                return
            task = self.tasks[name]
            self._current = name
            yield self._status()
            yield from self._batch(task, size)

    def _over(self) -> bool:
        trials, seconds = self.setup["trials"], self.setup["seconds"]
        spent = self.spent_seconds + time.monotonic() - self._mark
        return (trials is not None and self.spent_trials >= trials) or (
            seconds is not None and spent >= seconds
        )

    def _batch(self, task: Task, size: int) -> Iterator[dict[str, Any]]:
        """Have one batch of a task's candidates proposed, measured, kept and learned from."""
        if task.context is None:
            self._begin(task, size)
        proposed = list(task.context.generate_measure_candidates() or [])
        if not proposed:
            task.share.exhausted = True
            return
        known = self.database.known(task.plain)
        traces = [trace_text(candidate.sch.trace) for candidate in proposed]
        results: list[Any] = [None] * len(proposed)
        fresh = []
        for number, trace in enumerate(traces):
            if trace in known:  # measured before, by whichever session: nothing is spent on it
                results[number] = _result(known[trace][1])
            elif trace not in traces[:number]:
                fresh.append(number)
        task.fruitless = 0 if fresh else task.fruitless + 1
        task.share.exhausted = task.fruitless >= _FRUITLESS
        if self.setup["trials"] is not None:
            fresh = fresh[: self.setup["trials"] - self.spent_trials]
        modules = [tvm.ir.save_json(proposed[number].sch.mod) for number in fresh]
        for number, path, outcome in self._measure([task], modules, [task.gate] * len(fresh)):
            candidate = fresh[number]
            results[candidate] = self._keep(task, proposed[candidate], outcome)
            path.unlink(missing_ok=True)
            yield self._status()
            if self._over():
                break
        self._learn(task, proposed, results)
        task.share.learn(task.best_seconds)

    def _begin(self, task: Task, size: int) -> None:
        task.context = space.context(
            task.plain, self.target, task.name, self.setup["seed"], self.threads
        )
        designs = task.context.generate_design_space()
        task.context.pre_tuning(
            max_trials=1 << 30,  # the budget is ours to keep
            num_trials_per_iter=size,
            design_spaces=designs,
            database=self.database,
            cost_model=self.cost_model,
        )
        candidates, results = [], []
        for _, record in self.database.best(task.plain, _LEARNED):
            schedule = Schedule(task.plain)
            record.trace.apply_to_schedule(schedule, remove_postproc=False)
            candidates.append(ms.MeasureCandidate(schedule, record.args_info))
            results.append(_result(_mean(record.run_secs)))
        if candidates:
            self.cost_model.update(task.context, candidates, results)

    def _keep(self, task: Task, candidate: Any, outcome: Outcome) -> Any:
        """Write one trial down, durably; what the search is told of it."""
        now = time.monotonic()
        seconds, self._mark = now - self._mark, now
        taken = _seconds(outcome) if outcome.kind == OK else None
        self.database.commit_trial(
            ms.database.TuningRecord(
                candidate.sch.trace,
                ms.database.Workload(task.plain),
                outcome.value["run_secs"] if taken is not None else None,
                self.target,
                candidate.args_info,
            ),
            state=GATED if taken is not None else REJECTED,
            detail="" if taken is not None else f"{outcome.kind}: {outcome.detail}",
            session=self.session,
            seconds=seconds,
            source=SEARCH,
        )
        self.spent_trials += 1
        self.spent_seconds += seconds
        task.trials += 1
        if taken is None:
            task.rejected[outcome.kind] += 1
        task.saw(taken)
        return _result(taken)

    def _learn(self, task: Task, proposed: list[Any], results: list[Any]) -> None:
        ran = [i for i, result in enumerate(results) if result is not None and result.run_secs]
        if ran:
            self.cost_model.update(
                task.context, [proposed[i] for i in ran], [results[i] for i in ran]
            )
        told = [result or _result(None) for result in results]
        task.context.notify_runner_results(proposed, told)

    # Choosing.

    def _choose(self) -> Iterator[dict[str, Any]]:
        for task in self.tasks.values():
            self._current = task.name
            yield self._status()
            if task.notes.get("gate", {}).get("failed"):
                continue
            for name, record in self.database.best(task.plain, _CANDIDATES):
                schedule = Schedule(task.plain)
                record.trace.apply_to_schedule(schedule, remove_postproc=False)
                module = tvm.ir.save_json(schedule.mod)
                if not task.is_promising(_mean(record.run_secs)):
                    task.notes.update(candidate=module, record=name)
                    break
                # Judged again: what goes into an artifact is this module, not what was measured.
                (_, path, outcome), *_ = self._measure([task], [module], [task.gate])
                if outcome.kind != OK:
                    self.store.decide([name], REJECTED, f"{outcome.kind}: {outcome.detail}")
                    continue
                task.notes.update(candidate=module, record=name)
                task.notes["difference"] = outcome.value["difference"]
                speedup = self._speedup(task, path)
                task.notes["speedup"] = speedup
                if speedup is None or speedup >= _WORTH_IT:
                    task.notes["chosen"] = SEARCH
                break

    def _speedup(self, task: Task, candidate: Path) -> float | None:
        """How much faster a candidate is than the rule; None where the rule does not work."""
        if task.rule_seconds is None or task.rule_library is None:
            return None
        rule, gate = str(task.rule_library), str(task.gate)
        if not self.remote:
            request = {"do": "compare", "rule": rule, "candidate": str(candidate), "gate": gate}
            outcome = self.local.call(request)
            if outcome.kind != OK or "speedup" not in outcome.value:
                return 0.0  # what cannot be compared is not taken
            return float(outcome.value["speedup"])
        times: dict[str, list[float]] = {rule: [], str(candidate): []}
        for _ in range(_REMOTE_COMPARISONS):
            for path, found in times.items():
                request = {"do": "measure", "path": path, "gate": gate, **_EVALUATOR}
                ((_, outcome),) = self.runner.map([request])
                if outcome.kind == OK and "run_secs" in outcome.value:
                    found.append(_seconds(outcome))
        if not all(times.values()):
            return 0.0
        return min(times[rule]) / min(times[str(candidate)])

    # What all phases share.

    def _measure(
        self, tasks: list[Task], modules: list[str], gates: list[Path]
    ) -> Iterator[tuple[int, Path, Outcome]]:
        """Build and run modules: their number, library and outcome, as each ends.

        Everything is built before anything runs: a compiler at work would disturb the clock.
        """
        paths = [self.folder / f"{self._libraries + i}.so" for i in range(len(modules))]
        self._libraries += len(modules)
        builds = [
            {"do": "build", "module": module, "target": self.setup["target"], "path": str(path)}
            for module, path in zip(modules, paths, strict=True)
        ]
        built = []
        for number, outcome in self.builders.map(builds):
            if outcome.kind == OK:
                built.append(number)
            else:
                yield number, paths[number], outcome
        runs = [
            {"do": "measure", "path": str(paths[i]), "gate": str(gates[i]), **_EVALUATOR}
            for i in built
        ]
        for number, outcome in self.runner.map(runs):
            if outcome.kind == OK and "wrong" in outcome.value:
                outcome = Outcome(WRONG, outcome.value, outcome.value["wrong"], outcome.seconds)
            yield built[number], paths[built[number]], outcome

    def _status(self) -> dict[str, Any]:
        budget_seconds = self.setup["seconds"]
        status = Status(
            tasks=[task.status for task in self.tasks.values()],
            trials=self.spent_trials,
            budget_trials=self.setup["trials"],
            seconds=self.spent_seconds - self.resumed_seconds,
            budget_seconds=budget_seconds and max(0.0, budget_seconds - self.resumed_seconds),
            current=self._current,
            resumed=self.resumed,
        )
        return {"status": status.to_json()}

    def _result(self, task: Task) -> dict[str, Any]:
        return {
            "task": task.name,
            "calls": task.calls,
            "trials": task.trials,
            "rejected": dict(task.rejected),
            "rule_seconds": task.rule_seconds,
            "best_seconds": task.best_seconds,
            "floor_seconds": task.share.floor or None,
            "chosen": "rule",
            "candidate": None,
            **task.notes,
        }


def _memory() -> int:
    """Bytes that one candidate may take."""
    return int(psutil.virtual_memory().total) // 2


def _mean(run_secs: Any) -> float | None:
    return rows.mean_seconds([float(seconds) for seconds in run_secs or ()])


def _seconds(outcome: Outcome) -> float:
    seconds = _mean(outcome.value["run_secs"])
    return float("inf") if seconds is None else seconds


def _result(seconds: float | None) -> Any:
    """TVM's RunnerResult of a candidate that took so long, or did not work."""
    if seconds is None:
        return ms.runner.RunnerResult(None, "rejected")
    return ms.runner.RunnerResult([seconds], None)
