"""The run of a benchmark of many contests: each is printed and kept as it ends."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import apps.report
from bench import contests, tables
from needle_tvm.errors import UsageError
from needle_tvm.process import command_line as cli
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Contestant

# The contestants, the outputs in float64 if they are known, and perhaps a tolerance (see
# `contests.run`).
_Exact = Sequence[np.ndarray] | None
Entries = tuple[Sequence[Contestant], _Exact] | tuple[Sequence[Contestant], _Exact, float]
# By the title of a contest a function of the options and of a folder for files.
Cases = Mapping[str, Callable[[argparse.Namespace, Path], Entries]]


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of every benchmark on a CPU, and parts of titles that choose contests."""
    parser = contests.make_parser(program, description)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of a case's name (all cases)")
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
    """Run jobs one after the other; write what they return to NAME.json, as the report's list
    `key`, and a page of the tables that `parts` makes of the report.

    `facts` are further values of the report, `peers` the keys of peers that may be missing. With
    `draw` there is a picture too. Results that are contests, the `cases`, are printed as they end.
    """
    target = options.out / f"{name}.json"
    cli.check_writable(target)
    report = contests.new_report(options, peers) | {key: [], **facts}
    for job in jobs:
        report[key].append(job())
        if key == "cases":
            tables.print_case(report[key][-1])
        apps.report.write_json(report, target)  # kept if a later one fails
    tables.publish(report, options.out, name, parts(report), draw)
    return cli.OK


def run(
    options: argparse.Namespace,
    name: str,
    cases: Cases,
    peers: Collection[str],
    notes: Sequence[str] = (),
    title: str = "beside the fastest peer of each case",
    table: Callable[[Sequence[Mapping[str, Any]]], tables.Rows] = tables.summary,
    draw: Callable[[Mapping[str, Any], Path], None] | None = None,
) -> int:
    """Record the contests that `options.parts` choose, with `table` under `title` (see `record`).

    Raises UsageError if no title has any of the parts.
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
    """The names that have any of the parts; all without parts. UsageError if none has one."""
    found = [name for name in names if not parts or any(part in name for part in parts)]
    if not found:
        raise UsageError(f"no case's name has any of {parts}: {', '.join(names)}")
    return found
