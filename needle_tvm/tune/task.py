"""The state of one function during a search; `search.Search` keeps one `Task` per function."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from needle_tvm._tvm.names import IRModule
from needle_tvm.tune import budget
from needle_tvm.tune.sources import Turn
from needle_tvm.tune.status import TaskStatus

RULE, SEARCH = "rule", "search"  # the source of the chosen schedule

_NEAR = 1.03  # factor on the rule's time: measurements minutes apart differ by that much


@dataclass
class Task:
    """One function to be tuned.

    `gate` is the folder with the reference results, or None if there are none. `turns` are the
    sources of its candidates, None before the first batch.
    """

    name: str
    calls: int
    plain: IRModule
    rule: str
    share: budget.Share
    gate: Path | None = None
    turns: deque[Turn] | None = None
    trials: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    best_seconds: float | None = None
    rule_seconds: float | None = None
    rule_library: Path | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def saw(self, seconds: float | None) -> None:
        """Take in the time of a correct candidate; None for one that did not run."""
        if seconds is not None:
            best = self.best_seconds
            self.best_seconds = seconds if best is None else min(best, seconds)

    def is_promising(self, seconds: float | None) -> bool:
        """Whether a candidate that took this long may be faster than the rule."""
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
            return "there is nothing to judge candidates by"
        if "record" in self.notes:
            return "the best candidate alone is slower than the rule"
        return "no candidate gave right results"

    @property
    def status(self) -> TaskStatus:
        """The task's progress, for display."""
        return TaskStatus(
            self.name,
            self.calls,
            trials=self.trials,
            rejected=self.rejected,
            best=self.best_seconds,
            rule=self.rule_seconds,
        )
