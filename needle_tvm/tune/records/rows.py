"""The rows of a store, each named by the SHA-256 of its table and its values.

A row states one permanent fact (this workload exists; this trace took so long; this record was
judged so), so two stores are merged by taking the rows of both. Its name is also its checksum: a
row whose values no longer give its name is damaged and is never served. Every file of `records`
uses these classes.
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

# States of a record, the stronger later: one `rejected` verdict outweighs any `gated` one,
# whichever was written or merged first.
MEASURED, GATED, REJECTED = STATES = ("measured", "gated", "rejected")

# The source of a candidate: the search, a schedule rule, or the record of a near shape.
SOURCES = ("search", "rule", "seed")

_FAILED_SECONDS = 1e9  # meta_schedule writes 1e10 for a candidate that did not run


@dataclass(frozen=True)
class Module:
    """An unscheduled function as TVM's JSON text."""

    table: ClassVar[str] = "modules"
    text: str


@dataclass(frozen=True)
class KeyRow:
    """Target, versions and pass configuration as canonical JSON; see `keys.Key`."""

    table: ClassVar[str] = "keys"
    text: str


@dataclass(frozen=True)
class Workload:
    """A function to tune; `module` and `key` are names of rows."""

    table: ClassVar[str] = "workloads"
    structural_hash: str
    module: str
    key: str


@dataclass(frozen=True)
class Record:
    """One measurement of one schedule of the workload named `workload`.

    `trace`, `run_secs` and `args_info` are JSON as TVM writes them. `seconds` is the mean of
    `run_secs`, or None if the candidate did not run. `measured_at` (UTC, ISO 8601) and `host` are
    empty for records that came from files without them.
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
    """The result of a check of the record named `record`: `state` is one of STATES."""

    table: ClassVar[str] = "verdicts"
    record: str
    state: str
    decided_at: str
    host: str
    detail: str


@dataclass(frozen=True)
class Trial:
    """The cost of the record named `record` to the tuning session `session` (hex digits).

    `seconds` is the time it took from the session's budget; `source` is one of SOURCES. Raises
    ValueError for other values.
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
    """Return the row's values in the order of its columns."""
    return tuple(getattr(row, name) for name in COLUMNS[row.table])


def name(row: Row) -> str:
    """Return the row's name: the hex SHA-256 of its table and values."""
    return _digest(row.table, values(row))


def _digest(table: str, row: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps([table, *row]).encode()).hexdigest()


def verified(kind: type[R], stored: Sequence[Any]) -> R | None:
    """Return the row of this kind stored as (name, value, ...), or None if it is damaged."""
    digest, *cells = stored
    if len(cells) != len(COLUMNS[kind.table]):
        return None
    try:
        if _digest(kind.table, cells) != digest:
            return None
        return kind(*cells)
    except (TypeError, ValueError):  # bytes, invalid Unicode, or a value of another kind
        return None


def canonical(value: Any) -> str:
    """Return JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def mean_seconds(run_secs: Sequence[float] | None) -> float | None:
    """Return the mean of a candidate's run times, or None if it did not run."""
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
    """Make the record of one measurement from the values of TVM's `TuningRecord.as_json`."""
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
    """Return the state of a record with these verdicts."""
    return max(states, key=STATES.index, default=MEASURED)
