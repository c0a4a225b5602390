"""Forward passes, training steps and a matmul: needle eager beside PyTorch and NumPy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import apps.contestants
import apps.peers
import apps.report
from apps.subjects import Subject
from bench import cases, charts, contests, matmul, memory, tables
from needle_tvm.process import command_line as cli
from needle_tvm.process import timing
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Contestant

OURS = contests.EAGER
TORCH = ("torch", "torch-channels-last")
MODELS = ("mlp", "conv", "transformer", "lstm-128", "lstm-256")
NAMES = (*MODELS, matmul.NAME)
MEMORY_BATCH = 64  # memory is measured at this batch besides the models' own


def contestants(
    subject: Subject, mode: str, options: argparse.Namespace, optimizer: str = "sgd"
) -> list[Contestant]:
    """needle and PyTorch in `mode`, "forward" or "step", on the same weights, inputs and labels (a
    class for each row of scores)."""
    threads, device = options.threads, options.device
    found = [subject.eager(threads, device), *subject.peers(TORCH, threads, device=device)]
    if mode == "forward":
        return found
    labels = str(subject.folder / "labels.npz")
    timing.save_arrays(labels, {"y": _labels(subject)})
    more = {"labels": labels, "optimizer": optimizer}
    return [
        replace(
            entry,
            factory=f"{entry.factory.partition(':')[0]}:training",
            kwargs={**entry.kwargs, **more},
        )
        for entry in found
    ]


def _labels(subject: Subject) -> np.ndarray:
    scores = apps.contestants.flatten(subject.model(*subject.tensors))[0]
    rows = scores.size // scores.shape[-1]
    return np.random.default_rng(1).integers(0, scores.shape[-1], rows)


def measure_memory(case: cases.Case, options: argparse.Namespace) -> dict[str, Any]:
    """Peak tensor bytes of a training step above those before it, and ours over each peer's."""
    with scratch_folder("needle-bench-") as folder:
        subject = case.subject(folder)
        probes = [
            replace(
                entry,
                factory=f"{memory.__name__}:{'needle' if entry.name == OURS else 'torch'}_step",
            )
            for entry in contestants(subject, "step", options, options.optimizer)
        ]
        found = timing.collect_outputs(probes)
    peaks = {name: int(arrays[0][0]) for name, arrays in found.items()}
    return {
        "case": f"{case.name}: step with {options.optimizer}",
        "bytes": peaks,
        "ours_over": {n: peaks[OURS] / peak for n, peak in peaks.items() if n != OURS},
    }


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("bench.training", __doc__)
    add, positive = parser.add_argument, cli.positive
    add("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    add("--modes", nargs="+", choices=("forward", "step"), default=("forward", "step"))
    add("--optimizer", choices=("sgd", "adam"), default="sgd", help="(%(default)s, with momentum)")
    add("--batch", type=positive, metavar="N", help="for all models, instead of their own")
    add("--size", type=positive, default=1024, metavar="N", help="of gemm (%(default)s)")
    add("--quick", action="store_true", help="5 blocks of each")
    add("--memory", action="store_true", help="measure peaks of memory instead of times")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.training", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contests one after the other, print each as it ends, write all of them."""
    if options.memory:
        return run_memory(options)
    cli.check_writable(options.out / "training.json")
    if options.quick:
        options.rounds = 5
    report = contests.new_report(options, TORCH)

    def keep(found: dict[str, Any]) -> None:
        report["cases"].append(found)
        tables.print_case(found)

    for case in _chosen(options):
        with scratch_folder("needle-bench-") as folder:
            subject = case.subject(folder)
            for mode in options.modes:
                text = f"step with {options.optimizer}" if mode == "step" else mode
                entries = contestants(subject, mode, options, options.optimizer)
                keep(contests.run(f"{case.name}: {text}", entries, options))
    if matmul.NAME in options.only:
        with scratch_folder("needle-bench-") as folder:
            keep(matmul.run(options.size, options, folder))
    tables.publish(report, options.out, "training", [], charts.draw_ratios)
    return cli.OK


def _chosen(options: argparse.Namespace) -> list[cases.Case]:
    return [
        cases.Case(name, options.batch or cases.MODELS[name].batches[0])
        for name in MODELS
        if name in options.only
    ]


def run_memory(options: argparse.Namespace) -> int:
    """Measure the models at their own batch and at MEMORY_BATCH, or at --batch."""
    cli.check_writable(options.out / "memory.json")
    report = contests.new_report(options, TORCH)
    report["memory"] = []
    planned = [
        replace(case, batch=batch)
        for case in _chosen(options)
        for batch in ([options.batch] if options.batch else [case.batch, MEMORY_BATCH])
    ]
    with cli.progress() as bar:
        for number, case in enumerate(planned):
            bar(number, len(planned), case.name)
            report["memory"].append(measure_memory(case, options))
    title = "most tensor bytes of a step above those before it"
    tables.publish(report, options.out, "memory", [(title, memory_table(report["memory"]))])
    return cli.OK


def memory_table(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Headings and a row for each contestant of each model."""
    rows = [["case", "contestant", "MB", "ours / its"]]
    for each in found:
        for name, size in each["bytes"].items():
            over = each["ours_over"].get(name)
            rows.append([each["case"], name, f"{size / 1e6:.2f}", f"{over:.2f}" if over else ""])
    return rows


if __name__ == "__main__":
    sys.exit(main())
