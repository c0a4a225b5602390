"""Forward passes, training steps and a matrix product: needle eager beside PyTorch and NumPy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import apps.contestants
import apps.peers
import apps.report
import needle as ndl
from bench import contests, memory, products, tables
from needle_tvm.process import command_line as cli
from needle_tvm.process import timing
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.timing import Contestant
from needle_tvm.target import host

OURS = "needle eager"
CHANNELS_LAST = f"{apps.peers.TORCH_EAGER}, channels last"
PRODUCT = "gemm"
TORCH = ("torch",)
MEMORY_BATCH = 64  # at which memory is measured besides the models' own


@dataclass(frozen=True)
class Case:
    """A model at one size: `options` are its factory's, `peer` its name in apps/peers.py."""

    name: str
    peer: str
    factory: str
    batch: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What the factory is called with."""
        return {"batch": self.batch, **self.options}


_LSTM = "apps.models.language:lstm"
CASES = (
    Case("mlp", "mlp", "apps.models.mlp:build", 8),
    Case("conv", "conv", "apps.models.resnet:build", 8),
    Case("transformer", "transformer", "apps.models.transformer:build", 8),
    Case("lstm-128", "language", _LSTM, 16, {"words": 1000, "size": 128, "length": 20}),
    Case("lstm-256", "language", _LSTM, 16, {"words": 1000, "size": 256, "length": 35}),
)
NAMES = (*(case.name for case in CASES), PRODUCT)


def save_case(case: Case, folder: Path) -> dict[str, str]:
    """Files of weights, inputs and labels (a class for each row of scores), by what they are."""
    model, inputs = apps.contestants.build_model(case.factory, **case.settings)
    with ndl.no_grad():
        scores = model(*(ndl.Tensor(x, requires_grad=False) for x in inputs))
    scores = scores[0] if isinstance(scores, tuple) else scores
    rows = scores.size // scores.shape[-1]
    files = {name: str(folder / f"{name}.npz") for name in ("weights", "inputs", "labels")}
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    apps.contestants.save_arrays(files["weights"], state)
    apps.contestants.save_arrays(files["inputs"], {f"x{i}": x for i, x in enumerate(inputs)})
    labels = np.random.default_rng(1).integers(0, scores.shape[-1], rows)
    apps.contestants.save_arrays(files["labels"], {"y": labels})
    return files


def contestants(
    case: Case, files: dict[str, str], mode: str, options: argparse.Namespace, device: str = "cpu"
) -> list[Contestant]:
    """needle and PyTorch in `mode`, "forward" or "step", on the same weights and inputs."""
    common = {"weights": files["weights"], "inputs": files["inputs"], "device": device}
    if mode == "step":
        common |= {"labels": files["labels"], "optimizer": options.optimizer}
        function, peer = "training", "training"
    else:
        function, peer = "eager", "forward"
    ours = {"factory": case.factory, "options": case.settings, **common}
    found = [Contestant(OURS, f"apps.contestants:{function}", ours, threads=options.threads)]
    if apps.peers.missing(case.peer, TORCH):
        return found
    twin = apps.peers.TWINS[case.peer]
    theirs = {"twin": twin, "options": case.settings, "threads": options.threads, **common}
    factory = f"apps.torch_peers:{peer}"
    torch = Contestant(apps.peers.TORCH_EAGER, factory, theirs, threads=options.threads)
    found.append(torch)
    if case.peer == "conv":
        kwargs = {**theirs, "channels_last": True}
        found.append(replace(torch, name=CHANNELS_LAST, kwargs=kwargs))
    return found


def product_contestants(size: int, options: argparse.Namespace) -> list[Contestant]:
    """needle's matrix product, NumPy's with two choices of OpenBLAS kernels, and PyTorch's."""
    here, threads = f"{products.__file__}:", options.threads
    found = [
        Contestant(OURS, f"{here}needle_product", {"size": size}, threads=threads),
        Contestant("NumPy", f"{here}numpy_product", {"size": size}, threads=threads),
    ]
    if env := host.openblas_environment():
        name = f"NumPy, {' '.join(map('='.join, env.items()))}"
        found.append(replace(found[1], name=name, env=env))
    if not apps.peers.missing("mlp", TORCH):
        kwargs = {"size": size, "threads": threads}
        found.append(
            Contestant(apps.peers.TORCH_EAGER, f"{here}torch_product", kwargs, threads=threads)
        )
    return found


def measure_memory(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Peak tensor bytes of a training step above those before it, and ours over each peer's."""
    with scratch_folder("needle-bench-") as folder:
        entries = contestants(case, save_case(case, folder), "step", options)
        here = f"{memory.__file__}:"
        probes = [
            replace(entry, factory=f"{here}{'needle' if entry.name == OURS else 'torch'}_step")
            for entry in entries
        ]
        found = timing.collect_outputs(probes)
    peaks = {name: int(arrays[0][0]) for name, arrays in found.items()}
    return {
        "case": f"{case.name}, batch {case.batch}: step with {options.optimizer}",
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
    add("--size", type=positive, default=1024, metavar="N", help=f"of {PRODUCT} (%(default)s)")
    add("--quick", action="store_true", help="5 blocks of each")
    add("--memory", action="store_true", help="measure peaks of memory instead of times")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.training", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Runs the contests one after the other, printing each as it ends; writes JSON and a chart."""
    if options.memory:
        return run_memory(options)
    cli.check_writable(options.out / "training.json")
    if options.quick:
        options.rounds = 5
    report = contests.new_report(options, "language", TORCH)

    def contest(name: str, entries: Sequence[Contestant]) -> None:
        found = contests.run(name, entries, options)
        report["cases"].append(found)
        tables.print_case(found)

    for case in CASES:
        if case.name not in options.only:
            continue
        if options.batch:
            case = replace(case, batch=options.batch)
        with scratch_folder("needle-bench-") as folder:
            files = save_case(case, folder)
            for mode in options.modes:
                text = f"step with {options.optimizer}" if mode == "step" else mode
                title = f"{case.name}, batch {case.batch}: {text}"
                contest(title, contestants(case, files, mode, options))
    if PRODUCT in options.only:
        contest(f"{PRODUCT} {options.size}", product_contestants(options.size, options))
    tables.print_conditions(report)
    tables.write(report, options.out, "training")
    return 0


def run_memory(options: argparse.Namespace) -> int:
    """The models at their own batch and at MEMORY_BATCH (or at --batch); prints and writes JSON."""
    path = options.out / "memory.json"
    cli.check_writable(path)
    report = contests.new_report(options, "language", TORCH)
    with cli.progress() as bar:
        for case in CASES:
            batches = [options.batch] if options.batch else [case.batch, MEMORY_BATCH]
            for batch in batches if case.name in options.only else ():
                bar(len(report["cases"]), len(CASES) * len(batches), f"{case.name}, batch {batch}")
                report["cases"].append(measure_memory(replace(case, batch=batch), options))
    tables.print_memory(report)
    apps.report.write_json(report, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
