"""The common part of every lesson: options, progress, and the export and test of the library.

A lesson first calls `Lesson(steps)`, then loops over `lesson.training()`, and ends with
`lesson.finish(...)`, which writes NAME.png, NAME.json and the exported model NAME/ to the folder
`--out`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from scipy.spatial.distance import cdist

import needle as ndl
import needle_tvm
from needle_runtime.artifact.tolerance import MODEL, compare, largest_magnitude

matplotlib.rcParams.update(
    {
        "figure.dpi": 80,
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "image.cmap": "gray_r",
        "image.interpolation": "nearest",
        "legend.frameon": False,
    }
)

# Runs in a separate process without needle or TVM's compiler.
SERVE = """
import sys
import numpy as np
import needle_runtime
program = needle_runtime.load(sys.argv[1])
inputs = np.load(sys.argv[2])
result = program(*[inputs[name] for name in inputs.files])
results = result if isinstance(result, (tuple, list)) else [result]
np.savez(sys.argv[3], *results)
for module in ("needle", "tvm"):
    if module in sys.modules:
        sys.exit(f"the runtime has imported {module}")
"""


class Lesson:
    """One run of a lesson: its options, its clock and its results."""

    def __init__(self, steps: int, **choices: Sequence[str]) -> None:
        """Read the command line. `choices` are further options; the first value is the default.

        Seeds needle; `random` is NumPy's generator for the lesson's random numbers.
        """
        script = Path(sys.argv[0])
        parser = argparse.ArgumentParser(prog=script.name, allow_abbrev=False)
        parser.add_argument("--steps", type=int, default=steps, help="training steps (%(default)s)")
        parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (0)")
        parser.add_argument("--out", type=Path, default=Path("out/gallery"), help="output folder")
        parser.add_argument("--quiet", action="store_true", help="show no progress")
        for option, values in choices.items():
            parser.add_argument(f"--{option}", choices=values, default=values[0])
        self.options = parser.parse_args()
        if self.options.steps < 1:
            parser.error(f"--steps {self.options.steps} is below 1: give 1 or more")
        self.steps: int = self.options.steps
        self.name = "_".join([script.stem, *(getattr(self.options, each) for each in choices)])
        self.random = np.random.default_rng(self.options.seed)
        ndl.manual_seed(self.options.seed)
        self.seconds = 0.0  # seconds of training
        self.history: dict[str, list[float]] = {}  # the values passed to `show`
        self._console = Console(stderr=True, quiet=self.options.quiet, highlight=False)
        self._text = ""

    def training(self, steps: int | None = None, title: str = "") -> Iterator[int]:
        """Yield the step numbers; a bar on stderr shows the progress."""
        steps = self.steps if steps is None else steps
        bar = Progress(
            TextColumn(f"{self.name} {title}".strip()),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        begin = time.perf_counter()
        with bar:
            task = bar.add_task("", total=steps)
            for step in range(steps):
                yield step
                bar.update(task, advance=1, description=self._text)
        self.seconds += time.perf_counter() - begin
        self._say(f"{self.name}: {steps} steps, {self._text}")

    def show(self, **values: Any) -> None:
        """Record this step's values in `history`; the bar shows them."""
        for name, value in values.items():
            self.history.setdefault(name, []).append(float(value))
        self._text = ", ".join(f"{name} {float(value):.3g}" for name, value in values.items())

    def finish(
        self,
        model: ndl.nn.Module,
        inputs: Sequence[Any],
        figure: Figure,
        *,
        metric: str,
        score: float,
        baseline: float,
        against: str,
        better: str = "higher",
    ) -> None:
        """Compile, export, reload and compare the model; save the picture and the figures.

        `score` is the model's `metric` on data outside its training data; `baseline` is the same
        metric of the simpler method, which `against` names. Raises SystemExit if the library's
        results differ from the eager model's.
        """
        out: Path = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        model.eval()
        tensors = [ndl.Tensor(np.asarray(x), requires_grad=False) for x in inputs]
        compiled = needle_tvm.compile(model, *tensors, recompile=True)  # the time is measured
        compile_seconds = time.perf_counter() - begin
        library = compiled.export(out / self.name)
        difference = self._difference(library, model, tensors)
        figure.savefig(out / f"{self.name}.png")
        found = {
            "model": self.name,
            "parameters": sum(p.size for p in model.parameters()),
            "steps": self.steps,
            "train_seconds": round(self.seconds, 2),
            "compile_seconds": round(compile_seconds, 2),
            "metric": metric,
            "score": float(score),
            "baseline": float(baseline),
            "against": against,
            "better": better,
            "beats_baseline": bool(score > baseline if better == "higher" else score < baseline),
            "library_bytes": (library / "lib.so").stat().st_size,
            "max_difference": difference,
        }
        (out / f"{self.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        self._say(
            f"{self.name}: {metric} {score:.4g} ({against}: {baseline:.4g}); trained in "
            f"{self.seconds:.1f} s, compiled in {compile_seconds:.1f} s; library and eager model "
            f"differ by {difference:.1e}; see {out / self.name}.png"
        )

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _difference(self, library: Path, model: Any, tensors: list[Any]) -> float:
        """Run the exported model without needle; return the largest difference."""
        with ndl.no_grad():
            eager = model(*tensors)
        eager = [y.numpy() for y in (eager if isinstance(eager, (tuple, list)) else [eager])]
        with tempfile.TemporaryDirectory() as folder:
            given, result = Path(folder, "x.npz"), Path(folder, "y.npz")
            np.savez(given, *[x.numpy() for x in tensors])
            command = [sys.executable, "-c", SERVE, str(library), str(given), str(result)]
            subprocess.run(command, check=True)
            with np.load(result) as arrays:
                served = [arrays[name] for name in arrays.files]
        differences = [0.0]
        for ours, theirs in zip(eager, served, strict=True):
            compared = compare(ours, theirs, MODEL, scale=max(1.0, largest_magnitude(ours)))
            if not compared.right:
                raise SystemExit(f"{self.name}: the library differs: {compared.what}")
            differences.append(compared.absolute)
        return max(differences)


def predict(model: Any, *arrays: Any) -> Any:
    """Return the eager model's result as NumPy arrays, in eval mode and without gradients."""
    was_training = model.training
    model.eval()
    with ndl.no_grad():
        result = model(*[ndl.Tensor(np.asarray(x), requires_grad=False) for x in arrays])
    model.train() if was_training else model.eval()
    if isinstance(result, tuple):
        return tuple(y.numpy() for y in result)
    return result.numpy()


def looks_of(layers: Any, model: Any, x: Any) -> list[np.ndarray[Any, Any]]:
    """Return each encoder layer's attention (N, tokens, tokens), from every token to every
    token."""
    attentions = [layer.self_attn for layer in layers]
    seen: list[Any] = []
    hooks = [a.register_forward_hook(lambda _, given, y: seen.append(given[0])) for a in attentions]
    predict(model, x)
    for hook in hooks:
        hook.remove()
    with ndl.no_grad():
        return [a(y, y, y)[1].numpy() for a, y in zip(attentions, seen, strict=True)]


def likeness(real: np.ndarray[Any, Any], made: np.ndarray[Any, Any], k: int = 3) -> float:
    """Return how well the samples `made` (n, features) cover the samples `real`, from 0 to 1.

    Precision is the share of `made` samples that are at least as close to some real sample as its
    k-th real neighbour; recall exchanges `real` and `made` (Kynkäänniemi et al. 2019). The result
    is the harmonic mean of both.
    """

    def covered(points: np.ndarray[Any, Any], centres: np.ndarray[Any, Any]) -> float:
        radius = np.sort(cdist(centres, centres), axis=1)[:, k]
        return float((cdist(points, centres) <= radius).any(1).mean())

    precision, recall = covered(made, real), covered(real, made)
    return 2 * precision * recall / max(precision + recall, 1e-9)


def laid_out(near: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return positions (n, 2) for the nodes of a graph; `near` (n, n) is 1 for neighbours.

    Neighbours attract each other; all nodes repel each other (Fruchterman and Reingold 1991).
    """
    n = len(near)
    places = random.standard_normal((n, 2))
    for heat in np.linspace(0.2, 0.002, 300):
        apart = places[:, None] - places
        distance = np.maximum(np.linalg.norm(apart, axis=-1, keepdims=True), 0.01)
        force = (apart * (1 / (n * distance**2) - near[..., None] * distance)).sum(1)
        size = np.maximum(np.linalg.norm(force, axis=-1, keepdims=True), 1e-9)
        places = places + force / size * np.minimum(size, heat)
    return places


def tiles(images: np.ndarray[Any, Any], columns: int) -> np.ndarray[Any, Any]:
    """Return images (N, h, w) as one image with gaps, (rows * (h + 1), columns * (w + 1))."""
    count, height, width = images.shape
    rows = -(-count // columns)
    canvas = np.zeros((rows * columns, height + 1, width + 1), images.dtype)
    canvas[:count, :height, :width] = images
    grid = canvas.reshape(rows, columns, height + 1, width + 1)
    return grid.transpose(0, 2, 1, 3).reshape(rows * (height + 1), columns * (width + 1))
