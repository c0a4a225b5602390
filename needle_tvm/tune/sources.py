"""Sources of a task's candidates: our rules' knobs one by one, and TVM's evolutionary search.

`search.Search` asks a source for one batch at a time and reports the results. A task's sources take
turns, so that the knobs of our rules are tried early but do not use up a small budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from needle_tvm._tvm.names import IRModule, Target, ms
from needle_tvm.kernels.knob_candidates import is_noted
from needle_tvm.kernels.search_interface import rules_of
from needle_tvm.tune.records.database import trace_text


class Source(Protocol):
    """A source of candidates, asked for one batch at a time.

    `propose` returns MeasureCandidates of meta_schedule; the list is empty if there are no more.
    `learn` receives the RunnerResult of each, or None for a candidate that was not tried. An
    `endless` source never runs out: it may propose known candidates again and again.
    """

    endless: bool

    def propose(self) -> list[Any]: ...

    def learn(self, proposed: Sequence[Any], results: Sequence[Any]) -> None: ...


@dataclass
class Turn:
    """One of a task's sources. `fruitless` counts its latest batches without a new candidate."""

    source: Source
    fruitless: int = 0


class Choices:
    """Schedules made by our rules with non-default values of the knobs, `size` at a time."""

    endless = False

    def __init__(self, module: IRModule, target: Target, size: int) -> None:
        arguments = ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
        self._left = (
            ms.MeasureCandidate(schedule, arguments)
            for schedule in rules_of(target).choices(module["main"], target)
        )
        self._size = size

    def propose(self) -> list[Any]:
        """Return the next schedules, in the order of the rules."""
        return list(itertools.islice(self._left, self._size))

    def learn(self, proposed: Sequence[Any], results: Sequence[Any]) -> None:
        """Do nothing: the order is fixed."""


class Evolution:
    """TVM's evolutionary search over a context's space, ranked by a cost model.

    `begin` creates the context. `known` returns earlier TuningRecords, each with its candidate. The
    model learns from all of them; the evolution starts from those that hold a schedule and not just
    a note of knob values. Both functions are called when they are first needed. `propose` raises
    TVM's errors for a function that TVM cannot search.
    """

    endless = True

    def __init__(
        self,
        begin: Callable[[], Any],
        known: Callable[[], Sequence[tuple[Any, Any]]],
        cost_model: Any,
        size: int,
    ) -> None:
        self._begin, self._known = begin, known
        self._model, self._size = cost_model, size
        self._database = ms.database.MemoryDatabase()
        self._added: set[str] = set()  # traces in the database
        self._context: Any = None

    def _prepare(self) -> None:
        context = self._begin()
        known = self._known()
        self._workload = self._database.commit_workload(context.mod)
        for record, _ in known:
            self._add(record.trace, record.args_info, record.run_secs)
        context.pre_tuning(
            max_trials=1 << 30,  # the search enforces the budget
            num_trials_per_iter=self._size,
            design_spaces=context.generate_design_space(),
            database=self._database,
            cost_model=self._model,
        )
        self._context = context
        if known:
            results = [ms.runner.RunnerResult(record.run_secs, None) for record, _ in known]
            self._model.update(context, [candidate for _, candidate in known], results)

    def _add(self, trace: Any, arguments: Any, run_secs: Any) -> None:
        """Add to the evolution's parents a schedule that has been run, unless it only notes the
        values of knobs."""
        text = trace_text(trace)
        if text not in self._added and not is_noted(text):
            self._added.add(text)
            self._database.commit_tuning_record(
                ms.database.TuningRecord(trace, self._workload, run_secs, None, arguments)
            )

    def propose(self) -> list[Any]:
        """Return the most promising candidates of the next generation."""
        if self._context is None:
            self._prepare()
        return list(self._context.generate_measure_candidates() or [])

    def learn(self, proposed: Sequence[Any], results: Sequence[Any]) -> None:
        """Train the model on the candidates that ran, and continue the evolution from them."""
        ran = [i for i, result in enumerate(results) if result is not None and result.run_secs]
        if ran:
            self._model.update(self._context, [proposed[i] for i in ran], [results[i] for i in ran])
        for i in ran:
            self._add(proposed[i].sch.trace, proposed[i].args_info, results[i].run_secs)
        told = [runner_result(None) if result is None else result for result in results]
        self._context.notify_runner_results(list(proposed), told)


def runner_result(taken: float | None) -> Any:
    """Return TVM's RunnerResult for a candidate that took `taken` seconds (None: it failed)."""
    if taken is None:
        return ms.runner.RunnerResult(None, "rejected")
    return ms.runner.RunnerResult([taken], None)
