"""The search: a service of `needle_tvm.child`, so that it ends with its parent and cannot take it
along.

It proposes candidates, has them built and measured by `workers`, and keeps every trial in the
record store the moment it is over. Modules travel as TVM's JSON text.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from needle_tvm._tvm import IRModule, Schedule, Target, make_target, ms, structural_hash, tvm
from needle_tvm.child import Messages
from needle_tvm.command_line import one_line
from needle_tvm.errors import NeedleTVMError, TuningError
from needle_tvm.records import near, rows
from needle_tvm.records.database import RecordDatabase, trace_text
from needle_tvm.records.keys import Key
from needle_tvm.records.rows import GATED, MEASURED, REJECTED
from needle_tvm.records.store import Store
from needle_tvm.tune import budget, roofline, space
from needle_tvm.tune.bench import Bench, seconds
from needle_tvm.tune.remote import LOST
from needle_tvm.tune.status import Status
from needle_tvm.tune.task import RULE, SEARCH, Task
from needle_tvm.tune.workers import OK, Outcome
from needle_tvm.words import counted

_CANDIDATES = 2  # per task, compared with the rule at the end
_TOLD = 5  # per task, whose times are noted beside the rule's
_WORTH_IT = 1.02  # a candidate must be this much faster than our rule to take its place
_LEARNED = 64  # stored records per task that the cost model is taught when a search begins
_FRUITLESS = 2  # batches with nothing new in them, after which a task is exhausted
_SEEDS = 8  # records of near shapes that a task starts from
_ADMITTED = 4  # records per task that nobody has judged yet, judged when a search begins


def search(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Search within a budget; yields {"status": ...} and {"said": line} all along,
    {"results": ...} at the end.

    setup: `target` (TVM's description), `tasks` ({name: {"plain": JSON, "rule": JSON, "calls":
    n}}), `trials` and `seconds` (None: no limit), `seed`, `store` (folder), `environment` of the
    processes that measure, `tracker` and `key` (None: measured here). A result says per task what
    was tried and what came of it; `candidate` is the JSON of the fastest right one, None where
    there is none, and `chosen` is "search" where it is worth taking the rule's place.
    """
    logging.getLogger("tvm").setLevel(logging.ERROR)
    places = setup["tracker"], setup["key"]
    reports: list[str] = []
    with (
        Store(setup["store"], report=reports.append) as store,
        Bench(setup["target"], setup["environment"], *places) as bench,
    ):
        yield from ({"said": line} for line in reports)
        yield from Search(setup, bench, store).run()


class Search:
    """One search: see `search` for the setup."""

    def __init__(self, setup: dict[str, Any], bench: Bench, store: Store) -> None:
        self.setup, self.bench, self.store = setup, bench, store
        self.target: Target = make_target(setup["target"])
        self.threads = int(setup["target"]["num-cores"])
        self.database = RecordDatabase(store, Key.of(self.target), seeds=self._near)
        self.cost_model = space.cost_model(self.threads)
        self.tasks: dict[str, Task] = {}
        self.session = self._session()
        self.spent_trials, self.spent_seconds = store.spent(self.session)
        self.resumed, self.resumed_seconds = self.spent_trials, self.spent_seconds
        self._mark = time.monotonic()
        self._seeds: dict[str, list[Any]] = {}
        self._phase = "preparing"

    def _session(self) -> str:
        """Names what this search's budget is for: tasks, key, seed, and where it is measured."""
        tasks = sorted(
            [structural_hash(tvm.ir.load_json(task["plain"])), task["calls"]]
            for task in self.setup["tasks"].values()
        )
        place = self.setup["key"]  # what other machines measure is not this one's
        parts = [tasks, self.database.key.text, self.setup["seed"], place]
        return hashlib.sha256(rows.canonical(parts).encode()).hexdigest()

    def _near(self, database: RecordDatabase, module: IRModule, limit: int) -> list[Any]:
        """Records of near shapes, looked for once per task: TVM asks for each batch."""
        key = structural_hash(module)
        if key not in self._seeds:
            self._seeds[key] = near.seeds(database, module, _SEEDS)
        return self._seeds[key][:limit]

    def run(self) -> Iterator[dict[str, Any]]:
        """All of it; what `search` yields."""
        yield from self._prepare()
        yield from self._admit()
        yield from self._spend()
        yield from self._choose()
        yield {"results": {name: self._result(task) for name, task in self.tasks.items()}}

    # Preparing: what each task's results are compared with, and what our own rule takes.

    def _prepare(self) -> Iterator[dict[str, Any]]:
        limits = self.bench.limits()
        for name, given in self.setup["tasks"].items():
            plain = tvm.ir.load_json(given["plain"])
            flops, traffic = roofline.work(plain["main"])
            floor = roofline.floor(limits, flops, traffic) if limits else 0.0
            share = budget.Share(given["calls"], floor)
            task = Task(name, given["calls"], plain, given["rule"], flops, share)
            reasons = self.store.tried(self.session, self.database.names(plain))
            task.trials = len(reasons)
            task.rejected.update(reason.split(":")[0] for reason in reasons.values() if reason)
            self.tasks[name] = task
        tasks = list(self.tasks.values())
        plain_texts = [given["plain"] for given in self.setup["tasks"].values()]
        for number, gate, outcome in self.bench.prepare(plain_texts, self.setup["seed"]):
            task = tasks[number]
            if outcome.kind == OK:
                task.gate, task.notes["gate"] = gate, outcome.value
            else:  # nothing can be judged, so nothing is searched: the rule stays
                task.share.exhausted = True
                task.notes["gate"] = {"failed": f"{outcome.kind}: {outcome.detail}"}
            yield self._status(task)
        judged = [(task, task.gate) for task in tasks if task.gate is not None]
        rules, gates = [task.rule for task, _ in judged], [gate for _, gate in judged]
        for number, path, outcome in self.bench.measure(rules, gates):
            task, _ = judged[number]
            if outcome.kind == LOST:
                raise TuningError(f"our rules could not be measured: {outcome.detail}")
            task.rule_library, task.rule_seconds = path, seconds(outcome)
            if task.rule_seconds is None:
                task.notes["rule"] = f"{outcome.kind}: {outcome.detail}"
            task.saw(task.rule_seconds)
            for _, record in self.database.best(task.plain, 1):
                task.saw(_mean(record.run_secs))
            task.share.best = task.best_seconds
            yield self._status(task)

    def _admit(self) -> Iterator[dict[str, Any]]:
        """Judge what is on record as measured alone, as what was imported is: a few of each task.

        What passes enters as a record of its own, with the time that it takes here.
        """
        for task in self.tasks.values():
            if task.gate is None:
                continue
            known = self.database.known(task.plain)
            for name, record in self.database.best(task.plain, _ADMITTED, [MEASURED]):
                if known[trace_text(record.trace)][0] != MEASURED:
                    continue  # judged before, under another name
                yield self._status(task)
                schedule = self._replayed(task, record)
                if schedule is None:
                    self.store.decide([name], REJECTED, "error: its trace cannot be applied")
                    continue
                module = tvm.ir.save_json(schedule.mod)
                ((_, path, outcome),) = self.bench.measure([module], [task.gate])
                path.unlink(missing_ok=True)
                if outcome.kind != OK:
                    self._reject(name, outcome)
                    continue
                arguments = record.args_info
                admitted = self._tuning_record(task, schedule.trace, arguments, outcome)
                self.database.commit_gated(admitted)
                task.saw(seconds(outcome))
            task.share.best = task.best_seconds

    def _reject(self, name: str, outcome: Outcome) -> None:
        if outcome.kind != LOST:  # of which nobody knows how good it is
            self.store.decide([name], REJECTED, f"{outcome.kind}: {outcome.detail}")

    def _replayed(self, task: Task, record: Any) -> Schedule | None:
        """A record's schedule of its task; None where it is none of it."""
        schedule = Schedule(task.plain)
        try:
            record.trace.apply_to_schedule(schedule, remove_postproc=False)
        except (RuntimeError, ValueError, TypeError):  # what TVM raises of a schedule
            return None
        return schedule

    def _tuning_record(self, task: Task, trace: Any, arguments: Any, outcome: Outcome) -> Any:
        return ms.database.TuningRecord(
            trace,
            ms.database.Workload(task.plain),
            outcome.value["run_secs"] if outcome.kind == OK else None,
            self.target,
            arguments,
        )

    # Spending the budget.

    def _spend(self) -> Iterator[dict[str, Any]]:
        size = budget.batch_size(self.setup["trials"], max(1, len(self.tasks)))
        self._mark = time.monotonic()
        self._phase = "searching"
        if self._over():
            yield {"said": f"tuned: the budget is spent already: {self._spent_text()}"}
        while not self._over():
            name = budget.pick((task.name, task.share) for task in self.tasks.values())
            if name is None:
                return
            yield self._status(self.tasks[name])
            yield from self._batch(self.tasks[name], size)
            # Another process may be spending from the same budget.
            self.spent_trials, self.spent_seconds = self.store.spent(self.session)

    def _over(self) -> bool:
        trials, seconds = self.setup["trials"], self.setup["seconds"]
        spent = self.spent_seconds + time.monotonic() - self._mark
        return (trials is not None and self.spent_trials >= trials) or (
            seconds is not None and spent >= seconds
        )

    def _spent_text(self) -> str:
        text = f"{counted(self.spent_trials, 'trial')}, {self.spent_seconds:.1f} s"
        limits = []
        if self.setup["trials"] is not None:
            limits.append(counted(self.setup["trials"], "trial"))
        if self.setup["seconds"] is not None:
            limits.append(f"{self.setup['seconds']:g} s")
        return f"{text}, of {' or '.join(limits)}; a larger one goes on from there"

    def _batch(self, task: Task, size: int) -> Iterator[dict[str, Any]]:
        """Have one batch of a task's candidates proposed, measured, kept and learned from."""
        try:
            if task.context is None:
                self._begin(task, size)
            proposed = list(task.context.generate_measure_candidates() or [])
        except NeedleTVMError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            # What TVM raises of a function that it cannot search: the others go on.
            proposed, task.notes["ended"] = [], f"{type(error).__name__}: {one_line(error)}"
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
        assert task.gate is not None  # or it would not have been picked
        lost: list[str] = []
        for number, path, outcome in self.bench.measure(modules, [task.gate] * len(fresh)):
            path.unlink(missing_ok=True)
            if outcome.kind == LOST:
                lost.append(outcome.detail)
                continue
            candidate = fresh[number]
            results[candidate] = self._keep(task, proposed[candidate], outcome)
            yield self._status(task)
            if self._over():
                break
        if lost and len(lost) == len(fresh):
            raise TuningError(f"no candidate could be measured: {lost[0]}")
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
            schedule = self._replayed(task, record)
            if schedule is None:
                continue
            candidates.append(ms.MeasureCandidate(schedule, record.args_info))
            results.append(_result(_mean(record.run_secs)))
        if candidates:
            self.cost_model.update(task.context, candidates, results)

    def _keep(self, task: Task, candidate: Any, outcome: Outcome) -> Any:
        """Write one trial down, durably; what the search is told of it."""
        now = time.monotonic()
        spent, self._mark = now - self._mark, now
        taken = seconds(outcome)
        self.database.commit_trial(
            self._tuning_record(task, candidate.sch.trace, candidate.args_info, outcome),
            state=GATED if taken is not None else REJECTED,
            detail="" if taken is not None else f"{outcome.kind}: {outcome.detail}",
            session=self.session,
            seconds=spent,
            source=SEARCH,
        )
        self.spent_trials += 1
        self.spent_seconds += spent
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
        self._phase = "comparing with the rules"
        for task in self.tasks.values():
            yield self._status(task)
            if task.gate is not None:
                self._choose_for(task, task.gate)

    def _choose_for(self, task: Task, gate: Path) -> None:
        for name, record in self.database.best(task.plain, _CANDIDATES):
            schedule = self._replayed(task, record)
            if schedule is None:
                self.store.decide([name], REJECTED, "error: its trace cannot be applied")
                continue
            module = tvm.ir.save_json(schedule.mod)
            if task.is_promising(_mean(record.run_secs)):
                # Judged again: this is what goes into an artifact, not what was measured then.
                ((_, path, outcome),) = self.bench.measure([module], [gate])
                if outcome.kind != OK:
                    self._reject(name, outcome)
                    continue
                task.notes["difference"] = outcome.value["difference"]
                if task.rule_seconds is None or task.rule_library is None:
                    task.notes["chosen"] = SEARCH
                else:
                    speedup = self.bench.speedup(task.rule_library, path, gate)
                    task.notes["speedup"] = speedup
                    task.notes["chosen"] = SEARCH if speedup >= _WORTH_IT else RULE
            task.notes.update(candidate=module, record=name)
            return

    # What all phases share.

    def _status(self, current: Task) -> dict[str, Any]:
        budget_seconds = self.setup["seconds"]
        status = Status(
            tasks=[task.status for task in self.tasks.values()],
            trials=self.spent_trials,
            budget_trials=self.setup["trials"],
            seconds=self.spent_seconds - self.resumed_seconds,
            budget_seconds=budget_seconds and max(0.0, budget_seconds - self.resumed_seconds),
            current=current.name,
            phase=self._phase,
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
            "candidates": self._candidates(task),
            "chosen": RULE,
            "candidate": None,
            **task.notes,
            "reason": task.reason(_WORTH_IT),
        }

    def _candidates(self, task: Task) -> list[dict[str, Any]]:
        """The rule and the fastest right candidates: who proposed each, and what it took alone."""
        found = [{"source": RULE, "record": None, "seconds": task.rule_seconds}]
        for name, record in self.database.best(task.plain, _TOLD):
            seconds = _mean(record.run_secs)
            found.append({"source": SEARCH, "record": name, "seconds": seconds})
        return found


def _mean(run_secs: Any) -> float | None:
    return rows.mean_seconds([float(seconds) for seconds in run_secs or ()])


def _result(taken: float | None) -> Any:
    """TVM's RunnerResult of a candidate that took so long, or did not work."""
    if taken is None:
        return ms.runner.RunnerResult(None, "rejected")
    return ms.runner.RunnerResult([taken], None)
