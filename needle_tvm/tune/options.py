"""The options of a search: its budget, its seed, and where candidates are measured.

`compiler.request` builds an `Options` from the arguments of `compile`, and `session` uses it. This
module imports no TVM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from needle_tvm.errors import StageError
from needle_tvm.stages import STAGES


@dataclass(frozen=True)
class Options:
    """The options of one model's search. Its budget is in trials, in minutes, or in both; with
    both, the search ends when either is spent.

    Without a budget, there is no search. `seed` decides which candidates are drawn. `cluster`,
    if given, is the address of a Dask scheduler ("tcp://HOST:PORT"), whose workers then measure the
    candidates instead of this machine. The budget belongs to the model: the trials and seconds of
    an interrupted search count towards it (see `session`).
    """

    trials: int = 0
    minutes: float | None = None
    seed: int = 0
    cluster: str | None = None

    @property
    def searches(self) -> bool:
        """Whether there is a budget."""
        return bool(self.trials) or self.minutes is not None

    @property
    def seconds(self) -> float | None:
        """The time budget in seconds, or None if there is none."""
        return None if self.minutes is None else 60.0 * self.minutes

    def check(self, stage: str) -> None:
        """Raise StageError unless `stage` exists and the options fit the stage and one another."""
        if stage not in STAGES:
            raise StageError(f"stage {stage!r}: must be one of {', '.join(STAGES)}")
        if not _is_integer(self.trials) or self.trials < 0:
            raise StageError(f"trials={self.trials!r}: must be an integer of at least 0")
        if not _is_integer(self.seed) or not 0 <= self.seed < 2**30:
            raise StageError(f"seed={self.seed!r}: must be an integer from 0 to 2**30 - 1")
        minutes = self.minutes
        if minutes is not None and not (_is_number(minutes) and 0 < minutes < math.inf):
            raise StageError(f"minutes={minutes!r}: must be a number above 0")
        cluster = self.cluster
        if cluster is not None and not (isinstance(cluster, str) and cluster):
            raise StageError(f"cluster={cluster!r}: must be a scheduler's address, or None")
        if self.searches and stage != STAGES[-1]:
            budget = f"minutes={minutes!r}" if minutes is not None else f"trials={self.trials}"
            raise StageError(f"{budget}: only stage 'tuned' searches, not {stage!r}")
        if cluster is not None and not self.searches:
            raise StageError(f"cluster={cluster!r}: needs a budget: give trials or minutes")

    def cache_key(self) -> dict[str, Any]:
        """Return the options that decide which code is generated."""
        names = ("trials", "minutes", "seed", "cluster")
        return {name: getattr(self, name) for name in names}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
