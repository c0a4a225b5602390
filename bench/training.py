"""Forward passes, training steps and a matmul: needle eager beside PyTorch and NumPy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import apps.contestants
from apps.subjects import Subject
from bench import cases, charts, contests, harness, memory
from kernel_lab import peers, registry
from needle_tvm.process import command_line as cli
from needle_tvm.process import timing
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Contestant

OURS = contests.EAGER
TORCH = ("torch", "torch-channels-last")
MODELS = ("mlp", "conv", "transformer", "lstm-128", "lstm-256")
MATMUL = "gemm"  # of the kernel lab
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


def matmul(options: argparse.Namespace, folder: Path) -> harness.Entries:
    """One square matmul: needle's eager one beside the kernel lab's peers."""
    workload, threads = registry.workload(MATMUL), options.threads
    extents = workload.size("cpu", dict.fromkeys("MNK", options.size))
    arrays, inputs = workload.inputs(extents, 0), str(folder / "inputs.npz")
    timing.save_arrays(inputs, {f"x{number}": array for number, array in enumerate(arrays)})
    ours = Contestant(OURS, "apps.contestants:matmul", {"inputs": inputs}, threads=threads)
    others = [
        peers.contestant(peer, workload, inputs, extents, threads)
        for peer in peers.of(workload, "cpu")
        if not peer.missing
    ]
    return [ours, *others], [workload.reference(extents, arrays)]


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
    parser = harness.make_parser("bench.training", __doc__)
    add, positive = parser.add_argument, cli.positive
    add("--modes", nargs="+", choices=("forward", "step"), default=("forward", "step"))
    add("--optimizer", choices=("sgd", "adam"), default="sgd", help="(%(default)s, with momentum)")
    add("--batch", type=positive, metavar="N", help="for all models, instead of their own")
    add("--size", type=positive, default=1024, metavar="N", help="of gemm (%(default)s)")
    add("--memory", action="store_true", help="measure peaks of memory instead of times")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.training", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the contests of the models in each mode and of the matmul, or measure memory."""
    models = [cases.Case(n, options.batch or cases.MODELS[n].batches[0]) for n in MODELS]
    if options.memory:
        return run_memory(models, options)
    found: dict[str, Any] = {}
    for case in models:
        for mode in options.modes:
            text = f"step with {options.optimizer}" if mode == "step" else mode
            found[f"{case.name}: {text}"] = partial(entries_of, case, mode)
    found[f"{MATMUL} {options.size}"] = matmul
    return harness.run(options, "training", found, TORCH, draw=charts.draw_ratios)


def entries_of(
    case: cases.Case, mode: str, options: argparse.Namespace, folder: Path
) -> harness.Entries:
    """The contestants of a model in a mode."""
    return contestants(case.subject(folder), mode, options, options.optimizer), None


def run_memory(models: Sequence[cases.Case], options: argparse.Namespace) -> int:
    """Measure the models at their own batch and at MEMORY_BATCH, or at --batch."""
    batches = {case.name: replace(case, batch=options.batch or MEMORY_BATCH) for case in models}
    jobs = [
        partial(measure_memory, each, options)
        for case in models
        if case.name in harness.chosen(batches, options.parts)
        for each in dict.fromkeys((case, batches[case.name]))
    ]
    title = "most tensor bytes of a step above those before it"
    return harness.record(
        *(options, "memory", jobs, lambda report: [(title, memory_table(report["memory"]))]),
        key="memory",
        peers=TORCH,
    )


def memory_table(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Headings and a row for each contestant of each model."""
    rows = [["case", "contestant", "MB", "ours / its"]]
    for each in found:
        for name, size in each["bytes"].items():
            over = each["ours_over"].get(name)
            rows.append([each["case"], name, f"{size / 1e6:.2f}", f"{over:.2f}" if over else ""])
    return rows


if __name__ == "__main__":
    sys.exit(main())
