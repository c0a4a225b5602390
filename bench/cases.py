"""The models that are timed, each at several batches, and the contestants and files of a
contest."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import apps.contestants
import apps.peers
import needle as ndl
import needle_tvm
from bench import tables
from needle.trace import trace
from needle_tvm.frontend import divergence
from needle_tvm.process.timing import Contestant, save_arrays

EAGER, TUNED = tables.EAGER, "needle tuned"


@dataclass(frozen=True)
class Model:
    """A model: its name in apps/peers.py, its factory in apps/models, the batches of a whole run
    (its own first), and what the factory takes besides the batch."""

    peer: str
    factory: str
    batches: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def mlp(*sizes: int, batches: tuple[int, ...] = (8, 1, 64), head: bool = False) -> Model:
    """An MLP: Linear and ReLU between each two sizes; with `head` no ReLU after the last."""
    options: dict[str, Any] = {"sizes": list(sizes)}
    if head:
        options = {"sizes": list(sizes[:-1]), "classes": sizes[-1]}
    return Model("mlp", "mlp:build", batches, options)


def language(size: int, length: int) -> Model:
    """A language model: an embedding, an LSTM and a Linear, over so many words of 1,000."""
    options = {"words": 1000, "size": size, "length": length}
    return Model("language", "language:lstm", (16,), options)


MODELS = {
    "mlp": mlp(*(512,) * 6, batches=(8, 1, 7, 64)),
    "conv": Model("conv", "resnet:build", (8, 1, 64)),
    "transformer": Model("transformer", "transformer:build", (8, 1, 64)),
    "mlp-784": mlp(784, 1000, 300, 10, head=True),
    "bert": Model("bert", "bert:build", (1, 8)),
    "resnet18": Model("resnet18", "resnet18:build", (1,)),
    "lstm": Model("lstm", "recurrent:build", (1,)),
    "mobilenet": Model("mobilenet", "mobilenet:build", (1,)),
    "mlp-100": mlp(*(100,) * 6, batches=(8,)),
    "mlp-256": mlp(*(256,) * 13, batches=(8,)),
    "mlp-300": mlp(*(300,) * 4, batches=(7,)),
    "mlp-1000": mlp(*(1000,) * 3, batches=(1, 64)),
    "lstm-128": language(128, 20),
    "lstm-256": language(256, 35),
}
DEFAULT = ("mlp", "conv", "transformer")


@dataclass(frozen=True)
class Case:
    """One model at one batch, its matmuls and convolutions rounded to a precision."""

    model: str
    batch: int
    precision: str = "float32"

    @property
    def name(self) -> str:
        name = f"{self.model}, batch {self.batch}"
        return name if self.precision == "float32" else f"{name}, {self.precision}"

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of the factory."""
        return {"batch": self.batch, **MODELS[self.model].options}

    @property
    def factory(self) -> str:
        """The factory as needle_tvm.process.child names functions."""
        return f"apps.models.{MODELS[self.model].factory}"


def chosen(models: Collection[str], batches: Collection[int] | None, whole: bool) -> list[Case]:
    """The models at `batches`, or each at its own. A `whole` run has all models, by default at all
    of their batches."""
    names = tuple(MODELS) if whole else models
    return [
        Case(name, batch)
        for name in names
        for batch in (batches or MODELS[name].batches[: None if whole else 1])
    ]


@dataclass
class Subject:
    """A case that is ready: the model in eval mode and its inputs, both saved in `folder`."""

    case: Case
    folder: Path
    model: Any
    inputs: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, case: Case, folder: Path) -> Subject:
        """Build the model and write its weights and inputs."""
        model, inputs = apps.contestants.build_model(case.factory, **case.options)
        model.eval()
        subject = cls(case, folder, model, inputs)
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        save_arrays(subject.files.weights, state)
        save_arrays(subject.files.inputs, {f"x{i}": x for i, x in enumerate(inputs)})
        return subject

    @property
    def files(self) -> Any:
        """The saved weights and inputs, as apps/peers.py takes them."""
        weights, inputs = (str(self.folder / f"{name}.npz") for name in ("weights", "inputs"))
        return apps.peers.Files(weights, inputs, self.folder)

    @property
    def recipe(self) -> dict[str, Any]:
        """Keywords of `apps.contestants.load_needle`, which makes the same model in another
        process."""
        return {
            "factory": self.case.factory,
            "options": self.case.options,
            "weights": self.files.weights,
            "inputs": self.files.inputs,
        }

    @property
    def tensors(self) -> list[ndl.Tensor]:
        return [ndl.Tensor(x, requires_grad=False) for x in self.inputs]

    def compile(self, threads: int, **search: Any) -> Any:
        """Compile the model, or load it from needle_tvm's cache if nothing changed."""
        return needle_tvm.compile(self.model, *self.tensors, threads=threads, **search)

    def to_compile(self, name: str, **options: Any) -> dict[str, Any]:
        """A setup of `compiling.serve` that compiles the model with these options."""
        path = str(self.folder / name.replace(" ", "-"))
        return {"recipe": self.recipe, "options": options, "path": path}

    def exact(self) -> list[np.ndarray]:
        """The model's outputs in float64, op by op on the NumPy device."""
        graph = trace(self.model, *self.tensors)
        values = divergence.evaluate(graph, self.inputs)
        return [values[node].numpy() for node in graph.outputs]

    def eager(self, threads: int, device: str = "cpu") -> Contestant:
        """The model on one of needle's own devices, nothing compiled."""
        kwargs = {**self.recipe, "device": device}
        return Contestant(EAGER, "apps.contestants:eager", kwargs, threads=threads)

    def compiled(self, name: str, executable: Any, threads: int) -> Contestant:
        """An executable as a contestant, exported to an artifact of its own."""
        path = self.folder / f"artifact-{len(list(self.folder.iterdir()))}"
        return self.exported(name, executable.export(path), threads)

    def exported(self, name: str, path: Path, threads: int) -> Contestant:
        """The artifact at `path` as a contestant."""
        kwargs = {"path": str(path), "inputs": self.files.inputs}
        return Contestant(name, "apps.contestants:artifact", kwargs, threads=threads)

    def peers(self, names: Collection[str], threads: int, **where: str) -> list[Contestant]:
        """The peers among `names` (keys of apps/peers.py) that are installed and can run this
        model; `where` may have their `device`."""
        return apps.peers.contestants(
            MODELS[self.case.model].peer,
            self.files,
            threads,
            options=self.case.options,
            images=any(x.ndim == 4 for x in self.inputs),
            names=names,
            precision=self.case.precision,
            **where,
        )

    def contestants(self, options: argparse.Namespace) -> list[Contestant]:
        """The contestants on a CPU: needle eager, compiled without a search and, if `options` ask,
        with one, and the peers."""
        threads = options.threads
        found = [self.eager(threads)]
        found.append(self.compiled(TUNED, self.compile(threads), threads))
        search = {"trials": options.trials, "minutes": options.minutes}
        if options.trials or options.minutes:
            budget = f"{options.minutes:g} min" if options.minutes else f"{options.trials} trials"
            executable = self.compile(threads, **search)
            found.append(self.compiled(f"{TUNED}, {budget}", executable, threads))
        return found + self.peers(options.peers, threads)
