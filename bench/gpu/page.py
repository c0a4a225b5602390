"""The page and the pictures of an archive of `make gpu-bench`. Needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps import report
from bench import charts, tables
from bench.gpu.run import smoke_checks
from kernel_lab import registry
from kernel_lab.factors import factor
from kernel_lab.workload import Published
from needle_tvm.text import digits, duration

# The contests whose ladder a document has, and that document's number (docs/guide/10-figures.md).
DOCUMENTS = {
    "lab-conv1d": "000",
    "lab-depthwise": "000",
    "lab-gemm": "002",
    "lab-gemm-2048": "001",
    "lab-separable": "004",
}
_HOW = (
    "Each contestant has a process of its own; blocks alternate. Inputs lie on the GPU and results"
    " stay there. *Calls* (the medians) are timed by the host's clock, each waited for. *GPU alone*"
    " is the time, by CUDA events, of calls that were all launched before the first began. A ratio"
    " is the other's time over ours, so ours is faster above 1. Errors are those against float64,"
    " relative to the largest value. torch.compile is max-autotune, with CUDA graphs; unless it"
    ' says "not frozen" weights are constants to it. TF32 is off unless the case says tf32;'
    " bfloat16 is the whole model in that dtype for PyTorch, and for needle the operands of matmuls"
    " and convolutions."
)
_OURS, _THEIRS = "#1f6fb4", "#b9b9b9"


def write(result: Mapping[str, Any], out: Path) -> int:
    """Write DATE-gpu-NAME.md, and beside it a picture for each ladder and one of the models."""
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
    for contest, found in result["contests"].items():
        if "lab" in found:
            picture = f"{stem}-{contest}.png"
            drawn = draw_ladder(contest, found["lab"], out / picture)
            sections.append(ladder_section(contest, found["lab"], picture if drawn else None))
    view = {**result, "cases": [c for f in result["contests"].values() for c in f.get("cases", ())]}
    if view["cases"]:
        picture = f"{stem}-models.png"
        charts.draw_ratios(view, out / picture)
        drawn = f"![times of other contestants over ours]({picture})\n\n"
        rows = tables.summary(view["cases"])
        sections.append(_section("Models beside the fastest peer", rows) + drawn)
        sections.append(_section("All times of models", tables.times(view["cases"])))
    for found in result["contests"].values():
        if "lab" not in found:
            sections += [_section(title, rows) for title, rows in found.get("tables", ())]
    if len(missing(result)) > 1:
        sections.append(_section("Not measured", missing(result)))
    path = out / f"{stem}.md"
    report.write_atomically(path, ("\n\n".join(sections).rstrip() + "\n").encode())
    sys.stdout.write(f"wrote {path}\n")
    return 0


def notes(result: Mapping[str, Any]) -> list[str]:
    """How the figures were taken."""
    lines = []
    if result["bundle"]["small"]:
        lines.append("**A rehearsal on an emulated GPU, in small: these figures mean nothing.**")
    lines += [
        f"`{result['command']}`; {result['machine']['processor']}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ".",
        _HOW,
    ]
    return lines


def missing(result: Mapping[str, Any]) -> list[list[str]]:
    """A row for each contest and contestant without figures: contest, contestant, reason."""
    rows = [["contest", "contestant", "reason"]]
    rows += [[name, "all", why] for name, why in result["not_measured"].items()]
    for name, found in result["contests"].items():
        rows += [[name, who, why] for who, why in found.get("failed", {}).items()]
    return rows


def published(contest: str, lab: Mapping[str, Any]) -> dict[str, Published]:
    """The documents' figures of a contest by the name of our rung or peer."""
    document = DOCUMENTS.get(contest)
    figures = registry.workload(lab["workload"]).published.get("cuda", ())
    return {f.rung: f for f in figures if f.document == document and f.rung}


def ladder_section(contest: str, lab: Mapping[str, Any], picture: str | None) -> str:
    """A ladder's table: each rung beside the document's, both with the gain over their naive."""
    theirs = published(contest, lab)
    base = theirs.get("naive")
    rows = [["", "call", "GPU alone", "GFLOP/s", "over naive"]]
    if theirs:
        rows[0] += ["document", "its time", "its gain"]
    for entry in (*lab["rungs"], *lab["peers"]):
        if entry["seconds"] is None:
            row = [entry["name"], "refused", "", "", ""]
        else:
            alone, call = entry["seconds"], entry["launch_seconds"]
            gain = entry["speedup_naive"]
            row = [
                entry["name"],
                duration((call or alone)["median"]),
                duration(alone["median"]) if call else "",
                digits(entry["gigaflops"] or 0.0),
                factor(gain["median"]) if gain else "",
            ]
        figure = theirs.get(entry["name"])
        if theirs:
            row += _figure(figure, base)
        rows.append(row)
    size = ", ".join(f"{name}={value}" for name, value in lab["size"].items())
    text = _section(f"{lab['title']}, {size}", rows)
    if theirs:
        text += f"The document's figures are of a {_machine(next(iter(theirs.values())))}.\n\n"
    return text + (f"![gain of each rung over naive]({picture})\n\n" if picture else "")


def _figure(figure: Published | None, base: Published | None) -> list[str]:
    if figure is None:
        return ["", "", ""]
    gain = base.milliseconds / figure.milliseconds if base else 0.0
    return [figure.step, duration(figure.milliseconds / 1e3), factor(gain) if base else ""]


def draw_ladder(contest: str, lab: Mapping[str, Any], path: Path) -> bool:
    """Draw each rung's gain over naive, and the document's beside it, on a log scale. False if
    nothing has such a gain."""
    from matplotlib.figure import Figure

    theirs = published(contest, lab)
    base = theirs.get("naive")
    entries = [e for e in (*lab["rungs"], *lab["peers"]) if e["speedup_naive"]]
    if not entries:
        return False
    figure = Figure(figsize=(8, 1.4 + 0.34 * len(entries)), layout="constrained")
    axes = figure.add_subplot()
    gains = {entry["name"]: entry["speedup_naive"]["median"] for entry in entries}
    both = {
        name: base.milliseconds / theirs[name].milliseconds
        for name in gains
        if base is not None and name in theirs
    }
    shift = 0.2 if both else 0.0
    for place, (name, gain) in enumerate(gains.items()):
        ours = axes.barh(place - shift, gain, 0.38 if both else 0.6, color=_OURS)
        axes.annotate(factor(gain), (gain, place - shift), (3, 0), va="center", fontsize=8,
                      textcoords="offset points")  # fmt: skip
        if name in both:
            document = axes.barh(place + shift, both[name], 0.38, color=_THEIRS)
    if both and base is not None:
        names = ("measured here", f"the document's, {_machine(base)}")
        place = {"loc": "outside lower center", "ncols": 2}
        figure.legend((ours, document), names, frameon=False, fontsize=9, **place)
    axes.set_xscale("log")
    axes.set_yticks(range(len(gains)), list(gains))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("times as fast as the naive rung, log scale (GPU alone; CPUs by the call)")
    axes.set_title(lab["title"], loc="left", fontsize=10)
    report.save_figure(figure, path)
    return True


def _machine(figure: Published) -> str:
    return figure.machine.partition(",")[0]


def _section(title: str, rows: Sequence[Sequence[str]]) -> str:
    return f"## {title}\n\n{tables.markdown_rows(rows)}\n"


def _block(lines: Sequence[str]) -> str:
    return "\n```text\n" + "\n".join(lines) + "\n```\n" if lines else ""
