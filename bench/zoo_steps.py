"""The steps of `bench.zoo`; each is a function of a Subject."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

import apps.peers
import needle_tvm
from apps.contestants import SETS
from bench import contests
from bench.cpu import kernels
from needle_runtime.artifact.tolerance import MODEL, compare, largest_magnitude, worst
from needle_runtime.process.timing import Calls, ClockedCalls, Contestant, save_arrays
from needle_runtime.text import error_line

MOST = {"eager": MODEL, "gradients": 10 * MODEL, "onnx": MODEL, "tuned": MODEL, "imported": MODEL}
OURS = "needle"

# A gradient's error is relative to its own largest element, or to this fraction of the model's
# largest gradient if that is larger: the gradient of a bias that a norm or softmax cancels is only
# rounding error.
_NEGLIGIBLE = 1e-3

_ROUNDINGS = 4  # factor on PyTorch's own error, for two results with different roundings

Arrays = dict[str, np.ndarray[Any, Any]]
Found = dict[str, Any]


def groups() -> dict[str, dict[str, Callable[[], Any]]]:
    """Return the models by group."""
    from bench.zoo_drawn import DRAWN
    from bench.zoo_models import GROUPS

    return {**GROUPS, **DRAWN}


def made(group: str, name: str) -> Any:
    """Return a model, its arguments and keyword arguments, the same in each process."""
    import torch

    torch.manual_seed(0)
    return groups()[group][name]()


class Subject:
    """A model, the same model as a function of tensors, its example inputs, and PyTorch's results
    for them. Files go to `folder`; `options` are the options of the command."""

    def __init__(self, group: str, name: str, folder: Path, options: argparse.Namespace) -> None:
        import torch

        from needle.torch.arrays import array_of
        from needle.torch.structure import Flat

        self.group, self.name, self.folder, self.options = group, name, folder, options
        self.model, self.args, self.kwargs = made(group, name)
        flat = Flat(self.model, self.args, self.kwargs)
        self.module, self.tensors = flat.module, [tensor for _, tensor in flat.tensors]
        self.arrays = [array_of(each) for each in self.tensors]
        with torch.no_grad():
            self.wanted = [array_of(each) for each in self.module(*self.tensors)]

    @cached_property
    def loaded(self) -> Any:
        """The model as needle's module."""
        import needle.torch

        return needle.torch.load(self.module, *self.tensors)

    @cached_property
    def file(self) -> Path:
        """The ONNX file that PyTorch's exporter writes."""
        from apps.torch_peers import to_onnx

        path = self.folder / "model.onnx"
        newer = {"dynamo": True, "opset_version": None, "verbose": False}
        options = newer if self.options.exporter == "dynamo" else {}
        to_onnx(self.module, self.tensors, path, **options)
        return path

    @property
    def rounding(self) -> float:
        """The error of PyTorch's results against its float64 results; 0 if float64 does not run."""
        import torch

        from needle.torch.arrays import array_of

        wide = [each.double() if each.is_floating_point() else each for each in self.tensors]
        try:
            with torch.no_grad():
                exact = [array_of(each) for each in self.module.double()(*wide)]
        except RuntimeError:  # the model names a dtype itself
            return 0.0
        finally:
            self.module.to(torch.float32)
        return worst(exact, self.wanted)

    @property
    def given(self) -> list[Any]:
        """The inputs of the ONNX file: all inputs on which the results depend."""
        return self.arrays[: len(_session(self.file).get_inputs())]


def _session(file: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def load(subject: Subject) -> Found:
    """Load the model; count its nodes."""
    return {"nodes": len(subject.loaded.program.nodes)}


def eager(subject: Subject) -> Found:
    """Run the model in eager needle."""
    import needle as ndl

    with ndl.no_grad():
        found, _ = subject.loaded.functional(subject.arrays)
    return {"error": worst(subject.wanted, [each.numpy() for each in found])}


def onnx(subject: Subject) -> Found:
    """Run the file that needle writes in ONNX Runtime."""
    import needle.onnx

    file = subject.folder / "exported.onnx"
    needle.onnx.export(subject.loaded, tuple(subject.arrays), file)
    session = _session(file)
    names = [each.name for each in session.get_inputs()]
    every = [argument["name"] for argument in subject.loaded.arguments]
    feeds = {n: a for n, a in zip(every, subject.arrays, strict=True) if n in names}
    return {"error": worst(subject.wanted, session.run(None, feeds))}


def tuned(subject: Subject) -> Found:
    """Check the model compiled at stage tuned."""
    args, kwargs = subject.args, subject.kwargs
    return _compiled(
        subject,
        "torch",
        subject.arrays,
        lambda: needle_tvm.compile_torch(subject.model, *args, kwargs=kwargs, recompile=True),
    )


def imported(subject: Subject) -> Found:
    """Check PyTorch's ONNX file compiled at stage tuned."""
    file, given = subject.file, subject.given
    return _compiled(
        subject, "onnx", given, lambda: needle_tvm.compile_onnx(file, *given, recompile=True)
    )


def _compiled(
    subject: Subject, folder: str, arrays: Sequence[Any], compile: Callable[[], Any]
) -> Found:
    """Return compile seconds, the error, and whether a reloaded export gives the same bits."""
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
    """Compare gradients with PyTorch's. If PyTorch's float32 and float64 gradients differ as much
    (an element is on the edge of a ReLU, say), compare in float64."""
    import torch

    import needle.torch

    wanted = _of_pytorch(subject.module, subject.tensors)
    distance = _far(_of_needle(subject.loaded, subject.arrays), wanted)
    if distance["error"] <= MOST["gradients"]:
        return distance
    wide = [each.double() if each.is_floating_point() else each for each in subject.tensors]
    try:
        exact = _of_pytorch(subject.module.double(), wide)
        if _far(wanted, exact)["error"] <= MOST["gradients"]:
            return distance
        loaded = needle.torch.load(subject.module, *wide)
    finally:
        subject.module.to(torch.float32)
    distance = _far(_of_needle(loaded, [each.numpy() for each in wide]), exact)
    return {**distance, "in": "float64"}


def _factors(shapes: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return random weights for the elements of results."""
    draw = np.random.default_rng(0)
    return [draw.standard_normal(shape).astype("float32") for shape in shapes]


def _of_pytorch(module: Any, tensors: Sequence[Any]) -> Arrays:
    """Return the gradients of all parameters, for a sum of weighted means of floating results."""
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
    """Return the gradients of `_of_pytorch`, by needle."""
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
    """Return the largest difference of a gradient, and the gradient's name."""
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
    """Return a report of one contest, with the profile of our kernels. Raises RuntimeError if our
    contestant fails or its results differ from PyTorch's."""
    from needle_tvm.frontend.loaded_models import graph_of

    options, threads = subject.options, subject.options.threads
    compiled = needle_tvm.compile_torch(
        subject.model, *subject.args, kwargs=subject.kwargs, threads=threads
    )
    artifact = {
        "path": str(compiled.export(subject.folder / "torch")),
        "inputs": _saved(subject.folder / "torch.npz", subject.arrays),
    }
    model = {"group": subject.group, "name": subject.name, "threads": threads}
    torches = [
        replace(peer, factory=f"{__name__}:pytorch")
        for key, peer in apps.peers.PEERS.items()
        if key in options.peers and not peer.reads_onnx and not peer.missing
    ]
    entries = [apps.peers.contestant(peer, model, threads, bound=False) for peer in torches]
    entries += [Contestant(OURS, "apps.contestants:program", artifact, threads=threads)]
    failed = {}
    try:
        inputs = _saved(subject.folder / "onnx.npz", subject.given)
        entries += apps.peers.readers(options.peers, str(subject.file), inputs, threads)
    except Exception as error:  # any error of PyTorch's exporter or ONNX Runtime
        failed["peers that read ONNX"] = error_line(error)
    report = contests.new_report(options, options.peers)
    # Random weights may magnify rounding: ConvMixer's results have three correct digits in float32.
    allowed = max(MODEL, _ROUNDINGS * subject.rounding)
    case = contests.run(f"{subject.group}/{subject.name}", entries, options, tolerance=allowed)
    if OURS in case["failed"]:
        raise RuntimeError(case["failed"][OURS])
    case["failed"] |= failed
    limits = kernels.measure_limits(threads)
    graph = graph_of(subject.loaded, subject.arrays, {})
    case["profile"] = kernels.measure(graph, artifact, threads, limits)
    case["profile"]["limits"] = limits.to_json()
    return report | {"command": options.command, "cases": [case]}


def _saved(path: Path, arrays: Sequence[Any]) -> str:
    save_arrays(path, {str(number): array for number, array in enumerate(arrays)})
    return str(path)


def pytorch(group: str, name: str, threads: int, **how: Any) -> Calls | ClockedCalls:
    """Return a contestant: the model in PyTorch, called with its own arguments. `how` has further
    keywords of `apps.torch_peers.called`."""
    import torch
    from torch.utils import _pytree

    from apps.torch_peers import called
    from needle.torch.arrays import array_of
    from needle.torch.structure import of_result

    torch.set_num_threads(threads)
    model, args, kwargs = made(group, name)
    sets = [
        _pytree.tree_map(partial(torch.roll, shifts=places), (args, kwargs))
        for places in range(SETS)
    ]
    return called(model, sets, lambda found: list(map(array_of, of_result(found)[1])), **how)


STEPS: dict[str, Callable[[Subject], Found]] = {
    each.__name__: each for each in (load, eager, onnx, tuned, imported, times, gradients)
}
