"""Other frameworks that run the same model, and the packages and options that each needs.

Each peer is a contestant for needle_runtime.process.timing in its own process, with our weights and
inputs. `PEERS` describes each peer under the key that selects it.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.contestants import CODE
from apps.models import Model
from needle_runtime.process.child import Child
from needle_runtime.process.threads import thread_environment
from needle_runtime.process.timing import Contestant

_EXPORT_SECONDS = 300.0


@dataclass(frozen=True)
class Peer:
    """One way to run a model.

    `factory` is a factory for needle_runtime.process.timing. Factories in onnx_peers.py get an ONNX
    file, the others the arguments of torch_peers.load. `modules` and `programs` must be installed.
    With `images` the peer takes only models with inputs of four axes; with `gpu` it also runs on a
    GPU; `without` names twins that it cannot run. A `slow` peer takes so long to compile or to run
    that it runs only on request. If the peer `binds`, its factory takes `bound`.
    """

    name: str
    factory: str
    modules: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Callable[[int], Mapping[str, str]] = lambda threads: {}
    programs: tuple[str, ...] = ()
    images: bool = False
    gpu: bool = False
    without: tuple[str, ...] = ()
    slow: bool = False
    binds: bool = False

    @property
    def reads_onnx(self) -> bool:
        """Whether the peer reads the model from an ONNX file."""
        return self.factory.startswith("apps.onnx_peers:")

    @property
    def missing(self) -> list[str]:
        """Modules and programs that are not installed."""
        needed = ("torch", "onnx", *self.modules) if self.reads_onnx else self.modules
        return [name for name in needed if importlib.util.find_spec(name) is None] + [
            name for name in self.programs if shutil.which(name) is None
        ]


TORCH_EAGER = "PyTorch eager"


def _torch_compile(how: str = "", **options: Any) -> Peer:
    name, needs = f"torch.compile{how}", ("torch",)
    options = {"compiled": True, **options}
    return Peer(name, _TORCH, needs, options, programs=("g++",), gpu=True, slow=True)


_TORCH = "apps.torch_peers:forward"
PEERS = {
    "torch": Peer(TORCH_EAGER, _TORCH, ("torch",), gpu=True),
    "torch-channels-last": Peer(
        *(f"{TORCH_EAGER}, channels last", _TORCH, ("torch",), {"channels_last": True}),
        images=True,
        gpu=True,
    ),
    "torch-compile": _torch_compile(),
    "torch-compile-plain": _torch_compile(", not frozen", frozen=False),
    "torch-compile-default": _torch_compile(", default mode", frozen=False, mode="default"),
    "onnxruntime": Peer(
        "ONNX Runtime", "apps.onnx_peers:onnxruntime", ("onnxruntime",), binds=True
    ),
    "openvino": Peer("OpenVINO", "apps.onnx_peers:openvino", ("openvino",), binds=True),
    "jax": Peer(
        "JAX",
        "apps.onnx_peers:jax",
        ("jax", "onnxruntime"),
        environment=lambda n: {"NPROC": str(n)},
    ),
    "tinygrad": Peer(
        "tinygrad",
        "apps.onnx_peers:tinygrad",
        ("tinygrad",),
        environment=lambda n: {"DEV": "CPU", "NUM_CPU_THREADS": str(n)},
        programs=("clang",),
        without=("LSTM", "LanguageModel"),  # it has no LSTM
        slow=True,
    ),
    "tvm": Peer("TVM, unscheduled", "apps.torch_peers:stock_tvm", ("torch", "tvm"), slow=True),
}
QUICK = tuple(key for key, peer in PEERS.items() if not peer.slow)


@dataclass(frozen=True)
class Files:
    """A model's saved weights and inputs, and a folder for further files that peers need."""

    weights: str
    inputs: str
    folder: Path


def contestants(
    model: Model,
    files: Files,
    threads: int,
    *,
    options: Mapping[str, Any] | None = None,
    images: bool = False,
    names: Collection[str] = QUICK,
    device: str = "cpu",
    precision: str = "float32",
    code: bool = False,
    axes: Mapping[int, str] | None = None,
) -> list[Contestant]:
    """Return the installed peers among `names` that can run the model; a user's own model has no
    peers. With `code`, also return a second contestant for each peer that can bind inputs and
    outputs beforehand.

    A model with a twin runs in PyTorch and in peers that read its ONNX file; a model from an ONNX
    file runs only in peers that read it. `options` are the options of the model's factory in
    needle; `images` says that an input has four axes; `device` is PyTorch's name of the device, and
    `precision` PyTorch's precision (a key of torch_peers.PRECISIONS). Writes the ONNX file if a
    peer reads one; in it, `axes` of the only input are dynamic and have these names. Raises
    needle_tvm's ChildError if PyTorch cannot write it.
    """
    if model.onnx and device == "cpu":
        return readers(names, model.onnx, files.inputs, threads, code)
    if not model.twin:
        return []
    chosen = [
        peer
        for key, peer in PEERS.items()
        if key in names
        and not peer.missing
        and model.twin not in peer.without
        and (images or not peer.images)
        and (peer.gpu or device == "cpu")
    ]
    load = {
        "twin": model.twin,
        "options": dict(options or {}),
        "weights": files.weights,
        "inputs": files.inputs,
        "threads": threads,
        "device": device,
        "precision": precision,
    }
    onnx = ""
    if any(peer.reads_onnx for peer in chosen):
        onnx = write_onnx(load, files.folder / "model.onnx", axes)
    read = {"inputs": files.inputs, "threads": threads, "onnx": onnx}
    return _each([(peer, read if peer.reads_onnx else load) for peer in chosen], threads, code)


def readers(
    names: Collection[str], onnx: str, inputs: str, threads: int, code: bool = False
) -> list[Contestant]:
    """Return the installed peers among `names` that read the ONNX file `onnx`, as contestants; with
    `code`, also return bound contestants."""
    read = {"inputs": inputs, "threads": threads, "onnx": onnx}
    found = [PEERS[name] for name in PEERS if name in names and PEERS[name].reads_onnx]
    return _each([(peer, read) for peer in found if not peer.missing], threads, code)


def _each(
    chosen: Sequence[tuple[Peer, Mapping[str, Any]]], threads: int, code: bool
) -> list[Contestant]:
    """Return contestants from peers and their factories' arguments; with `code`, bound ones too."""
    return [
        contestant(peer, given, threads, bound)
        for bound in ((False, True) if code else (False,))
        for peer, given in chosen
        if peer.binds or not bound
    ]


def contestant(peer: Peer, given: Mapping[str, Any], threads: int, bound: bool) -> Contestant:
    """Return a peer's contestant, as users call it or `bound`; its factory takes `given`."""
    return Contestant(
        peer.name + CODE if bound else peer.name,
        peer.factory,
        {**peer.options, **given, **({"bound": True} if bound else {})},
        env=peer.environment(threads),
        threads=threads,
    )


def write_onnx(load: Mapping[str, Any], path: Path, axes: Mapping[int, str] | None = None) -> str:
    """Write the ONNX file of a model that `torch_peers.load` takes, in a separate process. `axes`
    of the model's only input are dynamic and have these names."""
    with Child(
        "the export to ONNX",
        "apps.torch_peers:export_onnx",
        {**load, "path": str(path), "axes": axes},
        timeout=_EXPORT_SECONDS,
        environment=thread_environment(load["threads"]),
    ) as child:
        child.receive("export")
    return str(path)


def missing(names: Collection[str] = QUICK, model: Model | None = None) -> dict[str, list[str]]:
    """Return the missing modules and programs of each peer among `names` that cannot run here; with
    `model`, only of peers that could run that model."""
    lacking = [peer for key, peer in PEERS.items() if key in names and peer.missing]
    if model is not None and not model.twin:
        lacking = [peer for peer in lacking if model.onnx and peer.reads_onnx]
    return {peer.name: peer.missing for peer in lacking}
