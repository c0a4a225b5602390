"""Losses of training steps compiled by `needle_tvm.jit`, compared with the losses of eager steps.

A step clears the gradients, runs forward and backward, clips the gradients by their norm, and
steps the optimizer and a cosine schedule. Losses are compared, not parameters: if a parameter's
gradient is only rounding error (a bias before batch norm), AdamW and Lion turn it into full-size
steps in any direction, which do not affect the loss. The steps are also exported: a process that
has only the artifact continues where another process stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import needle as ndl
import needle_tvm
from bench import harness, tables
from bench.training_models import MODELS
from needle import optim
from needle_runtime.process import command_line as cli
from needle_runtime.process.scratch import scratch_folder

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-3),
    "lion": lambda p: optim.Lion(p, lr=1e-4),
}
NORM = 1.0  # norm to which gradients are clipped
MOST = 1e-9  # allowed relative difference of losses in float64
RATIO = 2.0  # allowed distance of compiled float32 from float64, over the distance of eager float32
HALF = 5  # steps of each of the two processes that have only the artifact

_GOES_ON = """
import sys, numpy as np
import needle_runtime
folder, batches, before, after, first, last = sys.argv[1:]
program = needle_runtime.load(folder)
if before:
    program.load_state(dict(np.load(before)))
with np.load(batches) as file:
    found = [program(*[file[f"{i}.{n}"] for n in range(len(file.files) // int(file["count"]))])
             for i in range(int(first), int(last))]
np.savez(after, **program.state())
assert "needle" not in sys.modules
print(*[float(x).hex() for x in found])
"""


class Training:
    """A model in a dtype with its optimizer and schedule; all instances start equal."""

    def __init__(self, name: str, optimizer: str, dtype: str, steps: int, seed: int = 0) -> None:
        ndl.manual_seed(seed)
        self.model, batch, self.loss = MODELS[name](ndl)
        self.model.to(dtype)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.schedule = optim.CosineAnnealingLR(self.optimizer, steps)
        self.batch = lambda i: tuple(
            x.astype(dtype) if x.dtype.kind == "f" else x for x in batch(i)
        )
        ndl.manual_seed(seed + 1)  # for the dropout

    def step(self, *tensors: Any) -> Any:
        """Run a whole step; return the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model, *tensors)
        loss.backward()
        optim.clip_grad_norm(self.model.parameters(), NORM)
        self.optimizer.step()
        self.schedule.step()
        return loss

    def losses(self, step: Callable[..., Any], numbers: range) -> np.ndarray[Any, Any]:
        """Return the losses of steps on the batches with these numbers."""
        tensors = ([ndl.Tensor(x) for x in self.batch(i)] for i in numbers)
        return np.array([float(step(*each)) for each in tensors])


def distance(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """Return the root of the mean square of the relative differences."""
    return float(np.sqrt(np.mean(((found - wanted) / wanted) ** 2)))


def compare(name: str, optimizer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a model and an optimizer."""
    steps = options.steps
    report: dict[str, Any] = {"model": name, "optimizer": optimizer, "steps": steps}
    curves: dict[tuple[str, str], Any] = {}
    for dtype in ("float64", "float32"):
        eager = Training(name, optimizer, dtype, steps, options.seed)
        curves[dtype, "eager"] = eager.losses(eager.step, range(steps))
        compiled = Training(name, optimizer, dtype, steps, options.seed)
        step = needle_tvm.jit(compiled.step, stage=options.stage)
        start = time.perf_counter()
        first = compiled.losses(step, range(1))
        report[f"seconds {dtype}"] = time.perf_counter() - start
        rest = compiled.losses(step, range(1, steps))
        curves[dtype, "compiled"] = np.concatenate([first, rest])
        report[f"compilations {dtype}"] = step.cache_info().compilations
    exact, twin = curves["float64", "eager"], curves["float64", "compiled"]
    apart = np.abs(twin - exact) / np.abs(exact)
    report["float64"] = float(apart.max())
    report["float64 within"] = int(np.argmax(apart > MOST)) if apart.max() > MOST else steps
    for way in ("eager", "compiled"):
        report[way] = distance(curves["float32", way], exact)
    report["first loss"], report["last loss"] = float(exact[0]), float(exact[-1])
    if options.export:
        report |= goes_on(compiled, step, steps)
    if options.curves:
        arrays: Any = {" ".join(key): curve for key, curve in curves.items()}
        options.out.mkdir(parents=True, exist_ok=True)
        np.savez(options.out / f"{name}-{optimizer}.npz", **arrays)
    return report


def goes_on(training: Training, step: Any, steps: int) -> dict[str, bool]:
    """Return whether two processes that run the exported step, the second from the first one's
    state, have the same losses and state as one process that runs all calls, and whether that
    process has the losses of the compiled step."""
    numbers = range(steps, steps + 2 * HALF)
    with scratch_folder("needle-bench-") as folder:
        step.export(folder / "step", calls=2 * HALF)
        arrays: Any = {
            f"{i}.{n}": x for i, k in enumerate(numbers) for n, x in enumerate(training.batch(k))
        }
        np.savez(folder / "batches.npz", count=len(numbers), **arrays)

        def run(before: str, after: str, first: int, last: int) -> list[float]:
            files = [
                str(folder / each) if each else ""
                for each in ("step", "batches.npz", before, after)
            ]
            command = [sys.executable, "-c", _GOES_ON, *files, str(first), str(last)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            return list(map(float.fromhex, done.stdout.split()))

        whole = run("", "whole.npz", 0, 2 * HALF)
        parts = run("", "half.npz", 0, HALF) + run("half.npz", "parts.npz", HALF, 2 * HALF)
        with np.load(folder / "whole.npz") as one, np.load(folder / "parts.npz") as two:
            state = all(np.array_equal(one[key], two[key]) for key in one.files)
    own = training.losses(step, numbers)
    return {"resumed": whole == parts and state, "as the step": whole == own.tolist()}


def table(reports: Sequence[Mapping[str, Any]]) -> tables.Rows:
    """Return headings and a row for each model and optimizer."""
    rows = [
        [
            "model",
            "optimizer",
            "steps",
            "loss",
            "float64",
            "within 1e-9 until step",
            "float32 eager",
        ]
    ]
    rows[0] += ["compiled", "compiled / eager", "compile s", "resumed", "as the step"]
    for each in reports:
        seconds = max(each["seconds float64"], each["seconds float32"])
        row = [each["model"], each["optimizer"], str(each["steps"])]
        row += [f"{each['first loss']:.3g} to {each['last loss']:.3g}", f"{each['float64']:.1e}"]
        row += [str(each["float64 within"])]
        row += [f"{each[way]:.1e}" for way in ("eager", "compiled")]
        row += [f"{each['compiled'] / each['eager']:.2f}", f"{seconds:.0f}"]
        bits = [each.get(key) for key in ("resumed", "as the step")]
        rows.append([*row, *["" if x is None else "same bits" if x else "DIFFERS" for x in bits]])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.make_parser("bench.training_curves", __doc__)
    add, positive = parser.add_argument, cli.positive
    add("--steps", type=positive, default=500, metavar="N", help="training steps (%(default)s)")
    add("--seed", type=cli.natural, default=0, metavar="N", help="seed of weights (%(default)s)")
    add("--optimizers", nargs="+", choices=OPTIMIZERS, default=tuple(OPTIMIZERS))
    add("--stage", choices=("noopt", "fused", "tuned"), default="tuned")
    add("--export", action="store_true", help="also export each step and resume elsewhere")
    add("--curves", action="store_true", help="also save the losses, as .npz")
    options = parser.parse_args(arguments)
    return cli.guarded("bench.training_curves", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Compare the models and optimizers that were requested."""
    jobs = [
        partial(compare, name, optimizer, options)
        for name in harness.chosen(MODELS, options.parts)
        for optimizer in options.optimizers
    ]
    title = "largest relative difference of losses in float64; distances of float32 from float64"
    return harness.record(
        *(options, "training_curves", jobs, lambda report: [(title, table(report["runs"]))]),
        key="runs",
        how="losses are compared; only compiling is timed",
    )


if __name__ == "__main__":
    sys.exit(main())
