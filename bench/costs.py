"""What a model costs besides the time of a call: compiling it, its first result in a fresh process,
and that process's memory. Each is measured in a process that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apps.contestants
from needle_tvm.artifact.cache import CACHE_VARIABLE
from needle_tvm.process.child import Child
from needle_tvm.process.threads import thread_environment
from needle_tvm.process.timing import Contestant

_SECONDS = 600.0  # for a child to answer


def measure(subject: Any, entries: list[Contestant], threads: int) -> dict[str, Any]:
    """As JSON values: `compile` without a search, and `check`, its last part, in seconds; and for
    each of `entries`, `first`, the seconds from the start of its process to its first result, and
    its most bytes of memory."""
    setup = {**subject.recipe, "threads": threads}
    fresh = {CACHE_VARIABLE: str(subject.folder / "fresh-cache")}
    environment = {**thread_environment(threads), **fresh}
    with Child(
        "compiling", f"{__name__}:compiling", setup, timeout=_SECONDS, environment=environment
    ) as child:
        found = {**child.receive("compile"), "processes": {}}
    for entry in entries:
        found["processes"][entry.name] = cold_start(entry, threads)
    return found


def cold_start(entry: Contestant, threads: int) -> dict[str, float]:
    """Seconds from the start of a contestant's process to its first result, and its peak memory."""
    setup = {"factory": entry.factory, "kwargs": dict(entry.kwargs)}
    environment = {**thread_environment(threads), **entry.env}
    start = time.perf_counter()
    with Child(
        entry.name,
        "bench.first_result:serve",
        setup,
        timeout=_SECONDS,
        environment=environment,
    ) as child:
        child.receive("first result")
        seconds = time.perf_counter() - start
        return {"first": seconds, "bytes": child.receive("memory")["bytes"]}


# The child's side of compiling; bench/first_result.py is that of a first result.


def compiling(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: seconds of needle_tvm.compile, the import of TVM's compiler included, and those of
    them after the code was there: comparing it with the model, and loading it."""
    import needle_tvm

    model, _, tensors = apps.contestants.load_needle(
        setup["factory"], setup["options"], setup["weights"], setup["inputs"]
    )
    model.eval()
    reports: list[float] = []  # when each came; the last is that of the comparison
    start = time.perf_counter()
    needle_tvm.compile(
        model,
        *tensors,
        threads=setup["threads"],
        recompile=True,
        progress=lambda _: reports.append(time.perf_counter()),
    )
    end = time.perf_counter()
    yield {"compile": end - start, "check": end - reports[-1]}
