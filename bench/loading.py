"""Load 100 architectures by `needle.torch.load` and compare with PyTorch.

    python -m bench.loading others timm --out out/loading.jsonl   # groups, or single models by name
    python -m bench.loading --out out/loading.jsonl --table       # only what is known so far

The models are the 60 of `bench.zoo_models` and the 40 that `bench.zoo_drawn` draws. Each runs in a
process of its own, with a limit, and gives a line of JSON: the seconds of loading; the largest
difference from PyTorch's results of needle's eager run, of ONNX Runtime's run of the file that
`needle.onnx.export` writes, and of the code at stage `tuned`, whether its export gives the same
bits once it is loaded again; and for 30 models the largest difference of a parameter's gradient.
A result may differ by 1e-4 of its largest element, a gradient by 1e-3. Whatever is refused counts
as wrong. Models that have a right line are left out, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.zoo import difference

STEPS = ("load", "eager", "gradients", "onnx", "tuned")
MOST = {"eager": 1e-4, "gradients": 1e-3, "onnx": 1e-4, "tuned": 1e-4}
DIFFERENTIATED = 30

# A gradient is compared with its own largest element, or with this part of the model's largest: the
# gradient of a bias that a norm or softmax cancels is rounding alone.
_NEGLIGIBLE = 1e-3


def groups() -> dict[str, dict[str, Callable[[], Any]]]:
    """The models by group."""
    from bench.zoo_drawn import DRAWN
    from bench.zoo_models import GROUPS

    return {**GROUPS, **DRAWN}


def differentiated() -> set[tuple[str, str]]:
    """The models (group, name) whose gradients are compared: drawn with seed 17."""
    names = [(group, name) for group, models in groups().items() for name in models]
    return set(random.Random(17).sample(names, DIFFERENTIATED))


def measured(group: str, name: str, steps: Sequence[str]) -> dict[str, Any]:
    """Everything about one model, as a line of the file: what each step found, or why it failed."""
    import torch

    import needle.torch

    torch.manual_seed(0)
    model, args, kwargs = groups()[group][name]()
    inputs = _Inputs(model, args, kwargs)
    row: dict[str, Any] = {}

    def step(name: str, run: Callable[[], dict[str, Any]]) -> None:
        if name not in steps:
            return
        began = time.perf_counter()
        try:
            row[name] = run()
        except Exception as error:  # whatever it is, it is what the line says
            row[name] = {"fails": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
        row[name]["s"] = round(time.perf_counter() - began, 1)

    loaded: list[Any] = []

    def load() -> dict[str, Any]:
        loaded.append(needle.torch.load(inputs.module, *inputs.tensors))
        return {"nodes": len(loaded[0].program.nodes)}

    with tempfile.TemporaryDirectory() as folder:
        row["load"] = {}
        step("load", load)
        if loaded:
            step("eager", lambda: _eager(loaded[0], inputs))
            step("onnx", lambda: _onnx(loaded[0], inputs, Path(folder) / "model.onnx"))
            step("tuned", lambda: _tuned(loaded[0], inputs, Path(folder) / "tuned"))
            step("gradients", lambda: _gradients(loaded[0], inputs))
    return row


class _Inputs:
    """A model as a function of tensors, its example, and PyTorch's results of that."""

    def __init__(self, model: Any, args: Any, kwargs: Any) -> None:
        import torch

        from needle.torch.reading import array_of
        from needle.torch.structure import Flat

        flat = Flat(model, args, kwargs)
        self.module, self.tensors = flat.module, [tensor for _, tensor in flat.tensors]
        self.arrays = [array_of(each) for each in self.tensors]
        with torch.no_grad():
            self.wanted = [array_of(each) for each in self.module(*self.tensors)]


def _eager(loaded: Any, inputs: _Inputs) -> dict[str, Any]:
    import needle as ndl

    with ndl.no_grad():
        found, _ = loaded.functional(inputs.arrays)
    return {"error": difference(inputs.wanted, [each.numpy() for each in found])}


def _onnx(loaded: Any, inputs: _Inputs, file: Path) -> dict[str, Any]:
    import onnxruntime

    import needle.onnx

    needle.onnx.export(loaded, tuple(inputs.arrays), file)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    every = [argument["name"] for argument in loaded.arguments]
    feeds = {n: a for n, a in zip(every, inputs.arrays, strict=True) if n in names}
    return {"error": difference(inputs.wanted, session.run(None, feeds))}


def _tuned(loaded: Any, inputs: _Inputs, folder: Path) -> dict[str, Any]:
    import needle_tvm

    began = time.perf_counter()
    compiled = needle_tvm.compile(loaded, *inputs.arrays, recompile=True)
    seconds = time.perf_counter() - began
    found = compiled.program.run(inputs.arrays)
    compiled.export(folder)
    reloaded = needle_tvm.load(folder).program.run(inputs.arrays)
    return {
        "compile_s": round(seconds, 1),
        "error": difference(inputs.wanted, found),
        "reloads": difference(found, reloaded) == 0.0,
    }


def _gradients(loaded: Any, inputs: _Inputs) -> dict[str, Any]:
    """How far gradients are from PyTorch's. If PyTorch's own are as far from those that it computes
    in float64 (an element is on the edge of a ReLU), the comparison is one in float64."""
    import torch

    import needle.torch

    wanted = _of_pytorch(inputs.module, inputs.tensors)
    found = _far(_of_needle(loaded, inputs.arrays), wanted)
    if found["error"] <= MOST["gradients"]:
        return found
    wide = [each.double() if each.is_floating_point() else each for each in inputs.tensors]
    try:
        exact = _of_pytorch(inputs.module.double(), wide)
        if _far(wanted, exact)["error"] <= MOST["gradients"]:
            return found
        loaded = needle.torch.load(inputs.module, *wide)
    finally:
        inputs.module.to(torch.float32)
    found = _far(_of_needle(loaded, [each.numpy() for each in wide]), exact)
    return {**found, "in": "float64"}


def _factors(shapes: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Random weights for the elements of results."""
    draw = np.random.default_rng(0)
    return [draw.standard_normal(shape).astype("float32") for shape in shapes]


def _of_pytorch(module: Any, tensors: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The gradients of all parameters of the sum of weighted means of the floating results."""
    import torch

    module.zero_grad()
    results = [each for each in module(*tensors) if each.is_floating_point()]
    pairs = zip(results, _factors([each.shape for each in results]), strict=True)
    sum((x * torch.from_numpy(by).to(x.dtype)).mean() for x, by in pairs).backward()
    return {
        name: each.grad.numpy().copy()
        for name, each in module.named_parameters()
        if each.grad is not None
    }


def _of_needle(loaded: Any, arrays: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The same as `_of_pytorch`, by needle."""
    import needle as ndl

    outputs, _ = loaded.functional(arrays)
    results = [each for each in outputs if each.dtype.startswith("float")]
    pairs = zip(results, _factors([each.shape for each in results]), strict=True)
    first, *terms = [(x * ndl.Tensor(by.astype(x.dtype))).mean() for x, by in pairs]
    sum(terms, first).backward()
    return {
        name: each.grad.numpy() for name, each in loaded.named_parameters() if each.grad is not None
    }


def _far(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The largest difference of a gradient, and which."""
    largest = max(np.abs(each).max(initial=0) for each in wanted.values())
    worst, where = 0.0, ""
    for name, want in wanted.items():
        have = found.get(name, np.zeros_like(want))
        scale = max(np.abs(want).max(initial=0), _NEGLIGIBLE * largest, 1e-30)
        off = float(np.abs(have - want).max(initial=0) / scale)
        if not off <= worst:
            worst, where = off, name
    return {"error": worst, "at": where, "parameters": len(wanted)}


def is_right(step: str, found: dict[str, Any]) -> bool:
    """Whether a step of a model gave PyTorch's result."""
    if "fails" in found:
        return False
    return step == "load" or (found["error"] <= MOST[step] and found.get("reloads", True))


def _in_a_process(group: str, name: str, steps: Sequence[str], limit: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.loading", "--one", group, name, "--steps", *steps]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"load": {"fails": f"took more than {limit:.0f} s"}}
    lines = run.stdout.strip().splitlines()
    if run.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    why = (run.stderr.strip().splitlines() or [f"exit {run.returncode}"])[-1][:400]
    return {"load": {"fails": why}}


def _known(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each model."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["model"]: row for row in map(json.loads, lines)}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as a table in Markdown, with counts at the end."""
    heads = ["model", "load s", "eager", "gradients", "ONNX", "tuned", "compile s"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in rows.items():
        cells = [name, _cell("load", row)]
        cells += [_cell(step, row) for step in ("eager", "gradients", "onnx", "tuned")]
        cells.append(str(row.get("tuned", {}).get("compile_s", "")))
        lines.append(f"| {' | '.join(cells)} |")
    for step in STEPS:
        tried = [row for row in rows.values() if step in row or step != "gradients"]
        right = sum(is_right(step, row[step]) for row in tried if step in row)
        lines += ["", f"{step}: {right} of {len(tried)} are right"]
    return "\n".join(lines)


def _cell(step: str, row: dict[str, Any]) -> str:
    found = row.get(step)
    if found is None:
        return ""
    if "fails" in found:
        return found["fails"].replace("|", "/")
    if step == "load":
        return str(found["s"])
    return f"{found['error']:.1e}" + ("" if found.get("reloads", True) else " (reloaded otherwise)")


def main() -> int:
    """Run the models that are asked for and have no right result yet."""
    parser = argparse.ArgumentParser(prog="bench.loading", description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="GROUP|MODEL", help=", ".join(groups()))
    parser.add_argument("--out", type=Path, default=Path("out/loading.jsonl"))
    parser.add_argument("--limit", type=float, default=600, help="seconds for one model")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--table", action="store_true", help="only print what is known")
    parser.add_argument("--one", nargs=2, metavar=("GROUP", "MODEL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(*asked.one, asked.steps)))
        return 0
    unknown = set(asked.which) - {n for models in groups().values() for n in models} - set(groups())
    if unknown:
        parser.error(f"{min(unknown)!r} is neither a group nor a model")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    chosen = differentiated()
    for group, models in () if asked.table else groups().items():
        for name in models:
            steps = [s for s in asked.steps if s != "gradients" or (group, name) in chosen]
            wanted = not asked.which or group in asked.which or name in asked.which
            known = _known(asked.out).get(f"{group}/{name}", {})
            if not wanted or all(step in known and is_right(step, known[step]) for step in steps):
                continue
            row = {"model": f"{group}/{name}", **_in_a_process(group, name, steps, asked.limit)}
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(table(_known(asked.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
