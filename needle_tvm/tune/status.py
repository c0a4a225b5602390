"""The progress of a running search.

`search` sends it from its process, `session` passes it to the caller's `progress`, and the
command-line tools display it. This module imports no TVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from needle_runtime.text import counted, digits

SEARCHING = "searching"  # the phase in which the budget is spent

_NAME_WIDTH = 36  # the most characters of a task's name


@dataclass(frozen=True)
class Status:
    """The progress of a search.

    `best` has each kernel's seconds per call with the fastest known schedule, which may be the
    rule's, or None. `trials` counts all candidates, including `resumed` ones from earlier runs.
    `seconds` is the time that this run has spent, and `budget_seconds` the time that it may spend.
    A budget is None if there is no such limit. `current` names the kernel that is being tuned, and
    `phase` the current step. `str()` is one line.
    """

    best: Mapping[str, float | None]
    trials: int
    budget_trials: int | None
    seconds: float
    budget_seconds: float | None = None
    current: str | None = None
    resumed: int = 0
    phase: str = SEARCHING

    @property
    def left(self) -> float | None:
        """Estimated seconds until either budget is spent, or None if no estimate is possible.

        A trial is assumed to take as long as this run's average so far.
        """
        estimates = []
        done = self.trials - self.resumed
        if self.budget_trials is not None and self.trials >= self.budget_trials:
            estimates.append(0.0)
        elif self.budget_trials is not None and done > 0:
            estimates.append((self.budget_trials - self.trials) * self.seconds / done)
        if self.budget_seconds is not None:
            estimates.append(max(self.budget_seconds - self.seconds, 0.0))
        return min(estimates, default=None)

    @property
    def spent(self) -> float | None:
        """The spent fraction, 0 to 1, of the budget that is closer to being spent; None without a
        budget."""
        parts = []
        if self.budget_trials is not None:
            parts.append(self.trials / self.budget_trials if self.budget_trials > 0 else 1.0)
        if self.budget_seconds is not None:
            parts.append(self.seconds / self.budget_seconds if self.budget_seconds > 0 else 1.0)
        return min(max(parts), 1.0) if parts else None

    def __str__(self) -> str:
        if self.current is None:
            return self.headline
        text = f"{self.headline}; {shortened(self.current, _NAME_WIDTH)}"
        taken = self.best.get(self.current)
        return text if taken is None else f"{text} {digits(1e6 * taken)} us"

    @property
    def headline(self) -> str:
        """The current step, as in "tuned: preparing" or "tuned: 37 of 256 trials, 0:12, 1:20
        left"."""
        return f"tuned: {self.describe() if self.phase == SEARCHING else self.phase}"

    def describe(self) -> str:
        """Return trials and times, as in "37 of 256 trials, 0:12, 1:20 left"."""
        text = counted(self.trials, "trial")
        if self.budget_trials is not None:
            text = f"{self.trials:,} of {counted(self.budget_trials, 'trial')}"
        if self.resumed:
            text += f" ({self.resumed} resumed)"
        text += f", {clock(self.seconds)}"
        return text if self.left is None else f"{text}, {clock(self.left)} left"


def clock(seconds: float) -> str:
    """Format seconds as 0:12, 1:20 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shortened(name: str, width: int) -> str:
    """Shorten a function's name to at most `width` characters: its beginning, ".." and its end.

    The prefix "fused_", which most names share, is dropped first.
    """
    if len(name) <= width:
        return name
    name = name.removeprefix("fused_")
    if len(name) <= width:
        return name
    tail = (width - 2) // 2
    return f"{name[: width - 2 - tail]}..{name[-tail:]}"
