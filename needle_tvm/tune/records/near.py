"""Records of near shapes: of workloads that are the same function except for its extents.

    near(database, mod, 8)                   # (distance, record) of the nearest
    RecordDatabase(store, key, seeds=seeds)  # a search starts from them

A schedule that is good for one shape is mostly good for nearby shapes: TVM repairs the tiles that
do not divide the new extents when it applies the trace.
"""

from __future__ import annotations

import hashlib
import itertools
import keyword
import math
import re
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import IRModule, Schedule, ms
from needle_tvm.tune.records.database import RecordDatabase, trace_text
from needle_tvm.tune.records.rows import GATED, Record, Verdict, Workload

# TVMScript's tokens: text, comments, decimals, integers and names.
_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|(?P<comment>\#[^\n]*)'
    r"|(?P<decimal>\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+))|(?P<integer>\d+)"
    r"|(?P<name>[A-Za-z_]\w*)(?P<member>(?:\.\w+)*)"
)
_TRIES = 4  # records tried per one wanted: some do not apply, some become equal
_WORDS = {*keyword.kwlist, "T", "I"}  # the names that define what a function does


@dataclass(frozen=True)
class Skeleton:
    """A function without its extents.

    `digest` is of its TVMScript, with variables renamed in order and without the positive integers;
    those are `extents`, in their order in the script.
    """

    digest: str
    extents: tuple[int, ...]


def skeleton(mod: IRModule) -> Skeleton:
    """Return the skeleton of a module.

    Dtypes, decimals, zeros and the names of blocks, which traces refer to, belong to the structure;
    the names of variables and buffers do not.
    """
    names: dict[str, str] = {}
    extents: list[int] = []

    def abstract(match: re.Match[str]) -> str:
        if match["comment"] is not None:
            return ""
        if match["integer"] is not None:
            value = int(match["integer"])
            if value:
                extents.append(value)
            return "N" if value else "0"
        if match["name"] is not None and match["name"] not in _WORDS:
            return names.setdefault(match["name"], f"x{len(names)}") + match["member"]
        return match[0]

    text = _TOKEN.sub(abstract, tvm_names.script(mod))
    return Skeleton(hashlib.sha256(text.encode()).hexdigest(), tuple(extents))


def distance(one: Skeleton, other: Skeleton) -> float:
    """Return the sum of |log(ratio)| over the extents; infinite for different functions."""
    if one.digest != other.digest or len(one.extents) != len(other.extents):
        return math.inf
    pairs = zip(one.extents, other.extents, strict=True)
    return math.fsum(abs(math.log(a / b)) for a, b in pairs if a != b)


def near(database: RecordDatabase, mod: IRModule, limit: int) -> list[tuple[float, Any]]:
    """Return up to `limit` gated records of workloads near `mod`, nearest first, with distances.

    They are TuningRecords of `mod`'s workload without run_secs, as they never ran on it. Their
    traces result from applying the record to `mod`: with tiles that fit, and without the steps of
    postprocessors, which a search runs itself. Records that cannot be applied to `mod` are left
    out.
    """
    if limit <= 0:
        return []
    target, equal = skeleton(mod), set(database.names(mod))
    distances = sorted(
        (apart, name)
        for name, known in _skeletons(database).items()
        if name not in equal and (apart := distance(target, known)) < math.inf
    )
    records = (
        (apart, record)
        for apart, name in distances
        for record in database.of_workload(name, limit, (GATED,), schedules=True)
    )
    found: dict[str, tuple[float, Any]] = {}  # by trace: several may become equal
    for apart, record in itertools.islice(records, _TRIES * limit):
        seed = _rebound(record, mod)
        if seed is not None:
            found.setdefault(trace_text(seed.trace), (apart, seed))
        if len(found) == limit:
            break
    return list(found.values())


def seeds(database: RecordDatabase, mod: IRModule, limit: int) -> list[Any]:
    """Return the records of `near`, as the `seeds` of a RecordDatabase."""
    return [record for _, record in near(database, mod, limit)]


def _rebound(record: Any, mod: IRModule) -> Any:
    """Turn a TuningRecord into one of `mod`; return None if its trace does not apply."""
    schedule = Schedule(mod)
    try:
        record.trace.apply_to_schedule(schedule, remove_postproc=True)
    except (RuntimeError, ValueError, TypeError):  # what TVM raises for a schedule
        return None
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=False)
    workload = ms.database.Workload(mod)
    return ms.database.TuningRecord(schedule.trace, workload, None, record.target, arguments)


# A workload's name identifies its contents, so its skeleton stays valid for this process.
_known: dict[str, Skeleton] = {}


def _skeletons(database: RecordDatabase) -> dict[str, Skeleton]:
    """Return the skeletons of the workloads with a gated record, by name."""
    store = database.store
    gated = {v.record for v in store.all(Verdict, lambda v: v.state == GATED).values()}
    of = {row.workload for name, row in store.all(Record).items() if name in gated}
    found = {name: row for name, row in database.workloads().items() if name in of}
    return {
        name: known
        for name, workload in found.items()
        if (known := _skeleton_of(database, name, workload)) is not None
    }


def _skeleton_of(database: RecordDatabase, name: str, workload: Workload) -> Skeleton | None:
    if name not in _known:
        module = database.module(name, workload)
        if module is None:
            return None
        _known[name] = skeleton(module)
    return _known[name]
