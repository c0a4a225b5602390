"""Measure whether eager needle and compiled code slow each other down: compare one process that
calls both in turn with two processes that each call one of them alone."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import apps.report
from bench import cases, contests
from needle_runtime.process.child import load_function
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.timing import Calls, Contestant, Spread
from needle_runtime.text import duration

IN_TURN = "needle, in turn"
ALONE = (contests.EAGER, cases.TUNED)


def run_case(case: cases.Case, options: argparse.Namespace) -> dict[str, Any]:
    """Run a contest (see `contests.run`) of eager, compiled and both in turn. In the result,
    `in_turn` is the spread of a ratio over the rounds: the time of both calls in one process,
    divided by the sum of the times of the two calls in separate processes."""
    with scratch_folder("needle-beside-") as folder:
        subject = case.subject(folder)
        alone = [subject.eager(options.threads), subject.called(cases.TUNED, options.threads)]
        setups = [{"factory": entry.factory, "kwargs": dict(entry.kwargs)} for entry in alone]
        factory, threads = f"{__name__}:in_turn", options.threads
        both = Contestant(IN_TURN, factory, {"setups": setups}, threads=threads)
        found = contests.run(case.name, [*alone, both], options)
    blocks = {entry["name"]: entry["blocks"] for entry in found["contestants"]}
    rounds = zip(*(blocks[name] for name in (IN_TURN, *ALONE)), strict=True)
    return {**found, "in_turn": asdict(Spread.of([turn / (a + b) for turn, a, b in rounds]))}


def in_turn(setups: Sequence[Mapping[str, Any]]) -> Calls:
    """Return a contestant that calls the contestants of `setups` in turn; its outputs are those of
    the last one."""
    made = [load_function(each["factory"])(**each["kwargs"]) for each in setups]

    def call() -> None:
        for each, _ in made:
            each()

    return call, made[-1][1]


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row of headings and a row for each case."""
    rows = [["case", *ALONE, "in turn", "in turn / sum of both"]]
    for case in results:
        medians = {entry["name"]: duration(entry["median"]) for entry in case["contestants"]}
        cells = [medians[name] for name in (*ALONE, IN_TURN)]
        rows.append([case["case"], *cells, apps.report.ratio(case["in_turn"])])
    return rows
