"""The costs of a model besides the time of a call: compiling it, its first result in a fresh
process, and the memory of that process. Each is measured in a process that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench import compiling, contests
from needle_runtime.process.threads import thread_environment
from needle_runtime.process.timing import Contestant
from needle_runtime.text import duration
from needle_tvm.cache import CACHE_VARIABLE

_SECONDS = 600.0  # time limit of a child's answer


def measure(subject: Any, entries: Sequence[Contestant], threads: int) -> dict[str, Any]:
    """Return the costs as JSON values. `compile` is the seconds to compile without a search, and
    `check` the part of them that the final check takes. `processes` has, for each of `entries`,
    `first`, the seconds from the start of its process to its first result, and `bytes`, its peak
    memory."""
    setup = subject.to_compile("fresh", threads=threads, recompile=True)
    fresh = {CACHE_VARIABLE: str(subject.folder / "fresh-cache")}
    environment = {**thread_environment(threads), **fresh}
    found = contests.ask(compiling.SERVICE, setup, _SECONDS, environment, "compiling")
    return {
        "compile": found["compile"],
        "check": found["check"],
        "processes": {entry.name: cold_start(entry, threads) for entry in entries},
    }


def cold_start(entry: Contestant, threads: int) -> dict[str, float]:
    """Return the seconds from a contestant's start to its first result, and its peak memory."""
    entry = replace(entry, threads=threads)
    start = time.perf_counter()
    with contests.start(entry, "bench.memory:first_result", _SECONDS) as child:
        child.receive("first result")
        seconds = time.perf_counter() - start
        return {"first": seconds, "bytes": child.receive("memory")["bytes"]}


def table(cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return headings and a row for each case: times to compile, check and first run, memory."""
    names = list(dict.fromkeys(name for case in cases for name in case["costs"]["processes"]))
    rows = [["case", "compile", "of which the check"]]
    rows[0] += [f"first result, {name}" for name in names] + [f"memory, {name}" for name in names]
    for case in cases:
        found = case["costs"]["processes"]
        firsts = [duration(found[n]["first"]) if n in found else "" for n in names]
        sizes = [f"{found[n]['bytes'] / 1e6:.0f} MB" if n in found else "" for n in names]
        ours = [duration(case["costs"][part]) for part in ("compile", "check")]
        rows.append([case["case"], *ours, *firsts, *sizes])
    return rows
