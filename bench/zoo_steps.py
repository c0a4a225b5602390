"""What `bench.zoo` does with a model: each step is a function of a Subject."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import apps.peers
import needle_tvm
from apps.contestants import Calls
from needle_tvm.artifact.tolerance import MODEL, compare, largest_magnitude, worst
from needle_tvm.process.threads import available_cores
from needle_tvm.process.timing import Contestant, contest, save_arrays

MOST = {"eager": MODEL, "gradients": 10 * MODEL, "onnx": MODEL, "tuned": MODEL, "imported": MODEL}
BLOCK_SECONDS = 0.15
TIMED = ("needle", "PyTorch", "needle, from ONNX", "ONNX Runtime")

# A gradient is compared with its own largest element, or with this part of the model's largest: the
# gradient of a bias that a norm or softmax cancels is rounding alone.
_NEGLIGIBLE = 1e-3

Arrays = dict[str, np.ndarray[Any, Any]]
Found = dict[str, Any]


def groups() -> dict[str, dict[str, Callable[[], Any]]]:
    """The models by group."""
    from bench.zoo_drawn import DRAWN
    from bench.zoo_models import GROUPS

    return {**GROUPS, **DRAWN}


class Subject:
    """A model, also as a function of tensors, with its example and PyTorch's results of it; files
    go to `folder`."""

    def __init__(self, group: str, name: str, folder: Path, exporter: str, rounds: int) -> None:
        import torch

        from needle.torch.arrays import array_of
        from needle.torch.structure import Flat

        self.group, self.name, self.folder = group, name, folder
        self.exporter, self.rounds = exporter, rounds
        torch.manual_seed(0)
        self.model, self.args, self.kwargs = groups()[group][name]()
        flat = Flat(self.model, self.args, self.kwargs)
        self.module, self.tensors = flat.module, [tensor for _, tensor in flat.tensors]
        self.arrays = [array_of(each) for each in self.tensors]
        with torch.no_grad():
            self.wanted = [array_of(each) for each in self.module(*self.tensors)]
        self._loaded: Any = None

    @property
    def loaded(self) -> Any:
        """needle's module."""
        import needle.torch

        if self._loaded is None:
            self._loaded = needle.torch.load(self.module, *self.tensors)
        return self._loaded

    @property
    def file(self) -> Path:
        """The ONNX file that PyTorch's exporter writes."""
        from apps.torch_peers import to_onnx

        path = self.folder / "model.onnx"
        if not path.exists():
            newer = {"dynamo": True, "opset_version": None, "verbose": False}
            options = newer if self.exporter == "dynamo" else {}
            to_onnx(self.module, self.tensors, path, **options)
        return path

    @property
    def given(self) -> list[Any]:
        """The inputs that the ONNX file takes: those that the results need."""
        return self.arrays[: len(_session(self.file).get_inputs())]


def _session(file: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def load(subject: Subject) -> Found:
    """Whether the model loads."""
    return {"nodes": len(subject.loaded.program.nodes)}


def eager(subject: Subject) -> Found:
    """needle's own run of it."""
    import needle as ndl

    with ndl.no_grad():
        found, _ = subject.loaded.functional(subject.arrays)
    return {"error": worst(subject.wanted, [each.numpy() for each in found])}


def onnx(subject: Subject) -> Found:
    """ONNX Runtime's run of the file that needle writes."""
    import needle.onnx

    file = subject.folder / "exported.onnx"
    needle.onnx.export(subject.loaded, tuple(subject.arrays), file)
    session = _session(file)
    names = [each.name for each in session.get_inputs()]
    every = [argument["name"] for argument in subject.loaded.arguments]
    feeds = {n: a for n, a in zip(every, subject.arrays, strict=True) if n in names}
    return {"error": worst(subject.wanted, session.run(None, feeds))}


def tuned(subject: Subject) -> Found:
    """The model compiled at stage tuned."""
    args, kwargs = subject.args, subject.kwargs
    return _compiled(
        subject,
        "torch",
        subject.arrays,
        lambda: needle_tvm.compile_torch(subject.model, *args, kwargs=kwargs, recompile=True),
    )


def imported(subject: Subject) -> Found:
    """PyTorch's ONNX file compiled at stage tuned."""
    file, given = subject.file, subject.given
    return _compiled(
        subject, "onnx", given, lambda: needle_tvm.compile_onnx(file, *given, recompile=True)
    )


def _compiled(
    subject: Subject, folder: str, arrays: Sequence[Any], compile: Callable[[], Any]
) -> Found:
    """How what is compiled does: seconds, the error, and if its export gives the same."""
    began = time.perf_counter()
    compiled = compile()
    seconds = time.perf_counter() - began
    found = compiled.program.run(arrays)
    compiled.export(subject.folder / folder)
    reloaded = needle_tvm.load(subject.folder / folder).program.run(arrays)
    return {
        "compile_s": round(seconds, 1),
        "error": worst(subject.wanted, found),
        "reloads": worst(found, reloaded) == 0.0,
    }


def gradients(subject: Subject) -> Found:
    """How far gradients are from PyTorch's. If PyTorch's own are as far from those that it computes
    in float64 (an element is on the edge of a ReLU), the comparison is one in float64."""
    import torch

    import needle.torch

    wanted = _of_pytorch(subject.module, subject.tensors)
    found = _far(_of_needle(subject.loaded, subject.arrays), wanted)
    if found["error"] <= MOST["gradients"]:
        return found
    wide = [each.double() if each.is_floating_point() else each for each in subject.tensors]
    try:
        exact = _of_pytorch(subject.module.double(), wide)
        if _far(wanted, exact)["error"] <= MOST["gradients"]:
            return found
        loaded = needle.torch.load(subject.module, *wide)
    finally:
        subject.module.to(torch.float32)
    found = _far(_of_needle(loaded, [each.numpy() for each in wide]), exact)
    return {**found, "in": "float64"}


def _factors(shapes: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Random weights for the elements of results."""
    draw = np.random.default_rng(0)
    return [draw.standard_normal(shape).astype("float32") for shape in shapes]


def _of_pytorch(module: Any, tensors: Sequence[Any]) -> Arrays:
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


def _of_needle(loaded: Any, arrays: Sequence[Any]) -> Arrays:
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


def _far(found: Arrays, wanted: Arrays) -> Found:
    """The largest difference of a gradient, and which."""
    sizes = {name: largest_magnitude(want) for name, want in wanted.items()}
    least = _NEGLIGIBLE * max(sizes.values())
    error, where = 0.0, ""
    for name, want in wanted.items():
        have = found.get(name, np.zeros_like(want))
        scale = max(sizes[name], least, 1e-30)
        off = compare(want, have, scale=scale, same_dtype=False).relative
        if off > error:
            error, where = off, name
    return {"error": error, "at": where, "parameters": len(wanted)}


def times(subject: Subject) -> Found:
    """The median of each side that there is, in milliseconds."""
    files = {}
    for name, arrays in (("torch", subject.arrays), ("onnx", subject.given)):
        files[name] = str(subject.folder / f"{name}.npz")
        save_arrays(files[name], {str(i): array for i, array in enumerate(arrays)})

    def artifact(side: str, name: str) -> list[Contestant]:
        path = subject.folder / name
        kwargs = {"path": str(path), "inputs": files[name], "sets": 1}
        return [Contestant(side, "apps.contestants:program", kwargs)] if path.exists() else []

    model = {"group": subject.group, "name": subject.name}
    threads = available_cores()
    sides = [
        *artifact(TIMED[0], "torch"),
        Contestant(TIMED[1], "bench.zoo_steps:pytorch", model),
        *artifact(TIMED[2], "onnx"),
        *apps.peers.readers(("onnxruntime",), str(subject.file), files["onnx"], threads, sets=1),
    ]
    results = contest(sides, rounds=subject.rounds, block_seconds=BLOCK_SECONDS)
    return {"ms": {result.name: round(1e3 * result.median, 3) for result in results}}


def pytorch(group: str, name: str) -> Calls:
    """A contestant: the model in PyTorch, called with its own arguments."""
    import torch

    torch.set_grad_enabled(False)
    model, args, kwargs = groups()[group][name]()
    return lambda: model(*args, **kwargs), lambda: []


STEPS: dict[str, Callable[[Subject], Found]] = {
    each.__name__: each for each in (load, eager, onnx, tuned, imported, times, gradients)
}
