"""The picture of a benchmark's results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apps import report
from apps.contestants import CODE
from bench import contests
from needle_runtime.text import counted, digits

_OURS = "#1f6fb4"
_COLOURS = ("#d98324", "#4c9a5b", "#a63d40", "#7a5195", "#8c6d46", "#5f8a8b", "#b0a030", "#606060")


def draw_ratios(
    result: Mapping[str, Any], path: Path, quantity: str = "time", better: str = "faster"
) -> None:
    """Draw a row for each case, with a dot and quartiles for each contestant, except those that
    call compiled code directly. A dot shows the contestant's time divided by that of our own
    contestant (the last, if there are several), on a log scale. Draw nothing if no case has one of
    our contestants. `quantity` and `better` are words for the label of the axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    cases = [case for case in result["cases"] if contests.base(case)]
    if not cases:
        return
    all_ratios = [case["ratios"][contests.base(case)] for case in cases]
    called = (name for ratios in all_ratios for name in ratios if not name.endswith(CODE))
    names = dict.fromkeys(called)
    colours = dict(zip(names, _COLOURS * (1 + len(names) // len(_COLOURS)), strict=False))
    figure = Figure(figsize=(9, 1.8 + 0.42 * len(cases)), layout="constrained")
    axes = figure.add_subplot()
    for name, colour in colours.items():
        rows = [row for row, ratios in enumerate(all_ratios) if name in ratios]
        ratios = [each[name] for each in all_ratios if name in each]
        medians = [ratio["median"] for ratio in ratios]
        below = [ratio["median"] - ratio["lower"] for ratio in ratios]
        above = [ratio["upper"] - ratio["median"] for ratio in ratios]
        axes.errorbar(
            medians, rows, xerr=[below, above], fmt="o", color=colour, markersize=6, label=name
        )
    for row, case in enumerate(cases):
        ratio = all_ratios[row].get(case.get("fastest"))
        if ratio:
            axes.annotate(
                digits(ratio["median"]),
                (ratio["median"], row),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.set_xscale("log")
    axes.axvline(1, color=_OURS, linewidth=1.4)
    axes.set_yticks(range(len(cases)), [case["case"] for case in cases])
    axes.set_ylim(len(cases) - 0.4, -0.7)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, position: digits(value))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    ours = " or ".join(dict.fromkeys(str(contests.base(case)) for case in cases))
    axes.set_xlabel(
        f"{quantity} / {quantity} of {ours}, log scale; right of the line: ours is {better}"
    )
    if names:
        figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=4)
    axes.set_title(_where(result), loc="left", fontsize=10)
    report.save_figure(figure, path)


def _where(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    threads = [counted(machine["threads"], "thread")] if "threads" in machine else []
    return ", ".join([machine["processor"], *threads, result["date"][:10]])
