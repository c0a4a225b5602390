"""A result of the lab as a table."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kernel_lab import gpu_figures
from kernel_lab.factors import factor, with_quartiles, work
from kernel_lab.results import LabResult, RungResult
from kernel_lab.workload import describe
from needle_runtime.process.timing import Spread
from needle_runtime.text import counted, digits, duration

_UNMEASURED = "unmeasured"
_HEADINGS = ("", "kind", "time", "GFLOP/s", "x naive", "x previous", "expected", "% roof", "error")


def rows(result: LabResult) -> list[list[str]]:
    """Return the headings and a row for each rung and peer; columns without an entry are left
    out."""
    found = [_row(entry, result.doubt) for entry in (*result.rungs, *result.peers)]
    filled = [number for number in range(len(_HEADINGS)) if any(row[number] for row in found)]
    return [[row[number] for number in filled] for row in (_HEADINGS, *found)]


def _table(title: str) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def print_result(result: LabResult, console: Console) -> None:
    """Print the ladder as a table, with the conditions under which it was measured."""
    table = _table(f"{result.title} on {result.device}, {describe(result.size)}")
    headings, *others = rows(result)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for row in others:
        table.add_row(*row)
    console.print(table)
    _print_conditions(result, console)
    if any(entry.static for entry in result.rungs):
        print_figures(result, console)
    for entry in (*result.rungs, *result.peers):
        if entry.refused:
            lead = "left out" if entry.kind == "search" else "refused"
            console.print(f"{entry.name} {lead}: {entry.refused}", highlight=False)
        elif entry.notes:
            told = ", ".join(f"{key} {value}" for key, value in entry.notes.items())
            console.print(f"{entry.name}: {told}", highlight=False)
    for entry in result.rungs:
        if entry.surprising:
            told = entry.explained or "no explanation yet"
            console.print(f"! {entry.name}: {told}", highlight=False)
    for name, reason in result.peers_missing.items():
        console.print(f"{name} left out: {reason}", highlight=False)
    if result.sweep:
        print_sweep(result, console)


def _print_conditions(result: LabResult, console: Console) -> None:
    machine, limit = result.machine, result.roofline
    if limit is not None:
        console.print(
            f"roofline: {digits(limit.gigaflops)} GFLOP/s, {digits(limit.gigabytes)} GB/s, "
            f"so {duration(limit.seconds)} ({limit.bound}); {work(result.flops)} of useful work",
            highlight=False,
        )
    if result.doubt:
        console.print(f"! {result.doubt}", highlight=False)
    if result.untimed_reason:
        console.print(f"{_UNMEASURED}: {result.untimed_reason}", highlight=False)
    if len({entry.precision for entry in (*result.rungs, *result.peers)}) > 1:
        console.print(
            "float16, tf32: operands are rounded to 11 bits, sums are float32; the arithmetic and "
            "the tolerance differ from the other rows",
            highlight=False,
        )
    if any(entry.speedup_previous for entry in result.rungs):
        console.print(
            "x previous: speed over the speed of the rung it starts from; ! marks a factor below "
            "half of the expected range or above 1.5 times it",
            highlight=False,
        )
    console.print(
        "error: largest difference from NumPy in float64, relative "
        f"to the largest value\n{machine['processor']}, {counted(machine['threads'], 'thread')}, "
        f"{result.date}",
        highlight=False,
    )


def _factor(ratio: Spread | None) -> str:
    return with_quartiles(ratio) if ratio else ""


def _row(entry: RungResult, doubt: str | None) -> list[str]:
    expected = ""
    # The expected factor refers to the rung that this one starts from, if it was timed too.
    if entry.expected and (entry.speedup_previous or entry.seconds is None):
        low, high = entry.expected
        expected = f"{low:g}-{high:g}" if entry.kind != "naive" else ""
    error = f"{entry.check.error:.0e}" if entry.check else ""
    if entry.seconds is None:
        word = "refused" if entry.refused else _UNMEASURED
        return [entry.name, entry.described_kind, word, "", "", "", expected, "", error]
    launch = entry.launch_seconds
    waited = f" ({duration(launch.median)} with launch)" if launch else ""
    return [
        entry.name,
        entry.described_kind,
        duration(entry.seconds.median) + waited,
        digits(entry.gigaflops or 0.0),
        factor(entry.speedup_naive.median) if entry.speedup_naive else "",
        _factor(entry.speedup_previous) + (" !" if entry.surprising else ""),
        expected,
        f"{100 * entry.roofline:.1f}" if entry.roofline is not None and not doubt else "",
        error,
    ]


def print_figures(result: LabResult, console: Console) -> None:
    """Print the figures of GPU rungs that need no run, in two tables that fit 80 columns."""
    found = next(entry.static for entry in result.rungs if entry.static)
    rows = gpu_figures.figure_rows(result.rungs)
    for title, columns in ((f"Static figures for {found.arch}", range(1, 7)), ("", range(7, 10))):
        table = _table(title)
        table.add_column("", no_wrap=True)
        for column in columns:
            is_number = column in range(1, 6)
            table.add_column(
                gpu_figures.HEADINGS[column],
                justify="right" if is_number else "left",
                no_wrap=is_number,
            )
        for row in rows:
            table.add_row(row[0], *(row[column] for column in columns))
        console.print(table)
    for line in gpu_figures.notes(result.rungs):
        console.print(line, highlight=False)


def print_sweep(result: LabResult, console: Console) -> None:
    """Print the GFLOP/s of every contestant at every size of the sweep."""
    axis = result.sweep_axis or ""
    table = Table(title=f"GFLOP/s by {axis}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for point in result.sweep:
        table.add_column(f"{axis}={point.size[axis]}", justify="right")
    for name in result.sweep[0].seconds:
        cells = []
        for point in result.sweep:
            seconds = point.seconds.get(name)
            cells.append(digits(point.flops / seconds / 1e9) if seconds else "refused")
        table.add_row(name, *cells)
    console.print(table)
