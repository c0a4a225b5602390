"""What a call takes besides its code: models with next to no arithmetic and one to six inputs and
outputs, called in every way, beside ONNX Runtime."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import apps.report
from apps import models
from bench import cases, contests, tables
from bench.contests import ARRAYS, CODE, RUNTIME
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.text import counted, duration

COUNTS = range(1, 7)
PEER = "onnxruntime"


def run_case(count: int, options: argparse.Namespace) -> dict[str, Any]:
    """A contest (see `contests.run`) of a Linear(4, 4) with ReLU for each of `count` inputs."""
    case = cases.Case(counted(count, "input"), 1, drawn=models.tiny_model(count))
    with scratch_folder("needle-calls-") as folder:
        subject = case.subject(folder)
        entries = subject.ways(cases.TUNED, options.threads)
        entries.append(subject.called(cases.TUNED + ARRAYS, options.threads, arrays=True))
        entries += subject.peers((PEER,), options.threads, code=True)
        return contests.run(case.name, entries, options, exact=subject.exact())


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Headings and a row for each case: the time of the code, what each way to call it adds in
    microseconds, and the peer's call."""
    ways = {"exe(Tensor)": "", "exe(array)": ARRAYS, "program(array)": RUNTIME}
    peer = apps.peers.PEERS[PEER].name
    rows = [["case", "code", *(f"{way} - code, µs" for way in ways)]]
    rows[0] += [f"{peer}'s call", "its time / exe(Tensor)"]
    for case in results:
        medians = {entry["name"]: entry["median"] for entry in case["contestants"]}
        ratio = case["ratios"][cases.TUNED].get(peer)
        rows.append(
            [
                case["case"],
                duration(medians[cases.TUNED + CODE]),
                *(tables.microseconds(case["calls"][cases.TUNED + way]) for way in ways.values()),
                duration(medians[peer]) if peer in medians else "",
                apps.report.ratio(ratio) if ratio else "",
            ]
        )
    return rows
