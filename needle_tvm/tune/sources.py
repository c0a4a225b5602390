"""Who proposes a task's candidates: our rules' knobs one by one, and TVM's evolution.

A source is asked for a batch at a time, and told what came of it. The sources of a task take turns:
what our rules were made for is tried early, and a small budget is not spent on it alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from needle_tvm._tvm.names import IRModule, Target, ms
from needle_tvm.kernels.kinds import rules_of


class Source(Protocol):
    """`propose` gives meta_schedule's MeasureCandidates, none where there are no more; `learn` is
    told the RunnerResult of each, None where it was not tried. An `endless` one never says that
    there are no more: it may propose what is known already again and again."""

    endless: bool

    def propose(self) -> list[Any]: ...

    def learn(self, proposed: Sequence[Any], results: Sequence[Any]) -> None: ...


@dataclass
class Turn:
    """A source among those of a task; `fruitless` counts its batches with nothing new in a row."""

    source: Source
    fruitless: int = 0


class Choices:
    """What our rules make of a function with other knobs than their own, `size` at a time."""

    endless = False

    def __init__(self, module: IRModule, target: Target, size: int) -> None:
        arguments = ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
        self._left = (
            ms.MeasureCandidate(schedule, arguments)
            for schedule in rules_of(target).choices(module["main"], target)
        )
        self._size = size

    def propose(self) -> list[Any]:
        """The next ones, in the order of the rules."""
        return list(itertools.islice(self._left, self._size))

    def learn(self, proposed: Sequence[Any], results: Sequence[Any]) -> None:
        """Nothing: the order stays."""


class Evolution:
    """TVM's evolutionary search over a context's space, sorted by a cost model.

    `begin` makes the context, and `known` candidates with their results that the model learns from
    beforehand: both when they are first needed. `propose` raises what TVM raises of a function that
    it cannot search.
    """

    endless = True

    def __init__(
        self,
        begin: Callable[[], Any],
        known: Callable[[], Sequence[tuple[Any, Any]]],
        cost_model: Any,
        database: Any,
        size: int,
    ) -> None:
        self._begin, self._known = begin, known
        self._model, self._database, self._size = cost_model, database, size
        self._context: Any = None

    def _prepare(self) -> None:
        context = self._begin()
        context.pre_tuning(
            max_trials=1 << 30,  # the budget is the search's to keep
            num_trials_per_iter=self._size,
            design_spaces=context.generate_design_space(),
            database=self._database,
            cost_model=self._model,
        )
        self._context = context
        known = self._known()
        if known:
            candidates, results = zip(*known, strict=True)
            self._model.update(context, list(candidates), list(results))

    def propose(self) -> list[Any]:
        """The next generation's most promising ones."""
        if self._context is None:
            self._prepare()
        return list(self._context.generate_measure_candidates() or [])

    def learn(self, proposed: Sequence[Any], results: Sequence[Any]) -> None:
        """Teach the model what ran, and let the evolution go on from it."""
        ran = [i for i, result in enumerate(results) if result is not None and result.run_secs]
        if ran:
            self._model.update(self._context, [proposed[i] for i in ran], [results[i] for i in ran])
        told = [runner_result(None) if result is None else result for result in results]
        self._context.notify_runner_results(list(proposed), told)


def runner_result(taken: float | None) -> Any:
    """TVM's RunnerResult of a candidate that took so long, or did not work."""
    if taken is None:
        return ms.runner.RunnerResult(None, "rejected")
    return ms.runner.RunnerResult([taken], None)
