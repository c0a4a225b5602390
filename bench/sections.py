"""The inference benchmark's results besides times of calls, as headings and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps import report

TOP = 5  # kernels of a model


def roofline(cases: list[Mapping[str, Any]], limits: Mapping[str, Any]) -> list[list[str]]:
    """Each case's slowest kernels: time, share, rates, and how much of this machine's limits."""
    headings = ["case", "kernel", "calls", "time", "share", "GFLOP/s", "GB/s", "roofline", "bound"]
    rows = [headings]
    for case in cases:
        for number, row in enumerate(case["profile"]["kernels"][:TOP]):
            seconds, count = row["seconds"], row["operations"]
            share = row["roofline"]
            rows.append(
                [
                    "" if number else case["case"],
                    row["name"],
                    str(row["calls"]),
                    report.duration(seconds),
                    f"{row['share']:.0%}",
                    f"{count / seconds / 1e9:.1f}" if count is not None and seconds else "",
                    f"{row['bytes'] / seconds / 1e9:.1f}" if seconds else "",
                    "" if share is None else f"{share:.0%}",
                    row.get("bound", ""),
                ]
            )
    return rows


def limits_line(limits: Mapping[str, Any]) -> str:
    """What the roofline is made of, in words."""
    rates = ", ".join(f"{rate:.0f} in {_size(size)}" for size, rate in limits["gigabytes"])
    return f"this machine: {limits['gigaflops']:.0f} GFLOP/s float32; GB/s: {rates}"


def _size(count: float) -> str:
    return f"{count / 2**20:g} MB" if count >= 2**20 else f"{count / 2**10:g} kB"


def costs(cases: list[Mapping[str, Any]]) -> list[list[str]]:
    """Times to compile, to check what was compiled, to the first result, and memory."""
    names = list(dict.fromkeys(name for case in cases for name in case["costs"]["processes"]))
    rows = [["case", "compile", "of which the check"]]
    rows[0] += [f"first result, {name}" for name in names] + [f"memory, {name}" for name in names]
    for case in cases:
        found = case["costs"]["processes"]
        firsts = [report.duration(found[n]["first"]) if n in found else "" for n in names]
        sizes = [f"{found[n]['bytes'] / 1e6:.0f} MB" if n in found else "" for n in names]
        ours = [report.duration(case["costs"][part]) for part in ("compile", "check")]
        rows.append([case["case"], *ours, *firsts, *sizes])
    return rows
