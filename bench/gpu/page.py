"""The page and the picture of an archive of `make gpu-bench`. This module needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps import report
from bench import charts, tables
from bench.gpu.run import smoke_checks

_HOW = (
    "Each contestant has its own process; blocks alternate. Inputs lie on the GPU and results stay"
    " there. *Calls* (the medians) are timed by the host's clock, until the GPU has finished. *GPU"
    " alone* is the time, by CUDA events, of calls that were all launched before the first began. A"
    " ratio is a contestant's time over ours: above 1, ours is faster. Errors are against float64,"
    " relative to the largest value. torch.compile is max-autotune, with CUDA graphs; unless its"
    ' name says "not frozen", weights are constants. TF32 is off unless the case says tf32;'
    " bfloat16 is the whole model in that dtype for PyTorch, and for needle the operands of matmuls"
    " and convolutions."
)


def write(result: Mapping[str, Any], out: Path) -> int:
    """Write DATE-gpu-NAME.md, and beside it a picture of the models."""
    name, stem = result["gpu"], f"{result['date'][:10]}-gpu-{result['slug']}"
    out.mkdir(parents=True, exist_ok=True)
    sections = [f"# {name}, {result['date'][:10]}", "\n\n".join(notes(result))]
    checks = smoke_checks(result)
    if checks:
        rows = [
            ["check", "result"],
            *([c["name"], "right" if c["ok"] else "wrong"] for c in checks),
        ]
        said = [f"{c['name']}: {line}" for c in checks for line in c.get("said", ())]
        sections.append(_section("Does it work?", rows) + _block(said))
    for found in result["contests"].values():
        sections += [_section(title, rows) for title, rows in found.get("tables", ())]
    view = {**result, "cases": [c for f in result["contests"].values() for c in f.get("cases", ())]}
    if view["cases"]:
        picture = f"{stem}-models.png"
        charts.draw_ratios(view, out / picture)
        drawn = f"![times of other contestants over ours]({picture})\n\n"
        rows = tables.summary(view["cases"])
        sections.append(_section("Models beside the fastest peer", rows) + drawn)
        sections.append(_section("All times of models", tables.times(view["cases"])))
    if len(missing(result)) > 1:
        sections.append(_section("Not measured", missing(result)))
    path = out / f"{stem}.md"
    report.write_atomically(path, ("\n\n".join(sections).rstrip() + "\n").encode())
    sys.stdout.write(f"wrote {path}\n")
    return 0


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return notes on how the figures were taken."""
    lines = []
    if result["bundle"]["small"]:
        lines.append("**A small rehearsal on an emulated GPU: these figures mean nothing.**")
    lines += [
        f"`{result['command']}`; {result['machine']['processor']}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ".",
        _HOW,
    ]
    return lines


def missing(result: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each contest and contestant without figures: contest, contestant, reason."""
    rows = [["contest", "contestant", "reason"]]
    rows += [[name, "all", why] for name, why in result["not_measured"].items()]
    for name, found in result["contests"].items():
        rows += [[name, who, why] for who, why in found.get("failed", {}).items()]
    return rows


def _section(title: str, rows: Sequence[Sequence[str]]) -> str:
    return f"## {title}\n\n{tables.markdown_rows(rows)}\n"


def _block(lines: Sequence[str]) -> str:
    return "\n```text\n" + "\n".join(lines) + "\n```\n" if lines else ""
