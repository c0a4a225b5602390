"""The roofline of a compiled model: how close its kernels come to the limits of this machine.

Times come from `python -m needle_tvm profile`, in a separate process. The profiler's own time is
subtracted evenly, so that the kernels' times add up to a call without the profiler. Bytes are the
compulsory bytes: each argument once. Operations are TVM's count of the loops before they are
scheduled, including operations on the zeros of padding. If TVM cannot count them, the roofline is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import contests
from kernel_lab import limits as roofline
from needle.trace import Graph
from needle_runtime.process.threads import thread_environment
from needle_runtime.process.timing import load_arrays
from needle_runtime.text import duration
from needle_tvm.errors import TuningError
from needle_tvm.frontend import lowering
from needle_tvm.target.spec import resolve

TOP = 5  # number of a model's kernels in the table

_SECONDS = 120.0  # time limit of a child's answer
_RUNS, _RUN_SECONDS = 200, 20.0  # limits of a profile
_BUILTIN = "vm.builtin."


def measure(
    graph: Graph, artifact: Mapping[str, Any], threads: int, limits: roofline.Limits
) -> dict[str, Any]:
    """Measure the kernels of a graph's `artifact` (keywords of `apps.contestants.artifact`). Return
    them as JSON values, slowest first. Each has, for all calls of one run: seconds, operations,
    bytes, the share of the roofline that it reaches, and the seconds `beyond` the roofline (all
    seconds if the roofline is unknown). The model's `roofline` is the part of a run's time that is
    not beyond the rooflines of its kernels.
    """
    from needle_tvm.tir.functions import prim_funcs

    module = lowering.lower(graph, resolve("cpu", threads).to_tvm(), "tuned")
    functions = prim_funcs(module)
    profiled = _ask("profile_artifact", artifact, threads)
    rows = []
    for row in corrected(profiled):
        entry = {**row, "operations": None, "roofline": None, "beyond": row["seconds"]}
        count = _operations(functions.get(row["name"]))
        if count is not None:
            per_call = roofline.floor(limits, count, row["bytes"] / row["calls"])
            by_work = count / limits.gigaflops / 1e9 >= per_call * 0.999
            least = row["calls"] * per_call
            entry |= {"operations": count * row["calls"]}
            entry |= {"bound": "arithmetic" if by_work else "traffic"}
            entry |= {"beyond": max(0.0, row["seconds"] - least)}
            entry["roofline"] = least / row["seconds"] if row["seconds"] else None
        rows.append(entry)
    reached = sum(row["seconds"] - row["beyond"] for row in rows) / profiled["plain_seconds"]
    return {"seconds": profiled["plain_seconds"], "roofline": reached, "kernels": rows}


def _operations(function: Any) -> int | None:
    """Return a function's operations; None without a function or if TVM cannot count them."""
    try:
        return None if function is None else roofline.work(function)[0]
    except TuningError:
        return None


def corrected(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a profile's kernels without the profiler's own time. This time is assumed to be equal
    for each call; without it, the times of all calls add up to a plain run."""
    rows = found["rows"]
    extra = sum(row["seconds"] for row in rows) - found["plain_seconds"]
    each = max(0.0, extra) / max(1, sum(row["calls"] for row in rows))
    kernels = [
        {**row, "seconds": max(row["seconds"] - each * row["calls"], 0.0)}
        for row in rows
        if not row["name"].startswith(_BUILTIN)
    ]
    whole = sum(row["seconds"] for row in kernels) or 1.0
    kernels = [{**row, "share": row["seconds"] / whole} for row in kernels]
    return sorted(kernels, key=lambda row: -row["seconds"])


def measure_limits(threads: int) -> roofline.Limits:
    """Return this machine's limits with `threads` threads, measured in about a second."""
    return roofline.Limits.from_json(_ask("probe", {"threads": threads}, threads))


def _ask(service: str, setup: Mapping[str, Any], threads: int) -> dict[str, Any]:
    return contests.ask(f"{__name__}:{service}", setup, _SECONDS, thread_environment(threads))


def table(cases: Sequence[Mapping[str, Any]], by: str = "seconds") -> list[list[str]]:
    """Return headings and rows: each case as a whole, then its top kernels `by` "seconds" or by the
    seconds "beyond" the roofline, with their share of the time, their rates, and the share of this
    machine's limits that they reach."""
    rows = [["case", "kernel", "calls", "time", "share", "GFLOP/s", "GB/s", "roofline", "bound"]]
    rows[0] += ["beyond"]
    for case in cases:
        whole, kernels = case["profile"], case["profile"]["kernels"]
        cells = ["", duration(whole["seconds"]), "", "", "", f"{whole['roofline']:.0%}", ""]
        beyond = duration(whole["seconds"] * (1 - whole["roofline"]))
        rows.append([case["case"], "all", *cells, beyond])
        for row in sorted(kernels, key=lambda row: -row[by])[:TOP]:
            seconds, count, share = row["seconds"], row["operations"], row["roofline"]
            rows.append(
                [
                    "",
                    row["name"],
                    str(row["calls"]),
                    duration(seconds),
                    f"{row['share']:.0%}",
                    f"{count / seconds / 1e9:.1f}" if count is not None and seconds else "",
                    f"{row['bytes'] / seconds / 1e9:.1f}" if seconds else "",
                    "" if share is None else f"{share:.0%}",
                    row.get("bound", ""),
                    duration(row["beyond"]),
                ]
            )
    return rows


def limits_line(limits: Mapping[str, Any]) -> str:
    """Return the limits behind the roofline, in words."""
    rates = ", ".join(f"{rate:.0f} in {_size(size)}" for size, rate in limits["gigabytes"])
    return f"this machine: {limits['gigaflops']:.0f} GFLOP/s float32; GB/s: {rates}"


def _size(count: float) -> str:
    return f"{count / 2**20:g} MB" if count >= 2**20 else f"{count / 2**10:g} kB"


# Code of the child process.


def probe(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, measure this machine and return `Limits.to_json`."""
    yield roofline.probe(setup)


def profile_artifact(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, profile the artifact at `path` on saved `inputs`."""
    import needle_runtime
    from needle_runtime import profile

    program = needle_runtime.load(setup["path"])
    inputs = load_arrays(setup["inputs"])
    seconds = profile.profile(program, inputs, 1).plain_seconds
    runs = max(1, min(_RUNS, int(_RUN_SECONDS / seconds)))
    yield profile.profile(program, inputs, runs).to_dict()
