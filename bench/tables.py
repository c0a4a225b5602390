"""Benchmark results as tables, JSON and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from apps import report
from needle_tvm.process.command_line import console
from needle_tvm.words import counted

EAGER = "needle eager"


def print_case(case: Mapping[str, Any]) -> None:
    """Times of one case, and how many times as fast each of ours is as each contestant."""
    ours = list(case["ratios"])
    table = Table(title=case["case"], title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    table.add_column("")
    with_errors = any("error" in entry for entry in case["contestants"])
    headings = ["median", "quartiles", *(f"its time / {name}" for name in ours)]
    for heading in [*headings, "error"] if with_errors else headings:
        table.add_column(heading, justify="right")
    for entry in case["contestants"]:
        cells = [
            entry["name"],
            report.duration(entry["median"]),
            report.interval(entry["lower_quartile"], entry["upper_quartile"]),
        ]
        for name in ours:
            ratio = case["ratios"][name].get(entry["name"])
            cells.append(report.ratio(ratio) if ratio else "")
        if with_errors:
            cells.append(_error(entry.get("error")))
        table.add_row(*cells)
    out = console()
    out.print(table)
    for line in case.get("failed", {}).values():
        out.print(f"left out: {line}")
    if "fastest" in case:
        out.print(f"fastest peer: {case['fastest']}")
    out.print()


def _error(error: float | None) -> str:
    return "unbounded" if error is None else f"{error:.1e}"


def print_rows(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Headings and rows, numbers to the right."""
    headings, *others = rows
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in others:
        table.add_row(*row)
    out = console()
    out.print(table)
    out.print()


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    """Headings and rows as a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines) + "\n"


def summary(result: Mapping[str, Any]) -> list[list[str]]:
    """Headings and rows, a row per case: the fastest peer, and its time over those of ours that are
    compiled."""
    ours = [name for name in result["cases"][0]["ratios"] if name != EAGER]
    rows = [["case", "fastest peer", "its time", *(f"its time / {name}" for name in ours)]]
    for case in result["cases"]:
        name = case.get("fastest")
        times = {entry["name"]: entry["median"] for entry in case["contestants"]}
        ratios = [case["ratios"].get(mine, {}).get(name) for mine in ours]
        cells = [case["case"], name or "none", report.duration(times[name]) if name else ""]
        rows.append([*cells, *(report.ratio(ratio) if ratio else "" for ratio in ratios)])
    return rows


def print_conditions(result: Mapping[str, Any]) -> None:
    """How the figures were taken, and which peers were not there."""
    out = console()
    out.print(conditions(result))
    for name, modules in result["peers_missing"].items():
        out.print(f"{name} left out: not installed: {', '.join(modules)}")


def print_memory(result: Mapping[str, Any]) -> None:
    """Peaks of memory of each case, and ours over each peer's."""
    table = Table(title="most tensor bytes of a step above those before it", box=SIMPLE_HEAD)
    for heading in ("", "", "MB", "ours / its"):
        table.add_column(heading, justify="right" if heading else "left")
    for case in result["cases"]:
        for number, (name, size) in enumerate(case["bytes"].items()):
            over = case["ours_over"].get(name)
            title = "" if number else case["case"]
            table.add_row(title, name, f"{size / 1e6:.2f}", f"{over:.2f}" if over else "")
    console().print(table)


def write(result: Mapping[str, Any], folder: Path, name: str) -> None:
    """NAME.json, NAME.md and NAME.png in `folder`."""
    report.write_json(result, folder / f"{name}.json")
    (folder / f"{name}.md").write_text(markdown(result))
    draw_chart(result, folder / f"{name}.png")
    console().print(f"wrote {folder / name}.json, {folder / name}.md, {folder / name}.png")


def conditions(result: Mapping[str, Any]) -> str:
    """Where and how the figures were taken, in one sentence."""
    machine = result["machine"]
    return (
        f"{machine['processor']}, {counted(machine['threads'], 'thread')}, {result['date']}; "
        f"{result['rounds']} alternating blocks of {result['block_seconds']:g} s each, "
        "one process per contestant; ratios above 1: ours is faster (median, quartiles)"
    )


def markdown(result: Mapping[str, Any]) -> str:
    """All cases as one Markdown table, a row per contestant."""
    ours = list(result["cases"][0]["ratios"])
    rows = [["case", "contestant", "median", *(f"its time / {name}" for name in ours)]]
    for case in result["cases"]:
        for entry in case["contestants"]:
            ratios = [case["ratios"][name].get(entry["name"]) for name in ours]
            cells = [case["case"], entry["name"], report.duration(entry["median"])]
            rows.append([*cells, *(report.ratio(ratio) if ratio else "" for ratio in ratios)])
    return f"{conditions(result)}\n\n{markdown_rows(rows)}"


def draw_chart(result: Mapping[str, Any], path: Path) -> None:
    """For each case and contestant its time over that of the last of ours, on a log scale."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    cases = result["cases"]
    base = list(cases[0]["ratios"])[-1]
    # In order of appearance; not every case has every contestant.
    others = list(dict.fromkeys(name for case in cases for name in case["ratios"][base]))
    figure = Figure(figsize=(9, 1.6 + 0.32 * len(others) * len(cases)), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(others)
    for index, name in enumerate(others):
        found = [(row, case["ratios"][base].get(name)) for row, case in enumerate(cases)]
        ratios = [ratio for _, ratio in found if ratio]
        shift = (index - (len(others) - 1) / 2) * height
        rows = [row + shift for row, ratio in found if ratio]
        medians = [ratio["median"] for ratio in ratios]
        below = [ratio["median"] - ratio["lower"] for ratio in ratios]
        above = [ratio["upper"] - ratio["median"] for ratio in ratios]
        axes.barh(
            rows,
            [median - 1 for median in medians],
            left=1,
            height=height * 0.9,
            xerr=[below, above],
            error_kw={"ecolor": "#303030", "capsize": 2, "elinewidth": 0.8},
            label=name,
        )
        for row, ratio in zip(rows, ratios, strict=True):
            axes.annotate(
                report.factor(ratio["median"]),
                (max(ratio["upper"], 1), row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.set_xscale("log")
    axes.axvline(1, color="#303030", linewidth=1)
    axes.set_yticks(range(len(cases)), [case["case"] for case in cases])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, position: report.factor(value))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"time / time of {base}, log scale; right of 1: {base} is faster")
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=len(others))
    machine = result["machine"]
    axes.set_title(
        f"{machine['processor']}, {counted(machine['threads'], 'thread')}, {result['date'][:10]}",
        loc="left",
        fontsize=10,
    )
    report.save_figure(figure, path)
