"""The progress of a running search: as one line, and as JSON.

`search` sends it from its process, `session` passes it to the caller's `progress`, and the command
lines display it. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from needle_tvm.text import counted, digits

SEARCHING = "searching"  # the phase in which the budget is spent

_NAME_WIDTH = 36  # most characters of a task's name


@dataclass
class TaskStatus:
    """The progress of one kernel's search.

    `calls` is how often one inference calls it. `trials` counts candidates, and `rejected` counts
    the failed ones by kind. `best` is the seconds per call of the fastest verified candidate and
    `rule` those of our schedule rule, None if not measured yet.
    """

    name: str
    calls: int
    trials: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    best: float | None = None
    rule: float | None = None

    def __post_init__(self) -> None:
        # So that a status read back from JSON equals the one sent.
        self.rejected = Counter(dict(self.rejected))

    @property
    def seconds(self) -> float | None:
        """Seconds per call of the fastest known schedule, including the rule's."""
        return min((s for s in (self.best, self.rule) if s is not None), default=None)


@dataclass(frozen=True)
class Status:
    """The progress of a search.

    `trials` counts all candidates, including the `resumed` ones that an earlier run spent.
    `seconds` is what this run has spent, and `budget_seconds` what it may spend. A budget is None
    if it has no limit of its kind. `current` names the task being tuned, and `phase` the current
    step. `str()` is one line.
    """

    tasks: Sequence[TaskStatus]
    trials: int
    budget_trials: int | None
    seconds: float
    budget_seconds: float | None = None
    current: str | None = None
    resumed: int = 0
    phase: str = SEARCHING

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))

    @property
    def task(self) -> TaskStatus | None:
        """The task being tuned."""
        return next((task for task in self.tasks if task.name == self.current), None)

    @property
    def left(self) -> float | None:
        """Estimated seconds until the first budget is spent, or None if there is no basis for one.

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
        """The fraction of the budget spent, 0 to 1, for whichever budget is nearer its end."""
        parts = []
        if self.budget_trials is not None:
            parts.append(self.trials / self.budget_trials if self.budget_trials > 0 else 1.0)
        if self.budget_seconds is not None:
            parts.append(self.seconds / self.budget_seconds if self.budget_seconds > 0 else 1.0)
        return min(max(parts), 1.0) if parts else None

    def __str__(self) -> str:
        text = self.headline
        if (task := self.task) is None:
            return text
        text += f"; {shortened(task.name, _NAME_WIDTH)}"
        if task.seconds is not None:
            text += f" {digits(1e6 * task.seconds)} us"
        return text

    @property
    def headline(self) -> str:
        """The current step: "tuned: preparing", "tuned: 37 of 256 trials, 0:12, 1:20 left"."""
        return f"tuned: {self.describe() if self.phase == SEARCHING else self.phase}"

    def describe(self) -> str:
        """Return trials and times: "37 of 256 trials, 0:12, 1:20 left"."""
        text = counted(self.trials, "trial")
        if self.budget_trials is not None:
            text = f"{self.trials:,} of {counted(self.budget_trials, 'trial')}"
        if self.resumed:
            text += f" ({self.resumed} resumed)"
        text += f", {clock(self.seconds)}"
        return text if self.left is None else f"{text}, {clock(self.left)} left"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for `from_json`."""
        tasks = [{**vars(task), "rejected": dict(task.rejected)} for task in self.tasks]
        return {**vars(self), "tasks": tasks}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Status:
        """Build a status from `to_json`'s values."""
        return cls(**{**value, "tasks": [TaskStatus(**task) for task in value["tasks"]]})


def summary(notes: Sequence[Mapping[str, Any]]) -> str:
    """Return one line about a search's results, from the manifest's `tuning` notes."""
    taken = [note for note in notes if note["chosen"] == "search"]
    tried = sum(note["trials"] for note in notes)
    rejected = sum(sum(note["rejected"].values()) for note in notes)
    text = f"{counted(tried, 'trial')} over {counted(len(notes), 'kernel')}, {rejected} rejected: "
    text += f"{len(taken)} faster than our rules"
    gains = sorted(note["speedup"] for note in taken if note.get("speedup"))
    return f"{text} ({gains[0]:.2f} to {gains[-1]:.2f} times)" if gains else text


def clock(seconds: float) -> str:
    """Format seconds as 0:12, 1:20 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shortened(name: str, width: int) -> str:
    """Shorten a function's name to at most `width` characters: its beginning, ".." and its end.

    "fused_", which begins most names and says least, is dropped first.
    """
    if len(name) <= width:
        return name
    name = name.removeprefix("fused_")
    if len(name) <= width:
        return name
    tail = (width - 2) // 2
    return f"{name[: width - 2 - tail]}..{name[-tail:]}"
