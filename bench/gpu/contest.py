"""A contest on a GPU: what fails or is wrong is left out by name, and the rest is timed.

Everything lies on the device already and stays there; each call is waited for. Blocks alternate, a
process for each contestant (needle_tvm.process.timing).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import contests
from bench.gpu.settings import Settings
from needle_tvm.process import timing
from needle_tvm.words import error_line

# Bits of an operand's significand. Sums are float32 everywhere.
BITS = {"float32": 24, "float16": 11, "tf32": 11, "bfloat16": 8}

# How far a result may be from the one in float64, relative to its largest magnitude. This tells a
# wrong set-up from rounding, no more: thirty-two roundings of an operand, as a model of ten layers
# has a few in each; float32 is let off with sums in any order over some thousand terms.
TOLERANCES = {name: 1e-4 if name == "float32" else 32.0 * 2.0**-bits for name, bits in BITS.items()}

_IDLE_SECONDS = 0.03  # between blocks: launching leaves no threads that spin
_WARM_SECONDS = 0.25
_LEAST_SECONDS = 15.0  # a contest is not begun anew with less


@dataclass(frozen=True)
class Entry:
    """A contestant, what it computes in, and whether it is needle's."""

    contestant: timing.Contestant
    precision: str = "float32"
    ours: bool = False

    @property
    def name(self) -> str:
        return self.contestant.name


def run(
    entries: Sequence[Entry], exact: Sequence[np.ndarray] | None, settings: Settings
) -> dict[str, Any]:
    """As JSON values: `contestants`, each with its times in seconds per call, its precision and,
    with `exact` (the results in float64), its error; `failed`, why others have none, by name.

    Raises TimingError where nothing is left to time, or no time.
    """
    failed: dict[str, str] = {}
    while True:
        standing = [entry for entry in entries if entry.name not in failed]
        try:
            results = timing.contest(
                [entry.contestant for entry in standing],
                rounds=settings.rounds,
                block_seconds=settings.block_seconds,
                idle_seconds=_IDLE_SECONDS,
                warmup_seconds=_WARM_SECONDS,
                timeout=max(settings.left, 1.0),
            )
            break
        except timing.TimingError as error:
            others = [entry for entry in standing if entry.name != error.child]
            if len(others) == len(standing) or not others or settings.left < _LEAST_SECONDS:
                raise
            failed[error.child] = error_line(error).removeprefix(f"{error.child}: ")
    found = []
    for entry, result in zip(standing, results, strict=True):
        told: dict[str, Any] = {"name": entry.name, "ours": entry.ours}
        told["precision"] = entry.precision
        if exact is not None:
            tolerance = TOLERANCES[entry.precision]
            worst = _error(exact, result.outputs)
            if not worst <= tolerance:
                size = f"{worst:.1e} of its largest value" if math.isfinite(worst) else "no number"
                failed[entry.name] = f"wrong: its error is {size}, {tolerance:.1e} is allowed"
                continue  # the speed of a wrong answer is of no use
            told |= {"error": worst, "tolerance": tolerance}
        found.append({**told, **result.to_dict()})
    return {"contestants": found, "failed": failed}


def _error(exact: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
    """The largest error; infinite where it is unbounded or the outputs are not of that kind."""
    if len(exact) != len(outputs):
        return math.inf
    error = contests.worst_error(exact, outputs)
    return math.inf if error is None else error


def gather(found: Mapping[str, Any], failed: Mapping[str, str]) -> dict[str, Any]:
    """A contest's result with what failed before it."""
    return {**found, "failed": {**failed, **found["failed"]}}
