"""Runs a benchmark of many contests; prints and saves each when it ends."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import apps.report
from bench import contests, tables
from needle_runtime.errors import UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.timing import Contestant

# The contestants, the outputs in float64 if they are known, and optionally a tolerance (see
# `contests.run`).
_Exact = Sequence[np.ndarray] | None
Entries = tuple[Sequence[Contestant], _Exact] | tuple[Sequence[Contestant], _Exact, float]
# Maps the title of a contest to a function of the options and of a folder for files.
Cases = Mapping[str, Callable[[argparse.Namespace, Path], Entries]]


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark on a CPU; `parts` selects contests by parts of titles."""
    parser = contests.make_parser(program, description)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help="run the cases whose names contain PART (default: all cases)",
    )
    return parser


def record(
    options: argparse.Namespace,
    name: str,
    jobs: Iterable[Callable[[], dict[str, Any]]],
    parts: Callable[[Mapping[str, Any]], Sequence[tuple[str, tables.Rows]]],
    key: str = "cases",
    peers: Collection[str] = (),
    draw: Callable[[Mapping[str, Any], Path], None] | None = None,
    **facts: Any,
) -> int:
    """Run jobs one after another, and put their results into the report's list `key`. Write the
    report to NAME.json, and a page with the tables that `parts` makes from it.

    `facts` are further values of the report, `peers` the keys of peers that may be missing. `draw`
    adds a picture. If `key` is "cases", each job is a contest, and its result is also printed.
    """
    target = options.out / f"{name}.json"
    cli.check_writable(target)
    report = contests.new_report(options, peers) | {key: [], **facts}
    for job in jobs:
        report[key].append(job())
        if key == "cases":
            tables.print_case(report[key][-1])
        apps.report.write_json(report, target)  # the file stays if a later job fails
    tables.publish(report, options.out, name, parts(report), draw)
    return cli.OK


def run(
    options: argparse.Namespace,
    name: str,
    cases: Cases,
    peers: Collection[str],
    notes: Sequence[str] = (),
    title: str = "against the fastest peer of each case",
    table: Callable[[Sequence[Mapping[str, Any]]], tables.Rows] = tables.summary,
    draw: Callable[[Mapping[str, Any], Path], None] | None = None,
) -> int:
    """Record the contests chosen by `options.parts`, with `table` under `title` (see `record`).

    Raises UsageError if no title contains any of the parts.
    """

    def contest(each: str) -> dict[str, Any]:
        with scratch_folder("needle-bench-") as folder:
            entries, exact, *tolerance = cases[each](options, folder)
            return contests.run(each, entries, options, exact, "float32", *tolerance)

    jobs = [partial(contest, each) for each in chosen(cases, options.parts)]
    return record(
        options,
        name,
        jobs,
        lambda report: [(title, table(report["cases"]))],
        peers=peers,
        draw=draw,
        notes=list(notes),
    )


def chosen(names: Collection[str], parts: Sequence[str]) -> list[str]:
    """Return the names that contain any of the parts, or all names if `parts` is empty. Raises
    UsageError if no name contains any."""
    found = [name for name in names if not parts or any(part in name for part in parts)]
    if not found:
        raise UsageError(f"no case name contains any of {parts}; the cases are {', '.join(names)}")
    return found
