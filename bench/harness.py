"""The run of a benchmark of many contests: each is printed and kept as it ends."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import apps.report
from bench import contests, tables
from needle_tvm.errors import UsageError
from needle_tvm.process import command_line as cli
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Contestant

# The contestants and, if they are known, the outputs in float64.
Entries = tuple[Sequence[Contestant], Sequence[np.ndarray] | None]
# By the title of a contest a function of the options and of a folder for files.
Cases = Mapping[str, Callable[[argparse.Namespace, Path], Entries]]


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of every benchmark on a CPU, and parts of titles that choose contests."""
    parser = contests.make_parser(program, description)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of a case's name (all cases)")
    return parser


def run(
    options: argparse.Namespace,
    name: str,
    cases: Cases,
    peers: Sequence[str],
    notes: Sequence[str] = (),
    title: str = "beside the fastest peer of each case",
    table: Callable[[Sequence[Mapping[str, Any]]], tables.Rows] = tables.summary,
) -> int:
    """Run the contests that `options.parts` choose, print each as it ends; write all of them to
    NAME.json and a page with `table` under `title`.

    `peers` are the keys of peers that may be missing. Raises UsageError if no title has any of the
    parts.
    """
    chosen = [
        each for each in cases if not options.parts or any(part in each for part in options.parts)
    ]
    if not chosen:
        raise UsageError(f"no case's name has any of {options.parts}: {', '.join(cases)}")
    target = options.out / f"{name}.json"
    cli.check_writable(target)
    report = contests.new_report(options, peers) | {"notes": list(notes)}
    for each in chosen:
        with scratch_folder("needle-bench-") as folder:
            entries, exact = cases[each](options, folder)
            report["cases"].append(contests.run(each, entries, options, exact))
        tables.print_case(report["cases"][-1])
        apps.report.write_json(report, target)  # kept if a later one fails
    tables.publish(report, options.out, name, [(title, table(report["cases"]))])
    return cli.OK
