"""What a store holds: rows, each named by the SHA-256 of its table and its values.

A row says one thing that stays true (this workload exists; this trace took so long; this record
was judged so), so that two stores are merged by taking the rows of both. The name makes every row
its own check: one whose values no longer give its name is damaged and is never served.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

# What is known of a record, in the order in which it overrules: one `rejected` verdict outweighs
# any `gated` one, whichever was written or merged first.
MEASURED, GATED, REJECTED = STATES = ("measured", "gated", "rejected")

# Who proposed a candidate: the search, a schedule rule, or the record of a near shape.
SOURCES = ("search", "rule", "seed")

_FAILED_SECONDS = 1e9  # meta_schedule writes 1e10 for a candidate that did not run


@dataclass(frozen=True)
class Module:
    """The unscheduled function as TVM's JSON text."""

    table: ClassVar[str] = "modules"
    text: str


@dataclass(frozen=True)
class KeyRow:
    """Target, versions and pass configuration as canonical JSON; see `keys.Key`."""

    table: ClassVar[str] = "keys"
    text: str


@dataclass(frozen=True)
class Workload:
    """What is tuned: `module` and `key` are names of rows."""

    table: ClassVar[str] = "workloads"
    structural_hash: str
    module: str
    key: str


@dataclass(frozen=True)
class Record:
    """One measurement of one schedule of the workload named `workload`.

    `trace`, `run_secs` and `args_info` are JSON as TVM writes them. `seconds` is the mean of
    `run_secs`, None where the candidate did not run. `measured_at` (UTC, ISO 8601) and `host` are
    empty for what was imported from files that do not tell.
    """

    table: ClassVar[str] = "records"
    workload: str
    trace: str
    run_secs: str
    args_info: str
    seconds: float | None
    measured_at: str
    host: str


@dataclass(frozen=True)
class Verdict:
    """What a check found of the record named `record`: `state` is one of STATES."""

    table: ClassVar[str] = "verdicts"
    record: str
    state: str
    decided_at: str
    host: str
    detail: str


@dataclass(frozen=True)
class Trial:
    """What the tuning session named `session` (hex digits) spent on the record named `record`.

    `seconds` is what it took of the session's budget; `source` is one of SOURCES. Raises ValueError
    on other values.
    """

    table: ClassVar[str] = "trials"
    session: str
    record: str
    seconds: float
    source: str

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{8,64}", self.session):
            raise ValueError(f"session {self.session!r}: must be 8 to 64 hex digits")
        if not isinstance(self.seconds, float) or not 0 <= self.seconds < math.inf:
            raise ValueError(f"seconds {self.seconds!r}: must be a float from 0, and finite")
        if self.source not in SOURCES:
            raise ValueError(f"source {self.source!r}: must be one of {', '.join(SOURCES)}")


Row = Module | KeyRow | Workload | Record | Verdict | Trial
R = TypeVar("R", bound=Row)
KINDS: tuple[type[Row], ...] = (Module, KeyRow, Workload, Record, Verdict, Trial)
COLUMNS = {kind.table: tuple(f.name for f in dataclasses.fields(kind)) for kind in KINDS}


def values(row: Row) -> tuple[Any, ...]:
    """The row's values in the order of its columns."""
    return tuple(getattr(row, name) for name in COLUMNS[row.table])


def name(row: Row) -> str:
    """The row's name: hex SHA-256 of its table and values."""
    return _digest(row.table, values(row))


def _digest(table: str, row: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps([table, *row]).encode()).hexdigest()


def verified(kind: type[R], stored: Sequence[Any]) -> R | None:
    """The row of this kind stored as (name, value, ...), None where it is damaged."""
    digest, *cells = stored
    if len(cells) != len(COLUMNS[kind.table]):
        return None
    try:
        if _digest(kind.table, cells) != digest:
            return None
        return kind(*cells)
    except (TypeError, ValueError):  # bytes, text that is no Unicode, or no value of this kind
        return None


def canonical(value: Any) -> str:
    """JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def mean_seconds(run_secs: Sequence[float] | None) -> float | None:
    """Mean of a candidate's run times; None where it did not run."""
    if not run_secs:
        return None
    mean = math.fsum(run_secs) / len(run_secs)
    return mean if 0 <= mean < _FAILED_SECONDS else None


def measurement(
    workload: Workload,
    trace: Any,
    run_secs: Sequence[float] | None,
    args_info: Any,
    *,
    measured_at: str = "",
    host: str = "",
) -> Record:
    """The record of one measurement, from what TVM's `TuningRecord.as_json` gives."""
    return Record(
        workload=name(workload),
        trace=canonical(trace),
        run_secs=canonical(run_secs),
        args_info=canonical(args_info),
        seconds=mean_seconds(run_secs),
        measured_at=measured_at,
        host=host,
    )


def strongest(states: Sequence[str]) -> str:
    """The state that a record with these verdicts is in."""
    return max(states, key=STATES.index, default=MEASURED)
