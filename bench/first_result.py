"""The process whose first result and memory are measured (bench/costs.py). Nothing is imported
here that the contestant may do without: its imports are part of the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from needle_tvm.process.child import load_function

_CALLS = 3  # before the memory is asked for: some grows in the second call


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: answers once the first result is there, and then with its peak memory."""
    call, _ = load_function(setup["factory"])(**setup["kwargs"])
    call()
    yield {}
    for _ in range(_CALLS):
        call()
    yield {"bytes": peak_memory()}


def peak_memory() -> int:
    """The most bytes of memory this process's program had resident. Not ru_maxrss, which begins
    with what the parent had when it started us."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status: there is no VmHWM")
