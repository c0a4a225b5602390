"""Decide which task gets the next trials. Pure arithmetic; imports no TVM.

`search.Search` keeps a `Share` per task and asks `pick` before each batch. The idea is the gradient
scheduler of L. Zheng et al., "Ansor: generating high-performance tensor programs for deep learning"
(OSDI 2020), section 6: spend where the whole model's time falls fastest. A task's past batches tell
how much of its time one batch saves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_PRIOR = 0.2  # fraction of a task's time that its first batch is expected to save
_LEAST = 0.01  # lower bound of that fraction: no task is given up for good
# Trials measured before the cost model learns from them. Proposing a batch takes as long as
# measuring a few of its candidates, so small batches are expensive.
_SMALLEST, _LARGEST = 8, 16


@dataclass
class Share:
    """One task's claim on the budget.

    `calls` is how often one inference runs it, and `best` (seconds) is the fastest correct
    candidate so far, including the rule, or None if there is none. `saving` is the fraction of that
    time which the next batch is expected to save.
    """

    calls: int
    best: float | None = None
    saving: float = _PRIOR
    exhausted: bool = False

    @property
    def gain(self) -> float:
        """Seconds per inference that the next batch is expected to save."""
        if self.best is None:
            return math.inf
        return self.calls * self.best * self.saving

    def learn(self, best: float | None) -> None:
        """Update the claim after one batch; `best` is the fastest time after it."""
        saved = 0.0
        if best is not None and self.best is not None:
            saved = max(0.0, 1 - best / self.best)
        self.saving = max(_LEAST, (self.saving + saved) / 2)
        if best is not None:
            self.best = best if self.best is None else min(self.best, best)


def pick(shares: Iterable[tuple[str, Share]]) -> str | None:
    """Return the task whose next batch is expected to save most, or None if all are exhausted."""
    open_ones = [(share.gain, name) for name, share in shares if not share.exhausted]
    return max(open_ones)[1] if open_ones else None


def batch_size(trials: int | None, tasks: int) -> int:
    """Return the candidates per batch for `trials` (None: no limit) spread over `tasks` tasks."""
    if trials is None:
        return _LARGEST
    return min(trials, max(_SMALLEST, min(_LARGEST, 2 * trials // tasks)))
