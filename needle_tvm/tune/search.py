"""The search for one model's schedules, which runs as a service of `process.child`.

`session.search` starts it in a separate process, which ends with its parent and cannot crash the
parent. The search proposes candidates, has `bench` build and measure them, and writes every trial
to the record store as soon as the trial is over. Modules are passed as TVM's JSON text.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from needle_runtime.errors import NeedleTVMError
from needle_runtime.process.child import Messages
from needle_runtime.text import counted, error_line
from needle_tvm._tvm.names import IRModule, Schedule, Target, make_target, ms, structural_hash, tvm
from needle_tvm.errors import TuningError
from needle_tvm.kernels.search_interface import rules_of
from needle_tvm.tune import space
from needle_tvm.tune.bench import Bench, seconds
from needle_tvm.tune.measure.cluster import LOST
from needle_tvm.tune.measure.workers import OK, Outcome
from needle_tvm.tune.records import facts
from needle_tvm.tune.records.database import Database, trace_text
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.store import Store
from needle_tvm.tune.sources import Choices, Evolution, Turn, runner_result
from needle_tvm.tune.status import Status
from needle_tvm.tune.task import RULE, SEARCH, Task, batch_size, pick

_CANDIDATES = 2  # candidates per task that may be compared with the rule at the end
_TOLD = 5  # candidates per task whose times are noted, besides the rule's time
_WORTH_IT = 1.02  # a candidate must be this much faster than our rule to replace it
_LEARNED = 64  # stored records per task from which the cost model learns at the start
_FRUITLESS = 2  # an endless source is dropped after this many batches without a new candidate
_SPILLS = 128  # bytes per GPU thread; with more, many sums would go through memory


def search(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Search within a budget; yield progress throughout and the results at the end.

    Yields {"status": ...} and {"said": line} throughout, and {"results": ...} last.

    setup: `target` (TVM's description), `device` and `threads` (see `Bench`), `tasks` ({name:
    {"plain": JSON, "written": JSON, "rule": JSON, "calls": n}}), `trials` and `seconds` (None: no
    limit), `seed`, `store` (folder), `environment` of the measuring processes, `cluster`
    (None: measure on this machine). A task's "plain" is the function to schedule, and "written",
    which may be the same, is the function that defines correct results. The results describe each
    task's candidates and their times: `candidate` is the JSON of the fastest correct candidate, or
    None, and `chosen` is "search" if it is worth replacing the rule.
    """
    logging.getLogger("tvm").setLevel(logging.ERROR)
    places = [setup[name] for name in ("device", "threads", "environment", "cluster")]
    reports: list[str] = []
    with (
        Store(setup["store"], report=reports.append) as store,
        Bench(setup["target"], *places) as bench,
    ):
        if not space.has_cost_model():
            reports.append("tuned: xgboost is not installed: candidates are ranked at random")
        yield from ({"said": line} for line in reports)
        yield from Search(setup, bench, store).run()


class Search:
    """One search: see `search` for the setup."""

    def __init__(self, setup: dict[str, Any], bench: Bench, store: Store) -> None:
        self.setup, self.bench, self.store = setup, bench, store
        self.target: Target = make_target(setup["target"])
        self.rules, self.threads = rules_of(self.target), int(setup["threads"])
        self.database = Database(store, Key.of(self.target))
        self.cost_model = space.cost_model(self.threads)
        self.tasks: dict[str, Task] = {}
        self.session = self._session()
        self.spent_trials, self.spent_seconds = store.spent(self.session)
        self.resumed, self.resumed_seconds = self.spent_trials, self.spent_seconds
        self._mark = time.monotonic()
        self._phase = "preparing"

    def _session(self) -> str:
        """Return the name of this search's session: a hash of tasks, key, seed and cluster."""
        tasks = sorted(
            [structural_hash(tvm.ir.load_json(task["plain"])), task["calls"]]
            for task in self.setup["tasks"].values()
        )
        place = self.setup["cluster"]  # times differ between machines
        parts = [tasks, self.database.key.text, self.setup["seed"], place]
        return hashlib.sha256(facts.canonical(parts).encode()).hexdigest()

    def run(self) -> Iterator[dict[str, Any]]:
        """Run all phases; yield the messages of `search`."""
        yield from self._prepare()
        yield from self._spend()
        yield from self._choose()
        yield {"results": {name: self._result(task) for name, task in self.tasks.items()}}

    # Prepare: the reference results of each task, and the time of our own rule.

    def _prepare(self) -> Iterator[dict[str, Any]]:
        for name, task_setup in self.setup["tasks"].items():
            plain = tvm.ir.load_json(task_setup["plain"])
            task = Task(name, task_setup["calls"], plain, task_setup["rule"])
            for trial in self.store.of(self.database.names(plain)).values():
                if trial.session == self.session:
                    task.trials += 1
                    task.rejected.update(filter(None, [trial.rejected.partition(":")[0]]))
            self.tasks[name] = task
        tasks = list(self.tasks.values())
        texts = [task_setup["written"] for task_setup in self.setup["tasks"].values()]
        for number, gate, outcome in self.bench.prepare(texts, self.setup["seed"]):
            task = tasks[number]
            if outcome.kind == OK:
                task.gate, task.notes["gate"] = gate, outcome.value
            else:  # candidates cannot be judged, so the task is not searched and keeps the rule
                task.exhausted = True
                task.notes["gate"] = {"failed": f"{outcome.kind}: {outcome.detail}"}
            yield self._status(task)
        judged = [(task, task.gate) for task in tasks if task.gate is not None]
        rules, gates = [task.rule for task, _ in judged], [gate for _, gate in judged]
        for number, path, outcome in self.bench.measure(rules, gates):
            task, _ = judged[number]
            if outcome.kind == LOST:
                raise TuningError(f"the rules' schedules could not be measured: {outcome.detail}")
            task.rule_library, task.rule_seconds = path, seconds(outcome)
            if task.rule_seconds is None:
                task.notes["rule"] = f"{outcome.kind}: {outcome.detail}"
            task.saw(task.rule_seconds)
            for _, record in self.database.best(task.plain, 1):
                task.saw(_mean(record.run_secs))
            yield self._status(task)

    def _reject(self, name: str, outcome: Outcome) -> None:
        if outcome.kind != LOST:  # a lost candidate may still be correct
            self.store.reject(name, f"{outcome.kind}: {outcome.detail}")

    def _replayed(self, task: Task, record: Any) -> tuple[Any, IRModule] | None:
        """Replay a record's trace on its task; return (trace, module), or None if that fails."""
        schedule = Schedule(task.plain)
        try:
            record.trace.apply_to_schedule(schedule, remove_postproc=False)
            return schedule.trace, self.rules.realised(schedule.mod, self.target)
        except (RuntimeError, ValueError, TypeError):  # TVM's errors for a schedule
            return None

    # Spend the budget.

    def _spend(self) -> Iterator[dict[str, Any]]:
        size = batch_size(self.setup["trials"], max(1, len(self.tasks)))
        self._mark = time.monotonic()
        self._phase = "searching"
        if self._over():
            yield {"said": f"tuned: the budget is spent already: {self._spent_text()}"}
        while not self._over():
            task = pick(self.tasks.values())
            if task is None:
                return
            yield self._status(task)
            yield from self._batch(task, size)

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
        return f"{text}, of {' or '.join(limits)}; a larger budget continues from there"

    def _batch(self, task: Task, size: int) -> Iterator[dict[str, Any]]:
        """Propose one batch of a task's candidates, measure and store them, and learn from them."""
        if task.turns is None:
            task.turns = self._turns(task, size)
        turn = task.turns.popleft()
        proposed = self._proposed(task, turn)
        if proposed:
            task.turns.append(turn)
            yield from self._measured(task, turn, proposed)
        task.exhausted = not task.turns

    def _turns(self, task: Task, size: int) -> deque[Turn]:
        def known() -> list[tuple[Any, Any]]:
            found = []
            for _, record in self.database.best(task.plain, _LEARNED):
                replayed = self._replayed(task, record)
                if replayed is not None:
                    schedule = Schedule(replayed[1])
                    candidate = ms.MeasureCandidate(schedule, record.args_info)
                    found.append((record, candidate))
            return found

        def begin() -> Any:
            seed = self.setup["seed"]
            return space.context(task.plain, self.target, task.name, seed, self.threads)

        evolution = Evolution(begin, known, self.cost_model, size)
        # Half a batch, so that a small budget includes candidates from both sources.
        choices = Choices(task.plain, self.target, max(1, size // 2))
        return deque([Turn(choices), Turn(evolution)])

    def _proposed(self, task: Task, turn: Turn) -> list[Any]:
        try:
            return turn.source.propose()
        except NeedleTVMError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            # TVM cannot search this function; the other sources continue.
            task.notes["ended"] = f"{type(error).__name__}: {error_line(error)}"
            return []

    def _measured(self, task: Task, turn: Turn, proposed: list[Any]) -> Iterator[dict[str, Any]]:
        assert task.gate is not None and task.turns is not None  # otherwise it was not picked
        known, before = self.database.known(task.plain), task.best_seconds
        traces = [trace_text(candidate.sch.trace) for candidate in proposed]
        results: list[Any] = [None] * len(proposed)
        fresh = []
        for number, trace in enumerate(traces):
            if trace in known:  # it was measured before, in any session, and costs nothing
                results[number] = runner_result(known[trace])
            elif trace not in traces[:number]:
                fresh.append(number)
        turn.fruitless = 0 if fresh else turn.fruitless + 1
        if turn.source.endless and turn.fruitless >= _FRUITLESS:
            task.turns.remove(turn)
        if self.setup["trials"] is not None:
            fresh = fresh[: self.setup["trials"] - self.spent_trials]
        modules = [self._compiled(proposed[number].sch.mod) for number in fresh]
        lost: list[str] = []
        gates = [task.gate] * len(fresh)
        for number, path, outcome in self.bench.measure(modules, gates, _SPILLS):
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
        if not self._over():
            turn.source.learn(proposed, results)
        task.learn(before)

    def _compiled(self, module: IRModule) -> str:
        """Return the JSON text of a candidate's module after the rules have realised it."""
        return str(tvm.ir.save_json(self.rules.realised(module, self.target)))

    def _keep(self, task: Task, candidate: Any, outcome: Outcome) -> Any:
        """Store one trial durably and return the result for its source."""
        now = time.monotonic()
        spent, self._mark = now - self._mark, now
        duration = seconds(outcome)
        record = ms.database.TuningRecord(
            candidate.sch.trace,
            ms.database.Workload(task.plain),
            outcome.value["run_secs"] if duration is not None else None,
            self.target,
            candidate.args_info,
        )
        self.database.commit(
            record,
            rejected="" if duration is not None else f"{outcome.kind}: {outcome.detail}",
            session=self.session,
            spent=spent,
        )
        # Another process may spend from the same budget.
        self.spent_trials, self.spent_seconds = self.store.spent(self.session)
        task.trials += 1
        if duration is None:
            task.rejected[outcome.kind] += 1
        task.saw(duration)
        return runner_result(duration)

    # Choose.

    def _choose(self) -> Iterator[dict[str, Any]]:
        self._phase = "comparing with the rules"
        for task in self.tasks.values():
            yield self._status(task)
            if task.gate is not None:
                self._choose_for(task, task.gate)

    def _choose_for(self, task: Task, gate: Path) -> None:
        for name, record in self.database.best(task.plain, _CANDIDATES):
            replayed = self._replayed(task, record)
            if replayed is None:
                self.store.reject(name, "error: its trace cannot be applied")
                continue
            text = tvm.ir.save_json(replayed[1])
            if task.is_promising(_mean(record.run_secs)):
                # Judge again: this library is a new build, not the one that was measured.
                ((_, path, outcome),) = self.bench.measure([text], [gate])
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
            task.notes.update(candidate=text, record=name)
            return

    # Shared by all phases.

    def _status(self, current: Task) -> dict[str, Any]:
        budget_seconds = self.setup["seconds"]
        status = Status(
            best={name: task.best_seconds for name, task in self.tasks.items()},
            trials=self.spent_trials,
            budget_trials=self.setup["trials"],
            seconds=self.spent_seconds - self.resumed_seconds,
            budget_seconds=budget_seconds and max(0.0, budget_seconds - self.resumed_seconds),
            current=current.name,
            phase=self._phase,
            resumed=self.resumed,
        )
        return {"status": vars(status)}

    def _result(self, task: Task) -> dict[str, Any]:
        return {
            "task": task.name,
            "calls": task.calls,
            "trials": task.trials,
            "rejected": dict(task.rejected),
            "rule_seconds": task.rule_seconds,
            "best_seconds": task.best_seconds,
            "candidates": self._candidates(task),
            "chosen": RULE,
            "candidate": None,
            **task.notes,
            "reason": task.reason(_WORTH_IT),
        }

    def _candidates(self, task: Task) -> list[dict[str, Any]]:
        """Return source, record and seconds of the rule and of the fastest correct candidates."""
        found = [{"source": RULE, "record": None, "seconds": task.rule_seconds}]
        for name, record in self.database.best(task.plain, _TOLD):
            seconds = _mean(record.run_secs)
            found.append({"source": SEARCH, "record": name, "seconds": seconds})
        return found


def _mean(run_secs: Any) -> float | None:
    return facts.mean_seconds([float(seconds) for seconds in run_secs or ()])
