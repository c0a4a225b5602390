"""A GPU ladder of the kernel lab as Markdown. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BITS = {"float32": 24, "float16": 11, "tf32": 11}  # of an operand's significand

_HEADINGS = (
    "rung",
    "kind",
    "operands",
    "device time",
    "launch overhead",
    "GFLOP/s",
    "x naive",
    "x step before",
    "expected",
    "PyTorch's time / ours",
    "error (allowed)",
)


CONDITIONS = (
    "Device time is that of one of 100 launches in a row; a kernel that is shorter than the"
    " preparation of its launch shows that instead. The launch overhead is what one launch and"
    " the wait for its end take beside that. Everything was compared with NumPy in float64 before"
    " it was timed. Operands of float16 and tf32 keep 11 bits, of float32 24; sums are float32."
    " Rungs are set beside the PyTorch that keeps as many bits."
)


def ladder_lines(ladder: Mapping[str, Any]) -> list[str]:
    """A heading and a table."""
    size = ", ".join(f"{name}={value}" for name, value in ladder["size"].items())
    lines = [f"## {ladder['workload']}: {ladder['title']}, {size}", ""]
    lines.append("| " + " | ".join(_HEADINGS) + " |")
    lines.append("|" + "---|" * len(_HEADINGS))
    for entry in (*ladder["rungs"], *ladder["peers"]):
        if entry["seconds"] is not None:
            lines.append("| " + " | ".join(_row(entry, ladder["peers"])) + " |")
    return lines


def _row(entry: Mapping[str, Any], peers: list[Mapping[str, Any]]) -> list[str]:
    expected = entry["expected"]
    told = f"{expected[0]:g}-{expected[1]:g}" if expected and entry["kind"] != "naive" else ""
    return [
        entry["name"],
        entry["kind"],
        entry["precision"],
        _spread(entry["seconds"]),
        _overhead(entry),
        f"{entry['gigaflops']:.4g}" if entry["gigaflops"] else "",
        _factor(entry["speedup_naive"]),
        _factor(entry["speedup_previous"]) + (" !" if entry["surprising"] else ""),
        told,
        "" if entry["kind"] == "peer" else _over(entry, peers),
        f"{entry['error']:.0e} ({entry['tolerance']:.0e})" if entry["error"] is not None else "",
    ]


def _overhead(entry: Mapping[str, Any]) -> str:
    """What a launch that is waited for takes beside the device's time."""
    if not entry["launch_seconds"]:
        return ""
    return duration(max(0.0, entry["launch_seconds"]["median"] - entry["seconds"]["median"]))


def _over(entry: Mapping[str, Any], peers: list[Mapping[str, Any]]) -> str:
    """The time of the peer that keeps as many bits of an operand, over the entry's."""
    for peer in peers:
        if _BITS[peer["precision"]] == _BITS[entry["precision"]] and peer["blocks"]:
            pairs = zip(peer["blocks"], entry["blocks"], strict=True)
            return f"{statistics.median(theirs / ours for theirs, ours in pairs):.2f}"
    return ""


def left_out(ladder: Mapping[str, Any]) -> dict[str, str]:
    """Why rungs and peers have no times, by name."""
    refused = {entry["name"]: entry["refused"] for entry in ladder["rungs"] if entry["refused"]}
    return {**refused, **ladder["left_out"], **ladder["peers_missing"]}


def _factor(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['median']:.2f}" if ratio else ""


def _spread(seconds: Mapping[str, float]) -> str:
    lower, upper = duration(seconds["lower"]), duration(seconds["upper"])
    return f"{duration(seconds['median'])} ({lower} to {upper})"


def duration(seconds: float) -> str:
    """Seconds with three digits and a unit that suits them."""
    scale, unit = next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
    return f"{seconds / scale:.3g} {unit}"
