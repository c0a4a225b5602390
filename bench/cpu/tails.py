"""The slowest of many calls of a short and a longer model, in needle and in ONNX Runtime, while up
to four other processes (the neighbours) each keep a core busy."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np

import apps.report
from apps.contestants import check_agreement
from bench import cases, contests
from needle_runtime.process import timing
from needle_runtime.process.child import Child, load_function
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import thread_environment
from needle_runtime.process.timing import Contestant, Spread
from needle_runtime.text import duration
from needle_tvm import terminal

CASES = (cases.Case("mlp-100", 8), cases.Case("transformer", 8))  # about 20 us and 2 ms
NEIGHBOURS = (0, 1, 2, 4)
PEER = "onnxruntime"
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
COMPARED = ("p99", "p99.9")

_SECONDS = 3600.0  # time limit of a child's answer
_WARM = 200  # untimed calls before the first timed call
_SIZE = 256  # size of a neighbour's matrices


def how(options: argparse.Namespace) -> str:
    """Return a description of how the times are taken."""
    return (
        f"{options.count:,} calls of each in {options.rounds} alternating blocks, one process per "
        "contestant; ratios above 1: ours is faster (median, quartiles over the blocks)"
    )


def run_case(case: cases.Case, options: argparse.Namespace) -> dict[str, Any]:
    """Time `options.count` calls of each contestant; return JSON values. For each number of
    neighbours, they have each contestant's `quantiles` in seconds, and the `ratios` of the peer's
    quantiles to ours over the blocks."""
    with scratch_folder("needle-tails-") as folder, terminal.progress() as bar:
        subject = case.subject(folder)
        entries = [subject.called(cases.TUNED, options.threads)]
        entries += subject.peers((PEER,), options.threads)
        check_agreement(timing.collect_outputs(entries))
        found = []
        for number, busy in enumerate(NEIGHBOURS):

            def show(block: int, done: int = number * options.rounds, busy: int = busy) -> None:
                total = len(NEIGHBOURS) * options.rounds
                bar(done + block, total, f"{case.name} beside {busy}: block {block + 1}")

            times = measure(entries, busy, options.count, options.rounds, show)
            found.append({"neighbours": busy, **summarised(times)})
    return {"case": case.name, "count": options.count, "beside": found}


def measure(
    entries: Sequence[Contestant],
    neighbours: int,
    count: int,
    rounds: int,
    show: Callable[[int], None],
) -> dict[str, list[np.ndarray]]:
    """Return the seconds of `count` calls of each contestant, in an array for each of `rounds`
    alternating blocks, while `neighbours` other processes each keep a core busy. `show` gets the
    number of each round."""
    with ExitStack() as stack:
        children = {
            entry.name: stack.enter_context(contests.start(entry, f"{__name__}:serve", _SECONDS))
            for entry in entries
        }
        for child in children.values():
            child.receive("start")
        for number in range(neighbours):
            name, one = f"neighbour {number}", thread_environment(1)
            busy = Child(name, f"{__name__}:spin", {}, timeout=_SECONDS, environment=one)
            stack.enter_context(busy)
        times: dict[str, list[np.ndarray]] = {name: [] for name in children}
        for name in contests.alternating(list(children), rounds, show):
            answer = children[name].ask(command="calls", calls=max(1, count // rounds))
            times[name].append(np.array(answer["seconds"]))
        return times


def summarised(times: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Any]:
    """Return the quantiles of all calls by contestant, and the ratios of the other contestants'
    quantiles to the first one's: medians and quartiles over the blocks, as JSON values."""
    first, *others = times
    quantiles = {}
    for name, blocks in times.items():
        found = np.quantile(np.concatenate(blocks), list(QUANTILES.values()))
        quantiles[name] = dict(zip(QUANTILES, found.tolist(), strict=True))

    def ratio(name: str, share: float) -> Spread:
        pairs = zip(times[first], times[name], strict=True)
        return Spread.of(
            [float(np.quantile(its, share) / np.quantile(ours, share)) for ours, its in pairs]
        )

    ratios = {
        name: {which: asdict(ratio(name, QUANTILES[which])) for which in COMPARED}
        for name in others
    }
    return {"quantiles": quantiles, "ratios": ratios}


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return headings and a row for each contestant of each case and number of neighbours."""
    rows = [["case", "neighbours", "contestant", *QUANTILES]]
    rows[0] += [f"its {which} / {cases.TUNED}'s" for which in COMPARED]
    for case in results:
        for each in case["beside"]:
            for name, found in each["quantiles"].items():
                ratios = each["ratios"].get(name)
                cells = [apps.report.ratio(ratios[w]) if ratios else "" for w in COMPARED]
                times = [duration(found[which]) for which in QUANTILES]
                rows.append([case["case"], str(each["neighbours"]), name, *times, *cells])
    return rows


# Code of the child processes.


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, time `calls` calls of a contestant for each message; answer the `seconds`."""
    call, _ = load_function(setup["factory"])(**setup["kwargs"])
    for _ in range(_WARM):
        call()
    yield {}
    for message in messages:
        marks = [time.perf_counter()]
        for _ in range(message["calls"]):
            call()
            marks.append(time.perf_counter())
        yield {"seconds": np.diff(marks).tolist()}


def spin(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, keep a core busy, with Python and with NumPy, until its parent ends it."""
    threading.Thread(target=_work, daemon=True).start()
    yield from ({} for _ in messages)


def _work() -> NoReturn:
    matrix = np.ones((_SIZE, _SIZE), np.float32)
    while True:
        matrix @ matrix
        sum(range(_SIZE * _SIZE))
