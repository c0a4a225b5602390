"""Records of near shapes: of workloads that are the same function but for its extents.

    near(database, mod, 8)                   # (distance, record) of the nearest
    RecordDatabase(store, key, seeds=seeds)  # a search starts from them

A schedule that is good for one shape is mostly good for its neighbours: TVM repairs the tiles that
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
from needle_tvm.tune.records.rows import GATED, Workload

# Of TVMScript: text, comments, decimals, integers and names.
_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|(?P<comment>\#[^\n]*)'
    r"|(?P<decimal>\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+))|(?P<integer>\d+)"
    r"|(?P<name>[A-Za-z_]\w*)(?P<member>(?:\.\w+)*)"
)
_TRIES = 4  # records that are looked at for each one wanted: some do not apply, some become equal
_WORDS = {*keyword.kwlist, "T", "I"}  # the names that say what a function does


@dataclass(frozen=True)
class Skeleton:
    """A function without its extents.

    `digest` is of its TVMScript, with variables named in order and without the positive integers;
    those are `extents`, in the order in which they stand there.
    """

    digest: str
    extents: tuple[int, ...]


def skeleton(mod: IRModule) -> Skeleton:
    """The skeleton of a module.

    Types, decimals, zeros and the names of blocks, which traces speak of, are part of the
    structure; the names of variables and buffers are not.
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
    """Sum of |log(ratio)| over the extents: 0 for equal ones, infinite for another function."""
    if one.digest != other.digest or len(one.extents) != len(other.extents):
        return math.inf
    pairs = zip(one.extents, other.extents, strict=True)
    return math.fsum(abs(math.log(a / b)) for a, b in pairs if a != b)


def near(database: RecordDatabase, mod: IRModule, limit: int) -> list[tuple[float, Any]]:
    """Up to `limit` gated records of workloads near `mod`, each with its distance, nearest first.

    They are TuningRecords of `mod`'s workload that were never run on it: they have no run_secs.
    Their traces are as they came out of it, with tiles that fit, and without what postprocessors
    added, as a search runs those itself. One that cannot be applied to `mod` is left out.
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
    """The records of `near`, as a RecordDatabase's `seeds`."""
    return [record for _, record in near(database, mod, limit)]


def _rebound(record: Any, mod: IRModule) -> Any:
    """A TuningRecord as one of `mod`; None where its trace does not apply."""
    schedule = Schedule(mod)
    try:
        record.trace.apply_to_schedule(schedule, remove_postproc=True)
    except (RuntimeError, ValueError, TypeError):  # what TVM raises of a schedule
        return None
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=False)
    workload = ms.database.Workload(mod)
    return ms.database.TuningRecord(schedule.trace, workload, None, record.target, arguments)


# A workload's name says all that is in it: what was found of one holds in this process for good.
_known: dict[str, Skeleton] = {}


def _skeletons(database: RecordDatabase) -> dict[str, Skeleton]:
    """Skeletons of the workloads that have a gated record, by name."""
    gated = database.workloads(
        "digest IN (SELECT workload FROM records WHERE digest IN "
        "(SELECT record FROM verdicts WHERE state = ?))",
        (GATED,),
    )
    return {
        name: known
        for name, workload in gated.items()
        if (known := _skeleton_of(database, name, workload)) is not None
    }


def _skeleton_of(database: RecordDatabase, name: str, workload: Workload) -> Skeleton | None:
    if name not in _known:
        module = database.module(name, workload)
        if module is None:
            return None
        _known[name] = skeleton(module)
    return _known[name]
