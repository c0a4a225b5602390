"""The lines of a record store. Each states one fact, whose SHA-256 protects and names the line.

A line is a JSON object with a fact, under the fact's kind, and the SHA-256 of the fact:

    {"trial": {"kernel": ..., "trace": ..., "run_secs": [...], ...}, "sha256": "..."}

A fact stays true, so a merged store has the lines of both stores.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

FORMAT = 2
HEAD = {"format": FORMAT}

_FAILED_SECONDS = 1e9  # meta_schedule writes 1e10 for a candidate that did not run


@dataclass(frozen=True)
class Kernel:
    """A function to tune, under one key.

    `module` is the unscheduled function as TVM's JSON text, `structural_hash` is TVM's hash of it,
    and `key` is the canonical JSON of target, versions and pass configuration (`keys.Key`).
    """

    kind: ClassVar[str] = "kernel"
    structural_hash: str
    key: str
    module: str


@dataclass(frozen=True)
class Trial:
    """A measured and judged candidate for the kernel named `kernel`.

    `trace`, `run_secs` and `args_info` are JSON text as TVM writes it. `rejected` is the reason why
    the candidate must not be used, as in "crash: ended by SIGSEGV", or empty for a correct one.
    `session` names the budget that paid for the trial, and `spent` is its cost in seconds.
    `measured_at` is UTC in ISO 8601. Raises ValueError if `spent` is negative or not finite.
    """

    kind: ClassVar[str] = "trial"
    kernel: str
    trace: str
    run_secs: str
    args_info: str
    rejected: str
    session: str
    spent: float
    measured_at: str
    host: str

    def __post_init__(self) -> None:
        if not 0 <= self.spent < math.inf:
            raise ValueError(f"spent={self.spent!r}: must be finite and at least 0")

    @property
    def seconds(self) -> float | None:
        """The mean seconds of a call, or None if the candidate did not run."""
        return mean_seconds(json.loads(self.run_secs))


@dataclass(frozen=True)
class Rejection:
    """A later verdict: the trial named `trial` must not be used, for this `reason`."""

    kind: ClassVar[str] = "rejection"
    trial: str
    reason: str
    decided_at: str
    host: str


Line = Kernel | Trial | Rejection
L = TypeVar("L", bound=Line)
KINDS: dict[str, type[Line]] = {kind.kind: kind for kind in (Kernel, Trial, Rejection)}


def name(line: Line) -> str:
    """Return a line's name, the SHA-256 of its contents in hexadecimal."""
    return _digest(_contents(line))


def text(contents: Line | Mapping[str, Any]) -> bytes:
    """Return a line as it is stored, with its SHA-256 and the newline."""
    if not isinstance(contents, Mapping):
        contents = _contents(contents)
    return (canonical({**contents, "sha256": _digest(contents)}) + "\n").encode()


def read(stored: bytes) -> tuple[str, Line | Mapping[str, Any]] | None:
    """Return the name and the contents of a stored line, or None if the line is damaged.

    The contents are a mapping if the line is of no known kind, like a store's first line.
    """
    try:
        contents = json.loads(stored)
        digest = contents.pop("sha256")
        if _digest(contents) != digest:
            return None
        if len(contents) == 1 and (kind := KINDS.get(*contents)) is not None:
            return digest, kind(**contents[kind.kind])
        return digest, contents
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _contents(line: Line) -> dict[str, Any]:
    return {line.kind: dataclasses.asdict(line)}


def _digest(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(contents).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Return JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def mean_seconds(run_secs: Sequence[float] | None) -> float | None:
    """Return the mean of a candidate's run times, or None if it did not run."""
    if not run_secs:
        return None
    mean = math.fsum(run_secs) / len(run_secs)
    return mean if 0 <= mean < _FAILED_SECONDS else None
