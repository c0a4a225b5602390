"""Results of benchmarks as tables, pages and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from apps import report
from apps.contestants import CODE
from bench.contests import EAGER, fastest, is_called
from needle_runtime.text import counted, digits, duration, interval
from needle_tvm.terminal import console

Rows = Sequence[Sequence[str]]  # the row of headings, then the other rows


def times(cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each contestant of each case: its times, and their ratios to the times of
    our contestants, both of whole calls and of compiled code alone."""
    names = dict.fromkeys(name for case in cases for name in case["ratios"])
    ours = [name for name in names if is_called(name) or name.endswith(CODE)]
    entries = [entry for case in cases for entry in case["contestants"]]
    with_errors = any("error" in entry for entry in entries)
    with_device = any("device" in entry for entry in entries)
    rows = [["case", "contestant", "median", "quartiles", *["GPU alone"] * with_device]]
    rows[0] += [f"its time / {name}" for name in ours] + ["error"] * with_errors
    for case in cases:
        for entry in case["contestants"]:
            row = [case["case"], entry["name"], duration(entry["median"])]
            row.append(interval(entry["lower_quartile"], entry["upper_quartile"]))
            if with_device:
                row.append(duration(entry["device"]["median"]) if "device" in entry else "")
            ratios = [case["ratios"].get(name, {}).get(entry["name"]) for name in ours]
            row += [report.ratio(ratio) if ratio else "" for ratio in ratios]
            rows.append(row + [_error(entry)] * with_errors)
    return rows


def _error(entry: Mapping[str, Any]) -> str:
    if "error" not in entry:
        return ""
    return "unbounded" if entry["error"] is None else f"{entry['error']:.1e}"


def summary(cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each case: its rounds, the fastest peer, and the ratio of that peer's time
    to the time of each of our compiled contestants; then the same ratios for compiled code alone,
    if both sides have such times."""
    ours = dict.fromkeys(name for case in cases for name in case["ratios"] if name != EAGER)
    called = [name for name in ours if not name.endswith(CODE)]
    codes = [name for name in ours if name.endswith(CODE)]
    with_rounds = any("rounds" in case for case in cases)
    rows = [["case", *["rounds"] * with_rounds, "fastest peer", "its time"]]
    rows[0] += [f"its time / {name}" for name in called]
    rows[0] += [f"fastest code / {name}" for name in codes]
    for case in cases:
        name = case.get("fastest")
        medians = {entry["name"]: entry["median"] for entry in case["contestants"]}
        cells = [case["case"], *[str(case.get("rounds", ""))] * with_rounds]
        cells += [name or "none", duration(medians[name]) if name else ""]
        for mine in (*called, *codes):
            ratios = case["ratios"].get(mine, {})
            ratio = ratios.get(fastest(ratios, code=True) if mine in codes else name)
            cells.append(report.ratio(ratio) if ratio else "")
        rows.append(cells)
    return rows


def added(cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each case: the microseconds that a call adds to the time of its code."""
    names = list(dict.fromkeys(name for case in cases for name in case["calls"]))
    rows = [["case", *names]]
    for case in cases:
        calls = [case["calls"].get(name) for name in names]
        rows.append([case["case"], *(microseconds(call) if call else "" for call in calls)])
    return rows


def microseconds(spread: Mapping[str, float]) -> str:
    """Return the median and quartiles of times, or of differences of times, in microseconds."""
    values = [1e6 * spread[key] for key in ("median", "lower", "upper")]
    median, lower, upper = (f"{'-' * (x < 0)}{digits(abs(x))}" for x in values)
    return f"{median} ({lower} to {upper})"


def print_case(case: Mapping[str, Any]) -> None:
    """Print the times of one case, and the contestants that were left out."""
    print_rows(case["case"], [row[1:] for row in times([case])])
    out = console()
    for name, reason in case["failed"].items():
        out.print(f"left out: {name}: {reason}")
    if "fastest" in case:
        out.print(f"fastest peer: {case['fastest']}\n")


def print_rows(title: str, rows: Rows) -> None:
    """Print a table with its numbers aligned to the right."""
    headings, *others = rows
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in others:
        table.add_row(*row)
    out = console()
    out.print(table)
    out.print()


def markdown_rows(rows: Rows) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines) + "\n"


def conditions(result: Mapping[str, Any]) -> str:
    """Return one line that says where, when and how the times of a report were taken. A report of
    results other than contests has its own text, `how`."""
    machine = result["machine"]
    where = f"{machine['processor']}, {counted(machine['threads'], 'thread')}, {result['date']}"
    how = (
        f"{result['rounds']} alternating blocks of {result['block_seconds']:g} s each, "
        "one process per contestant; ratios above 1: ours is faster (median, quartiles)"
    )
    return f"{where}; {result.get('how', how)}"


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return lines for the conditions, each of the report's own notes, and each missing peer."""
    missing = result["peers_missing"].items()
    left_out = [f"{name} left out: not installed: {', '.join(lacks)}" for name, lacks in missing]
    return [conditions(result), *result.get("notes", ()), *left_out]


def page(result: Mapping[str, Any], parts: Sequence[tuple[str, Rows]]) -> str:
    """Return a page in Markdown: the report's own `head`, if any, the notes, the parts with their
    titles, and all times of the cases."""
    parts = [*parts, ("all times", times(result["cases"]))] if result["cases"] else parts
    tables = [f"## {title}\n\n{markdown_rows(rows)}" for title, rows in parts]
    head = [result["head"]] if "head" in result else []
    return "\n\n".join([*head, *notes(result), *tables])


def publish(
    result: Mapping[str, Any],
    folder: Path,
    name: str,
    parts: Sequence[tuple[str, Rows]],
    draw: Callable[[Mapping[str, Any], Path], None] | None = None,
) -> None:
    """Print the parts (title and rows) and the notes of a report; write NAME.json, NAME.md and, if
    `draw` is given, NAME.png."""
    out = console()
    for title, rows in parts:
        print_rows(title, rows)
    for line in notes(result):
        out.print(line)
    report.write_json(result, folder / f"{name}.json")
    report.write_atomically(folder / f"{name}.md", page(result, parts).encode())
    if draw is not None:
        draw(result, folder / f"{name}.png")
    out.print(f"wrote {folder / name}.json, .md{', .png' if draw else ''}")
