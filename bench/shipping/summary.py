"""The tables and the picture of `bench.shipping`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import charts, tables
from bench.shipping.cpp import DIRECT
from bench.shipping.models import NAMES, OURS
from bench.shipping.starts import NUMPY
from needle_runtime.text import duration, interval

NOT_MEASURED = "not measured"


def parts(report: Mapping[str, Any]) -> list[tuple[str, tables.Rows]]:
    """Return the tables of a report, with their titles."""
    return [
        ("sizes and times", rows(report)),
        ("what pip installs besides NumPy", environment_rows(report)),
    ]


def rows(report: Mapping[str, Any]) -> tables.Rows:
    """Return a row for each size and each case, with a column for each runtime; then the time of a
    process that imports only NumPy, and the time that our call adds to a direct call."""
    names = [name for name in NAMES if name in report["environments"]]
    table = [["", *names]]
    for what, sizes in _sizes(report).items():
        table.append([what, *(_megabytes(sizes.get(name)) for name in names)])
    for case in report["cases"]:
        times = {entry["name"]: _time(entry) for entry in case["contestants"]}
        table.append([case["case"], *(times.get(name, NOT_MEASURED) for name in names)])
    blank = [""] * (len(names) - 1)
    table.append([f"{NUMPY} alone, start to end", duration(report["numpy"]), *blank])
    for case in report["cases"]:
        if OURS in case["calls"]:
            above = f"{tables.microseconds(case['calls'][OURS])} µs"
            table.append([f"{case['case']}, minus a direct call", above, *blank])
    return table


def environment_rows(report: Mapping[str, Any]) -> tables.Rows:
    """Return a row for each distribution of each environment."""
    found = [["for", "distribution", "size"]]
    for name, environment in report["environments"].items():
        for distribution, size in environment["distributions"].items():
            found.append([name, distribution, _megabytes(size)])
    return found


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw sizes and times as ratios to ours."""
    sizes = [_as_case(what, found) for what, found in _sizes(report).items()]
    cases = [*sizes, *report["cases"]]
    charts.draw_ratios({**report, "cases": cases}, path, "size or time", "smaller or faster")


def _sizes(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return bytes by kind and by runtime."""
    environments = {name: each["bytes"] for name, each in report["environments"].items()}
    found = {"environment besides NumPy": environments, "memory, Python": report["memory"]}
    drivers = {name: each for name, each in report["cpp"].items() if name != DIRECT}
    for key, what in (("libraries", "libraries of C++"), ("memory", "memory, C++")):
        found |= {what: {name: each[key] for name, each in drivers.items()}} if drivers else {}
    return found


def _as_case(what: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return sizes as a case, for the picture."""
    others = {name: size / sizes[OURS] for name, size in sizes.items() if name != OURS}
    ratios = {name: dict.fromkeys(("median", "lower", "upper"), r) for name, r in others.items()}
    smallest = {"fastest": min(others, key=lambda name: others[name])} if others else {}
    return {"case": what, "ratios": {OURS: ratios}, **smallest}


def _megabytes(size: int | None) -> str:
    return NOT_MEASURED if size is None else f"{size / 1e6:.1f} MB"


def _time(entry: Mapping[str, Any]) -> str:
    quartiles = interval(entry["lower_quartile"], entry["upper_quartile"])
    return f"{duration(entry['median'])} ({quartiles})"
