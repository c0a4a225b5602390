"""MLPs of several shapes: needle eager and compiled beside PyTorch and ONNX Runtime."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import needle as ndl
import needle_tvm
from benchmarks import apps, tables
from needle_tvm import timing
from needle_tvm.threads import available_cores
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


def run_case(case: Case, options: argparse.Namespace, progress: timing.Progress) -> dict[str, Any]:
    """One contest, as JSON values: times in seconds, ratios as peer's time / ours."""
    with tempfile.TemporaryDirectory(prefix="needle-bench-") as folder:
        results = timing.contest(
            contestants(case, Path(folder), options),
            rounds=options.rounds,
            block_seconds=options.block_seconds,
            check=apps.contestants.check_agreement,
            progress=progress,
        )
    ours = [result for result in results if result.name.startswith("needle")]
    return {
        "case": case.name,
        "batch": case.batch,
        "sizes": list(case.sizes),
        "contestants": [result.to_dict() for result in results],
        "ratios": {
            mine.name: {
                peer.name: asdict(timing.ratio(mine, peer)) for peer in results if peer is not mine
            }
            for mine in ours
        },
    }


def make_parser() -> argparse.ArgumentParser:
    positive, natural = apps.cli.positive, apps.cli.natural
    parser = apps.cli.Parser(
        prog="python -m benchmarks.mlp", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--all", action="store_true", help="all shapes, not only the default MLP")
    add("--trials", type=natural, default=0, metavar="N", help="also time a model tuned so long")
    add("--torch-compile", action="store_true", help="also time torch.compile")
    add("--rounds", type=positive, default=15, metavar="N", help="blocks of each (%(default)s)")
    add(
        "--block-seconds",
        type=apps.cli.seconds,
        default=0.2,
        metavar="S",
        help="length (%(default)s)",
    )
    add("--threads", type=positive, default=available_cores(), metavar="N", help="(%(default)s)")
    add("--out", type=Path, default=Path("out/bench"), metavar="DIR", help="(%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return apps.cli.guarded("benchmarks.mlp", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Runs the contests one after the other, printing each as it ends; writes JSON and a chart."""
    apps.cli.check_writable(options.out / "mlp.json")
    report: dict[str, Any] = {
        "machine": apps.machine.describe(options.threads),
        "date": apps.machine.now(),
        "needle": ndl.__version__,
        "rounds": options.rounds,
        "block_seconds": options.block_seconds,
        "peers_missing": apps.peers.missing("mlp"),
        "cases": [],
    }
    for case in CASES if options.all else (DEFAULT,):
        with apps.cli.progress() as bar:
            found = run_case(case, options, lambda d, t, _, c=case.name, b=bar: b(d, t, c))
        report["cases"].append(found)
        tables.print_case(found)
    tables.print_conditions(report)
    tables.write(report, options.out, "mlp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
