"""MLPs of several shapes: needle eager and compiled beside PyTorch and ONNX Runtime."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import needle as ndl
import needle_tvm
from benchmarks import apps, contests, tables
from needle_tvm import command_line as cli
from needle_tvm.scratch import scratch_folder
from needle_tvm.timing import Contestant

EAGER, TUNED = "needle eager", "needle tuned"


@dataclass(frozen=True)
class Case:
    """One shape: `batch` rows through a Linear and ReLU between each two neighbouring `sizes`."""

    batch: int
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        widths = set(self.sizes)
        if len(widths) == 1:
            return f"batch {self.batch}, {len(self.sizes) - 1} x {self.sizes[0]}"
        return f"batch {self.batch}, {'-'.join(map(str, self.sizes))}"


DEFAULT = Case(8, (512,) * 6)
CASES = (
    DEFAULT,
    Case(1, (512,) * 6),
    Case(7, (512,) * 6),
    Case(64, (512,) * 6),
    Case(8, (100,) * 6),
    Case(7, (300,) * 4),
    Case(64, (784, 300, 100, 10)),
    Case(1, (1000,) * 3),
    Case(64, (1000,) * 3),
    Case(8, (256,) * 13),
)


def contestants(case: Case, folder: Path, options: argparse.Namespace) -> list[Contestant]:
    """Everything that runs this case, on the same weights and inputs, with files in `folder`."""
    settings = {"batch": case.batch, "sizes": list(case.sizes)}
    model, x = apps.mlp.build(**settings)
    weights, inputs = str(folder / "weights.npz"), str(folder / "inputs.npz")
    apps.contestants.save_arrays(
        weights, {name: value.numpy() for name, value in model.state_dict().items()}
    )
    apps.contestants.save_arrays(inputs, {"x": x})

    ours = f"{apps.contestants.__file__}:"
    eager = {
        "factory": f"{apps.mlp.__file__}:build",
        "options": settings,
        "weights": weights,
        "inputs": inputs,
        "device": "cpu",
    }
    found = [Contestant(EAGER, f"{ours}eager", eager, threads=options.threads)]
    for trials in (0, options.trials) if options.trials else (0,):
        name = f"{TUNED}, {trials} trials" if trials else TUNED
        executable = needle_tvm.compile(
            model, ndl.Tensor(x, requires_grad=False), trials=trials, threads=options.threads
        )
        path = str(executable.export(folder / f"tuned-{trials}"))
        files = {"path": path, "inputs": inputs}
        found.append(Contestant(name, f"{ours}artifact", files, threads=options.threads))
    peers = apps.peers.contestants("mlp", weights, inputs, options.threads)
    if not options.torch_compile:
        peers = [peer for peer in peers if peer.name != apps.peers.TORCH_COMPILE]
    return found + peers


def run_case(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One contest, as JSON values."""
    with scratch_folder("needle-bench-") as folder:
        found = contests.run(case.name, contestants(case, folder, options), options)
    return {**found, "batch": case.batch, "sizes": list(case.sizes)}


def make_parser() -> argparse.ArgumentParser:
    parser = contests.make_parser("benchmarks.mlp", __doc__)
    add = parser.add_argument
    add("--all", action="store_true", help="all shapes, not only the default MLP")
    add("--trials", type=cli.natural, default=0, metavar="N", help="also one tuned so long")
    add("--torch-compile", action="store_true", help="also time torch.compile")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("benchmarks.mlp", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Runs the contests one after the other, printing each as it ends; writes JSON and a chart."""
    cli.check_writable(options.out / "mlp.json")
    report = contests.new_report(options, "mlp")
    for case in CASES if options.all else (DEFAULT,):
        found = run_case(case, options)
        report["cases"].append(found)
        tables.print_case(found)
    tables.print_conditions(report)
    tables.write(report, options.out, "mlp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
