"""An evaluation's result as a table, as JSON and as a bar chart."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from needle_runtime.artifact.summary import tuning_summary
from needle_runtime.text import compared as comparison
from needle_runtime.text import counted, duration, interval, quartiles
from needle_tvm.stages import OWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"eager": "#7a7a7a", "stage": "#1f6fb4", "peer": "#d98324"}


def ratio(spread: Mapping[str, float]) -> str:
    """Return a ratio's median and, in brackets, its quartiles."""
    return quartiles(spread["median"], spread["lower"], spread["upper"])


def compared(spread: Mapping[str, float]) -> str:
    """Return a ratio of times in words."""
    return comparison(spread["median"], spread["lower"], spread["upper"])


def print_table(result: Mapping[str, Any], console: Console) -> None:
    """Print the result as a table, with a line about the conditions of the measurement."""
    digits, steps = result.get("digits"), result.get("ladder")
    title = f"{result['model']} on {result['device']}, input " + ", ".join(
        f"{'x'.join(map(str, x['shape']))} {x['dtype']}" for x in result["inputs"]
    )
    if result.get("dtype"):
        title += f", products of {result['dtype']}"
    if result.get("products", OWN) != OWN:
        title += f", products: {result['products']}"
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    columns = _LADDER if steps else _STAGES
    table.add_column("")
    if steps:
        table.add_column("step")
    for heading in (*columns, *(["accuracy"] if digits else [])):
        table.add_column(heading, justify="right", no_wrap=True)

    timed = {entry["name"]: entry for entry in result.get("timing", {}).get("contestants", ())}
    for name in timed or result["stages"]:
        stage, entry = result["stages"].get(name), timed.get(name)
        cells = [name, *([steps.get(name, "")] if steps else [])]
        cells += [_cell(heading, stage, entry) for heading in columns]
        if digits:
            accuracy = digits["accuracy"].get(name)
            cells.append("" if accuracy is None else f"{accuracy:.2%}")
        table.add_row(*cells)
    console.print(table)

    machine = result["machine"]
    stages = result["stages"].values()
    if not steps and any(stage["from_cache"] for stage in stages):
        seconds = sum(stage["seconds_to_ready"] for stage in stages if stage["from_cache"])
        console.print(f"* from the cache, verified: {duration(seconds)} in all", highlight=False)
    what = "error: largest absolute difference from the eager model in float64"
    if steps:
        what = (
            f"largest error of a rung, compared with the eager model in float64: {_largest(stages)}"
        )
    console.print(
        f"{what}\n"
        f"{machine['processor']}, {counted(machine['threads'], 'thread')}, {result['date']}",
        highlight=False,
    )
    for name, stage in result["stages"].items():
        if stage.get("tuning"):
            console.print(f"{name}: {tuning_summary(stage['tuning'])}", highlight=False)
    for name, modules in result.get("peers_missing", {}).items():
        console.print(f"{name} left out: not installed: {', '.join(modules)}", highlight=False)
    for name, stage in result["stages"].items():
        if not stage["parity"]["ok"]:
            op = stage["parity"].get("diverges")
            where = f", first at {op}" if op else ""
            console.print(f"MISMATCH: {name} differs from the eager model{where}", highlight=False)
    if digits and not digits["identical"]:
        console.print("MISMATCH: the stages do not all predict the same digits", highlight=False)


_Entry = Mapping[str, Any] | None  # a stage's or a contestant's entry in the result, if it has one


def _largest(stages: Iterable[Mapping[str, Any]]) -> str:
    errors = [stage["parity"]["max_absolute"] for stage in stages]
    return "unbounded" if None in errors else f"{max(errors):.1e}"


# Cells by heading: _OF_STAGE reads a stage's entry, _OF_TIMES a contestant's times.
_OF_STAGE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "ready in": lambda s: duration(s["seconds_to_ready"]) + ("*" if s["from_cache"] else " "),
    "error": lambda stage: _largest([stage]),
}
_OF_TIMES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "median": lambda entry: duration(entry["median"]),
    "quartiles": lambda entry: interval(entry["lower_quartile"], entry["upper_quartile"]),
    "compared with\neager": lambda entry: _compared(entry["ratio_to_eager"]),
    "compared with\nrung above": lambda entry: _compared(entry.get("ratio_to_previous")),
}
_STAGES = ("ready in", "median", "quartiles", "compared with\neager", "error")
_LADDER = ("median", "compared with\neager", "compared with\nrung above")


def _cell(heading: str, stage: _Entry, entry: _Entry) -> str:
    cells, of = (_OF_STAGE, stage) if heading in _OF_STAGE else (_OF_TIMES, entry)
    return "" if of is None else cells[heading](of)


def _compared(ratio: Mapping[str, float] | None) -> str:
    """Return a ratio of times as text; empty for the ratio of eager to itself."""
    return "" if ratio is None or set(ratio.values()) == {1.0} else compared(ratio)


def to_json(result: Mapping[str, Any]) -> str:
    """Return one JSON object with a newline at its end. Raises ValueError for a NaN or infinity."""
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


def write_atomically(path: Path, content: bytes) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_json(result: Mapping[str, Any], path: Path) -> None:
    """Write the result as a JSON file."""
    write_atomically(path, to_json(result).encode())


def draw_chart(result: Mapping[str, Any], path: Path) -> None:
    """Write a PNG bar chart of the times on a log scale, with times and ratios to eager."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    entries = result["timing"]["contestants"]
    names = [entry["name"] for entry in entries]
    medians = [entry["median"] for entry in entries]
    below = [entry["median"] - entry["lower_quartile"] for entry in entries]
    above = [entry["upper_quartile"] - entry["median"] for entry in entries]
    kinds = [
        "eager" if index == 0 else "stage" if name in result["stages"] else "peer"
        for index, name in enumerate(names)
    ]

    figure = Figure(figsize=(9, 1.6 + 0.55 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(
        range(len(names)),
        medians,
        xerr=[below, above],
        color=[_COLOURS[kind] for kind in kinds],
        error_kw={"ecolor": "#303030", "capsize": 3, "elinewidth": 1},
        height=0.66,
    )
    for row, entry in enumerate(entries):
        text = duration(entry["median"])
        if row:
            text += f"   {compared(entry['ratio_to_eager'])}"
        axes.annotate(
            text,
            (entry["upper_quartile"], row),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_xscale("log")
    # Leave room for labels to the right of the longest bar, and make the shortest bar visible.
    axes.set_xlim(min(medians) / 3, max(medians) * (max(medians) / min(medians) * 3) ** 0.4 * 1.5)
    axes.xaxis.set_major_formatter(lambda seconds, position: duration(seconds))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", which="major", color="#d0d0d0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("time of one inference, log scale; shorter is faster; whiskers are quartiles")
    shapes = ", ".join("x".join(map(str, x["shape"])) for x in result["inputs"])
    machine = result["machine"]
    axes.set_title(
        f"{result['model']}, input {shapes}, {result['device']}: "
        "time, and speed compared with eager\n"
        f"{machine['processor']}, {counted(machine['threads'], 'thread')}, "
        f"{result['date'][:10]}",
        loc="left",
        fontsize=10,
    )
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG file, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    write_atomically(path, content.getvalue())
