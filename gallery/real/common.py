"""The common part of this folder's scripts: needle_tvm compiles a model from an installed package,
and the results are compared with those of the same model in ONNX Runtime.

A script makes a `Real` for each model file, calls it on generated inputs, and ends with `report`,
which writes NAME.json and the exported artifact NAME/ to the folder `--out`. Every call compares
all outputs with ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import needle_runtime
import needle_tvm
from needle_runtime.artifact.tolerance import MODEL, compare, largest_magnitude
from needle_runtime.process.timing import Contestant, contest, load_arrays, save_arrays

ROUNDINGS = 4  # allowed multiple of float32's own error: see `Real.rounding`
Arrays = dict[str, np.ndarray]


def options() -> argparse.Namespace:
    """Parse the options of every script."""
    parser = argparse.ArgumentParser(prog=Path(sys.argv[0]).name, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("out/real"), help="folder of results")
    parser.add_argument("--no-times", action="store_true", help="do not time the models")
    found = parser.parse_args()
    found.out.mkdir(parents=True, exist_ok=True)
    return found


def package_file(package: str, *parts: str) -> Path:
    """Return the path of a file in an installed package; the package is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {package!r} is not installed: make zoo installs it")
    path = Path(spec.submodule_search_locations[0], *parts)
    if not path.is_file():
        raise SystemExit(f"the package {package!r} has no {'/'.join(parts)}")
    return path


class Real:
    """A model from a file, compiled for inputs of the shapes and dtypes of `example`.

    `fixed` are inputs that never change; ONNX Runtime gets them at each call.
    """

    def __init__(
        self,
        name: str,
        distribution: str,
        path: Path,
        example: Arrays,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        import onnxruntime

        self.name, self.example, self.path = name, example, path
        self.package = f"{distribution} {version(distribution)}"
        self.fixed = {key: np.asarray(value) for key, value in (fixed or {}).items()}
        begin = time.perf_counter()
        self.compiled = needle_tvm.compile_onnx(path, example, fixed=fixed, recompile=True)
        self.compile_seconds = time.perf_counter() - begin
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.difference, self.limit = 0.0, MODEL

    def __call__(self, **inputs: np.ndarray) -> list[np.ndarray]:
        """Return the compiled model's outputs. Raises SystemExit if an output's error against ONNX
        Runtime exceeds both 1e-4 and four times float32's own error."""
        found = self.compiled(*[inputs[name] for name in self.example])
        found = found if isinstance(found, (tuple, list)) else [found]
        ours = [tensor.numpy() for tensor in found]
        theirs = self.session.run(None, {**inputs, **self.fixed})
        apart = max(map(_apart, theirs, ours))
        if not apart <= self.limit:  # rare: `rounding` takes longer than the model itself
            self.limit = max(self.limit, ROUNDINGS * self.rounding(inputs, theirs))
        if not apart <= self.limit:
            raise SystemExit(f"{self.name}: an output differs by {apart:.3g}")
        self.difference = max(self.difference, apart)
        return ours

    def rounding(self, inputs: Arrays, theirs: Sequence[np.ndarray]) -> float:
        """Return the error of ONNX Runtime's outputs against the model in float64: a softmax of
        large scores may magnify rounding beyond 1e-4."""
        from needle import Tensor
        from needle.onnx import load

        model = load(self.path, fixed=self.fixed).to("float64")
        wide = [inputs[name] for name in self.example]
        wide = [x.astype("float64") if x.dtype == "float32" else x for x in wide]
        exact = model(*[Tensor(x, requires_grad=False) for x in wide])
        exact = exact if isinstance(exact, (tuple, list)) else [exact]
        return max(map(_apart, [tensor.numpy() for tensor in exact], theirs))

    def report(self, out: Path, times: bool, answer: str, right: bool) -> None:
        """Export the model, time it against ONNX Runtime, and write and print the results."""
        artifact = self.compiled.export(out / self.name)
        found = {
            "model": self.name,
            "package": self.package,
            "compile_seconds": round(self.compile_seconds, 1),
            "milliseconds": self._times(artifact) if times else None,
            "difference": self.difference,
            "limit": self.limit,
            "answer": answer,
            "right": bool(right),
        }
        (out / f"{self.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        sys.stdout.write(
            f"{self.name}: {answer}; compiled in {self.compile_seconds:.1f} s, "
            f"within {self.difference:.1e} of ONNX Runtime\n"
        )
        if not right:
            raise SystemExit(f"{self.name}: the answer is wrong")

    def _times(self, artifact: Path) -> dict[str, float]:
        """Return the median milliseconds of whole calls. needle and ONNX Runtime take turns, each
        in its own process."""
        with tempfile.TemporaryDirectory() as folder:
            inputs = Path(folder, "inputs.npz")
            save_arrays(inputs, {**self.example, **self.fixed})
            shared = {"inputs": str(inputs), "count": len(self.example)}
            here = str(Path(__file__).resolve())
            ours = Contestant("needle", f"{here}:ours", {"path": str(artifact), **shared})
            theirs = {"path": str(self.path), "names": [*self.example, *self.fixed], **shared}
            results = contest([ours, Contestant("ONNX Runtime", f"{here}:theirs", theirs)])
        return {result.name: round(1e3 * result.median, 3) for result in results}


def _apart(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return the largest difference, relative to the largest magnitude if that is above 1."""
    scale = max(1.0, largest_magnitude(wanted))
    return compare(wanted, found, scale=scale, same_dtype=False).relative


# The two sides of a contest, each in a child process.

Calls = tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]


def ours(path: str, inputs: str, count: int) -> Calls:
    """Return a contestant: the exported model, loaded by the runtime and called with arrays."""
    program = needle_runtime.load(path)
    return _turns(lambda arrays: program(*arrays), load_arrays(inputs)[:count])


def theirs(path: str, inputs: str, count: int, names: Sequence[str]) -> Calls:
    """Return a contestant: the model's file in ONNX Runtime with its own threads."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return _turns(
        lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))),
        load_arrays(inputs),
    )


def _turns(run: Callable[[list[np.ndarray]], Any], arrays: list[np.ndarray]) -> Calls:
    """Return a call that cycles through four copies of the inputs, and one that returns the
    outputs."""
    copies = itertools.cycle([[array.copy() for array in arrays] for _ in range(4)])

    def outputs() -> list[np.ndarray]:
        found = run(arrays)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    return lambda: run(next(copies)), outputs
