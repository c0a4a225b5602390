"""The models that inference is timed with, each at several batches, and what a contest needs of
one: the compiled artifact, the files that every contestant reads, and the peers."""

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
from needle_tvm.process.timing import Contestant

EAGER, TUNED = tables.EAGER, "needle tuned"


@dataclass(frozen=True)
class Model:
    """`factory` is in apps/models, `options` are what it takes besides the batch; `batches` are
    those of a whole run, the model's own first. `peer` is its name in apps/peers.py."""

    peer: str
    factory: str
    batches: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def mlp(*sizes: int, batches: tuple[int, ...] = (8, 1, 64), head: bool = False) -> Model:
    """An MLP of Linear and ReLU between each two sizes; with `head` no ReLU after the last."""
    options: dict[str, Any] = {"sizes": list(sizes)}
    if head:
        options = {"sizes": list(sizes[:-1]), "classes": sizes[-1]}
    return Model("mlp", "mlp:build", batches, options)


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
}
DEFAULT = ("mlp", "conv", "transformer")


@dataclass(frozen=True)
class Case:
    """One model at one batch."""

    model: str
    batch: int

    @property
    def name(self) -> str:
        return f"{self.model}, batch {self.batch}"

    @property
    def options(self) -> dict[str, Any]:
        """What the factory is called with."""
        return {"batch": self.batch, **MODELS[self.model].options}

    @property
    def factory(self) -> str:
        """As needle_tvm.process.child names functions."""
        return f"apps.models.{MODELS[self.model].factory}"


def chosen(models: Collection[str], batches: Collection[int] | None, whole: bool) -> list[Case]:
    """The models at `batches`; without those at their own, or at all of theirs for a `whole` run,
    which is of all models."""
    names = tuple(MODELS) if whole else models
    return [
        Case(name, batch)
        for name in names
        for batch in (batches or MODELS[name].batches[: None if whole else 1])
    ]


@dataclass
class Subject:
    """A case made ready: the model in eval mode, its inputs, and both saved in `folder`."""

    case: Case
    folder: Path
    model: Any
    inputs: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, case: Case, folder: Path) -> Subject:
        """Builds the model and writes its weights and inputs."""
        model, inputs = apps.contestants.build_model(case.factory, **case.options)
        model.eval()
        subject = cls(case, folder, model, inputs)
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        apps.contestants.save_arrays(subject.files.weights, state)
        apps.contestants.save_arrays(
            subject.files.inputs, {f"x{i}": x for i, x in enumerate(inputs)}
        )
        return subject

    @property
    def files(self) -> Any:
        """Where weights and inputs are, as apps/peers.py takes it."""
        weights, inputs = (str(self.folder / f"{name}.npz") for name in ("weights", "inputs"))
        return apps.peers.Files(weights, inputs, self.folder)

    @property
    def recipe(self) -> dict[str, Any]:
        """What `contestants.load_needle` makes the same model of in another process."""
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
        """needle_tvm.compile of the model; from its cache where nothing changed."""
        return needle_tvm.compile(self.model, *self.tensors, threads=threads, **search)

    def exact(self) -> list[np.ndarray]:
        """The model's outputs in float64, op by op on the NumPy device."""
        graph = trace(self.model, *self.tensors)
        values = divergence.evaluate(graph, self.inputs)
        return [values[node].numpy() for node in graph.outputs]

    def eager(self, threads: int, device: str = "cpu") -> Contestant:
        """needle's own devices, nothing compiled."""
        kwargs = {**self.recipe, "device": device}
        return Contestant(EAGER, "apps.contestants:eager", kwargs, threads=threads)

    def compiled(self, name: str, executable: Any, threads: int) -> Contestant:
        """An executable as a contestant, through an artifact of its own."""
        path = self.folder / f"artifact-{len(list(self.folder.iterdir()))}"
        return self.exported(name, executable.export(path), threads)

    def exported(self, name: str, path: Path, threads: int) -> Contestant:
        """The artifact at `path` as a contestant."""
        kwargs = {"path": str(path), "inputs": self.files.inputs}
        return Contestant(name, "apps.contestants:artifact", kwargs, threads=threads)

    def peers(self, names: Collection[str], threads: int, **where: str) -> list[Contestant]:
        """Those of `names` (keys of apps/peers.py) that are installed and can run this model;
        `where` is the device and precision of `apps/peers.py`."""
        return apps.peers.contestants(
            MODELS[self.case.model].peer,
            self.files,
            threads,
            options=self.case.options,
            images=any(x.ndim == 4 for x in self.inputs),
            names=names,
            **where,
        )

    def contestants(self, options: argparse.Namespace) -> list[Contestant]:
        """needle eager, compiled without a search and, where asked for, with one, and the peers."""
        threads = options.threads
        found = [self.eager(threads)]
        found.append(self.compiled(TUNED, self.compile(threads), threads))
        search = {"trials": options.trials, "minutes": options.minutes}
        if options.trials or options.minutes:
            budget = f"{options.minutes:g} min" if options.minutes else f"{options.trials} trials"
            executable = self.compile(threads, **search)
            found.append(self.compiled(f"{TUNED}, {budget}", executable, threads))
        return found + self.peers(options.peers, threads)
