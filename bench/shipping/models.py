"""A model exported for each runtime, with the same weights and input."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import apps.peers
from apps.models import MODELS, mlp_model
from apps.subjects import Subject
from bench import contests
from bench.cases import Case
from needle_runtime.process.threads import thread_environment

OURS, ONNXRUNTIME, AOTINDUCTOR = "needle_runtime", "ONNX Runtime", "AOTInductor"
NAMES = (OURS, ONNXRUNTIME, AOTINDUCTOR)
# Linear(4, 3) and ReLU: nearly all of a call's time is overhead.
TINY = "tiny"
KINDS = {"mlp": MODELS["mlp"], TINY: mlp_model(4, 3)}


@dataclass(frozen=True)
class Shipped:
    """A model at batch 1 in the file format of each runtime (`files`, by the runtime's name)."""

    name: str
    subject: Subject
    files: dict[str, Path]

    @property
    def input(self) -> Path:
        """The file with only the numbers of the first input."""
        return self.subject.folder / "input.bin"

    @property
    def answer(self) -> np.ndarray:
        """The float64 output for the first input."""
        return self.subject.exact()[0]

    def numbers(self, name: str) -> Path:
        """Return the file with the numbers of a weight."""
        path = self.subject.folder / f"{name}.bin"
        self.subject.state[name].tofile(path)
        return path


def export(
    name: str, runtimes: Collection[str], threads: int, timeout: float, folder: Path
) -> Shipped:
    """Return a model of KINDS that is exported for the runtimes; the folder gets all files."""
    folder.mkdir()
    subject = Case(name, 1, drawn=KINDS[name]).subject(folder)
    subject.inputs[0].tofile(folder / "input.bin")
    load: dict[str, Any] = {
        "twin": subject.kind.twin,
        "options": dict(subject.options),
        "weights": subject.files.weights,
        "inputs": subject.files.inputs,
        "threads": threads,
    }
    files = {OURS: Path(subject.compile(threads).export(folder / "artifact"))}
    if ONNXRUNTIME in runtimes:
        files[ONNXRUNTIME] = Path(apps.peers.write_onnx(load, folder / "model.onnx"))
    if AOTINDUCTOR in runtimes:
        service, path = "bench.shipping.aotinductor:export", str(folder / "model.pt2")
        environment = thread_environment(threads)
        found = contests.ask(service, {**load, "path": path}, timeout, environment)
        files[AOTINDUCTOR] = Path(found["path"])
    return Shipped(name, subject, files)
