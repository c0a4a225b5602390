"""The result of `make gpu-bench` as a page and a chart. The page takes the standard library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.gpu import bars, report_lab
from bench.gpu.report_lab import duration

_EAGER, _TUNED = "needle eager", "needle tuned"


def markdown(result: Mapping[str, Any]) -> str:
    """The whole page: conditions, what is wanted and whether it is there, a table for each section,
    and what was not measured."""
    gpu = result["gpu"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    title = "A rehearsal without a GPU" if result["rehearsal"] else gpu["name"]
    lines = [f"# {title}, {result['date'][:10]}", ""]
    if result["rehearsal"]:
        lines += ["Small, and on the processor: these figures mean nothing.", ""]
    lines += [
        f"`{result['command']}`",
        "",
        f"{gpu['name']} ({gpu['architecture']}), driver {gpu['driver']}; {versions}."
        f" {result['date']}.",
        "",
        "Each contestant runs in a process of its own, in alternating blocks"
        f" ({result['rounds']} each). Inputs lie on the device, results stay there, each call is"
        " waited for. A time is the median of the blocks, with its quartiles; a ratio is the median"
        " of the ratios taken block by block: the other's time over ours, above 1 ours is faster."
        " Errors are those against float64, relative to the largest value. torch.compile is"
        ' mode="max-autotune", which includes CUDA graphs; unless it says "not frozen" weights are'
        " constants to it. TF32 is off but where a name says tf32; bfloat16 is the whole model in"
        " that dtype for PyTorch, and for needle the operands of products.",
        "",
        "## What is wanted",
        "",
        *_table(("", "wanted", "measured", ""), map(_bar, bars.of(result))),
    ]
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, section in result["sections"].items():
        groups.setdefault(section["group"], []).append((name, section))
    for group, heading, render in (
        ("models", "Models", _contest),
        ("gemm", "Matrix product", _contest),
        ("training", "Training", _contest),
        ("steps", "Memory over many steps", _steps),
        ("search", "Searching", _search),
    ):
        if group in groups:
            lines += ["", f"## {heading}"]
            for name, section in groups[group]:
                lines += ["", *render(name, section)]
    lines += _published(result)
    if "lab" in groups:
        lines += ["", "## The kernel lab's ladders", "", report_lab.CONDITIONS]
        for _, section in groups["lab"]:
            lines += ["", *report_lab.ladder_lines(section)]
    missing = list(_not_measured(result))
    if missing:
        lines += ["", "## Not measured", "", *missing]
    return "\n".join(lines) + "\n"


def summary(result: Mapping[str, Any]) -> list[str]:
    """What is wanted, a line each, then what was not measured."""
    found = [
        f"{bar.verdict}: {bar.text}: {_number(bar.measured)} (wanted {bar.wanted:.2f})"
        for bar in bars.of(result)
    ]
    return found + [f"not measured: {n}: {why}" for n, why in result["not_measured"].items()]


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = [tuple(headings), *map(tuple, rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]


def _bar(bar: bars.Bar) -> tuple[str, ...]:
    verdict = f"{bar.verdict} ({bar.note})" if bar.note else bar.verdict
    return bar.text, f"{bar.wanted:.2f}", _number(bar.measured), verdict


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _spread(entry: Mapping[str, Any]) -> str:
    lower, upper = duration(entry["lower_quartile"]), duration(entry["upper_quartile"])
    return f"{duration(entry['median'])} ({lower} to {upper})"


def _contest(name: str, section: Mapping[str, Any]) -> list[str]:
    """A contest's table: each beside needle eager, and ours beside the best peer of its kind."""
    count, eager = section.get("operations"), bars.entry(section, _EAGER)
    headings = ["", "time of a call", "needle eager's time / its", "fastest peer's time / ours"]
    headings += ["TFLOP/s"] * bool(count) + ["error (allowed)"]
    rows = []
    for entry in section["contestants"]:
        row = [entry["name"], _spread(entry)]
        row.append(_number(bars.ratio(entry, eager)) if eager and entry is not eager else "")
        best = bars.fastest(section, entry) if entry["ours"] else None
        row.append(f"{best[0]:.3g} ({best[1]['name']})" if best else "")
        if count:
            row.append(f"{count / entry['median'] / 1e12:.3g}")
        error = entry.get("error")
        row.append("" if error is None else f"{error:.0e} ({entry['tolerance']:.0e})")
        rows.append(row)
    return [f"### {name}", "", *_table(headings, rows)]


def _steps(name: str, section: Mapping[str, Any]) -> list[str]:
    keys = [key for key in section["samples"][0] if key not in ("step", "loss")]
    rows = [
        [str(one["step"]), _number(one["loss"]), *(f"{one[key]:,}" for key in keys)]
        for one in section["samples"]
    ]
    each = duration(section["seconds"] / section["steps"])
    return [
        f"### {section['steps']} steps of {section['model']}, batch {section['batch']}",
        "",
        f"{each} a step, uploading each batch of images included. Bytes, and how often memory was"
        " taken from the device:",
        "",
        *_table(("step", "loss", *keys), rows),
    ]


def _search(name: str, section: Mapping[str, Any]) -> list[str]:
    rows = []
    for one in section["models"]:
        entries = {entry["name"]: entry for entry in one["contestants"]}
        found = [entry for title, entry in entries.items() if title != _TUNED]
        for entry in found:
            before = entries.get(_TUNED)
            gain = _number(bars.ratio(entry, before)) if before else ""
            budget = ", ".join(f"{value:.3g} {what}" for what, value in one["budget"].items())
            compiled = one["compiled"][entry["name"]]
            took, did = duration(compiled["seconds"]), compiled["search"]
            rows.append([one["model"], budget, took, did, _spread(entry), gain])
    headings = ("", "budget", "took", "search", "time of a call", "time without a search / with")
    return [f"### {name}", "", *_table(headings, rows)]


def _published(result: Mapping[str, Any]) -> list[str]:
    """The reference's ladder beside ours: eager over compiled."""
    rows = []
    for model, theirs in bars.PUBLISHED.items():
        section = result["sections"].get(f"{model}-8")
        eager = bars.entry(section, _EAGER) if section else None
        if section is None or eager is None:
            continue
        row = [model, _number(theirs)]
        for stage in ("needle noopt", "needle fused", _TUNED):
            entry = bars.entry(section, stage)
            row.append(_number(bars.ratio(entry, eager)) if entry else "")
        rows.append(row)
    if not rows:
        return []
    return [
        "",
        "## The reference document's ladder beside ours",
        "",
        "How many times as fast as its own eager model each is; the reference's on an NVIDIA T4,"
        " its eager models its own, so the columns share no unit but that.",
        "",
        *_table(("", "reference, TVM", "noopt", "fused", "tuned"), rows),
    ]


def _not_measured(result: Mapping[str, Any]) -> Iterable[str]:
    for name, reason in result["not_measured"].items():
        yield f"- {name}: {reason}"
    for name, section in result["sections"].items():
        reasons = dict(section.get("failed", {}))
        if section["group"] == "lab":
            reasons |= report_lab.left_out(section)
        for one in section.get("models", ()):
            reasons |= {f"{one['model']}, {who}": why for who, why in one["failed"].items()}
        for who, reason in reasons.items():
            yield f"- {name}, {who}: {reason}"


def draw(result: Mapping[str, Any], stem: Path) -> None:
    """STEM.png: the time of each peer over needle tuned's, model by model, in float32; nothing
    where no model was measured, or matplotlib is not installed."""
    try:
        from bench import charts
    except ImportError:
        return
    from dataclasses import asdict

    from needle_tvm.process.timing import Spread

    cases = []
    for name, section in result["sections"].items():
        ours = bars.entry(section, _TUNED) if section["group"] == "models" else None
        if ours is None:
            continue
        ratios = {}
        for other in section["contestants"]:
            if other is not ours and other["precision"] == ours["precision"]:
                pairs = zip(ours["blocks"], other["blocks"], strict=True)
                spread = Spread.of([theirs / mine for mine, theirs in pairs])
                ratios[other["name"]] = asdict(spread)
        best = bars.fastest(section, ours)
        case = {"case": name, "ratios": {_TUNED: ratios}}
        cases.append({**case, "fastest": best[1]["name"]} if best else case)
    if cases:
        machine = {"processor": result["gpu"]["name"]}
        path = stem.with_name(stem.name + ".png")
        charts.draw_ratios(
            {"cases": cases, "machine": machine, "date": result["date"]}, path, _TUNED
        )
