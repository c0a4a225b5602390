"""Speed over the batch and the number of threads: contests of one model at many sizes."""

from __future__ import annotations

import argparse
from typing import Any

from bench import cases, contests
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.text import duration

BATCHES = tuple(1 << power for power in range(9))
THREADS = (1, 2)


def run_model(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """A model at every batch with every number of threads, as JSON values: for each contestant
    `threads`, `batch` and the quartiles of the seconds of a call."""
    points = []
    for threads in THREADS:
        for batch in options.batches or BATCHES:
            case = cases.Case(model, batch)
            options = argparse.Namespace(**{**vars(options), "threads": threads})
            with scratch_folder("needle-scaling-") as folder:
                subject = case.subject(folder)
                ours = subject.called(cases.TUNED, threads)
                entries = [ours, *subject.peers(options.peers, threads)]
                title = f"{case.name}, threads {threads}"
                found = contests.run(title, entries, options)
            for entry in found["contestants"]:
                keys = ("name", "median", "lower_quartile", "upper_quartile")
                point = {key: entry[key] for key in keys}
                points.append({"threads": threads, "batch": batch, **point})
    return {"model": model, "points": points}


def table(models: list[dict[str, Any]]) -> list[list[str]]:
    """Headings and a row for each model, number of threads and contestant, a column for each
    batch."""
    points = [(model["model"], point) for model in models for point in model["points"]]
    batches = sorted({point["batch"] for _, point in points})
    rows = [["model", "threads", "", *(f"batch {batch}" for batch in batches)]]
    lines: dict[tuple[str, int, str], dict[int, float]] = {}
    for model, point in points:
        key = (model, point["threads"], point["name"])
        lines.setdefault(key, {})[point["batch"]] = point["median"]
    for (model, threads, name), times in lines.items():
        cells = [duration(times[n]) if n in times else "" for n in batches]
        rows.append([model, str(threads), name, *cells])
    return rows
