"""The state of one function during a search; `search.Search` keeps one `Task` per function.

`pick` chooses the function that gets the next trials. The idea is that of the gradient scheduler in
L. Zheng et al., "Ansor: generating high-performance tensor programs for deep learning" (OSDI 2020),
section 6: spend trials where the whole model's time falls fastest, judging by each task's past
batches.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from needle_tvm._tvm.names import IRModule
from needle_tvm.tune.sources import Turn

RULE, SEARCH = "rule", "search"  # the source of the chosen schedule

_NEAR = 1.03  # factor on the rule's time; measurements a few minutes apart differ by that much
_PRIOR = 0.2  # fraction of a task's time that its first batch is expected to save
_LEAST = 0.01  # lower bound on that fraction, so that no task is ever given up
# Trials in a batch. The cost model learns after each batch, but proposing a batch takes as long as
# measuring a few candidates, so small batches are expensive.
_SMALLEST, _LARGEST = 8, 16


@dataclass
class Task:
    """One function to be tuned.

    `calls` is the number of its calls per inference. `gate` is the folder with the reference
    results, or None if there are none. `turns` are the sources of its candidates (None before the
    first batch), and `exhausted` says that there will be no more. `best_seconds` is the time of the
    fastest correct schedule, which may be the rule's, and `saving` is the fraction of this time
    that the next batch is expected to save.
    """

    name: str
    calls: int
    plain: IRModule
    rule: str
    gate: Path | None = None
    turns: deque[Turn] | None = None
    trials: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    exhausted: bool = False
    saving: float = _PRIOR
    best_seconds: float | None = None
    rule_seconds: float | None = None
    rule_library: Path | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def saw(self, seconds: float | None) -> None:
        """Record the time of a candidate, or None if it did not run or was wrong."""
        if seconds is not None:
            best = self.best_seconds
            self.best_seconds = seconds if best is None else min(best, seconds)

    @property
    def gain(self) -> float:
        """Seconds per inference that the next batch is expected to save."""
        return (
            math.inf if self.best_seconds is None else self.calls * self.best_seconds * self.saving
        )

    def learn(self, before: float | None) -> None:
        """Record how much a batch has saved; `before` is the best time before it."""
        saved = 0.0
        if before is not None and self.best_seconds is not None:
            saved = max(0.0, 1 - self.best_seconds / before)
        self.saving = max(_LEAST, (self.saving + saved) / 2)

    def is_promising(self, seconds: float | None) -> bool:
        """Return whether a candidate that took this long may be faster than the rule."""
        if self.rule_seconds is None or seconds is None:
            return seconds is not None
        return seconds <= _NEAR * self.rule_seconds

    def reason(self, worth_it: float) -> str:
        """Say why the noted choice was made; `worth_it` is the speedup a candidate needs."""
        speedup = self.notes.get("speedup")
        if speedup is not None:
            how = f"{speedup:.3f} times as fast as the rule in alternating blocks"
            return how if speedup >= worth_it else f"the best candidate is {how}"
        if self.notes.get("chosen") == SEARCH:
            return "the rule does not run here"
        if self.gate is None:
            return "there are no reference results to judge candidates by"
        if "record" in self.notes:
            return "the best candidate alone is slower than the rule"
        return "no candidate gave right results"


def pick(tasks: Iterable[Task]) -> Task | None:
    """Return the task whose next batch is expected to save the most, or None if all tasks are
    exhausted."""
    return max((t for t in tasks if not t.exhausted), key=lambda t: (t.gain, t.name), default=None)


def batch_size(trials: int | None, tasks: int) -> int:
    """Return the number of candidates per batch if `trials` (None: no limit) are spread over
    `tasks` tasks."""
    if trials is None:
        return _LARGEST
    return min(trials, max(_SMALLEST, min(_LARGEST, 2 * trials // tasks)))
