"""The models that are timed, each at several batches, and the contestants and files of a
contest."""

from __future__ import annotations

import argparse
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import apps.contestants
import apps.peers
import needle as ndl
import needle_tvm
from apps.contestants import CODE
from bench.contests import EAGER, RUNTIME
from needle.trace import trace
from needle_tvm.frontend.exact import evaluate
from needle_tvm.process.timing import Contestant, save_arrays

TUNED = "needle tuned"


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
    "conv": Model("conv", "resnet:build", (8, 1, 2, 64)),
    "transformer": Model("transformer", "transformer:build", (8, 1, 64)),
    "mlp-784": mlp(784, 1000, 300, 10, head=True),
    "bert": Model("bert", "bert:build", (1, 8)),
    "resnet18": Model("resnet18", "resnet18:build", (1,)),
    "lstm": Model("lstm", "recurrent:build", (1,)),
    "mobilenet": Model("mobilenet", "mobilenet:build", (1,)),
    "mlp-100": mlp(*(100,) * 6, batches=(8,)),
    "mlp-256": mlp(*(256,) * 13, batches=(8,)),
    "mlp-300": mlp(*(300,) * 4, batches=(7,)),
    "mlp-300x4": mlp(*(300,) * 5, batches=(200,)),
    "mlp-391-777-333-50": mlp(391, 777, 333, 50, batches=(5,), head=True),
    "mlp-1000": mlp(*(1000,) * 3, batches=(1, 64)),
    "mlp-1024x3": mlp(*(1024,) * 4, batches=(1,)),
    "convnet": Model("convnet", "convnet:build", (1,)),
    "encoder": Model(
        "bert", "bert:build", (2,), {"length": 100, "size": 320, "heads": 8, "hidden": 1280}
    ),
    "matmul": Model("matmul", "matmul:build", ()),
    "attention": Model("attention", "attention:build", ()),
    "lstm-128": language(128, 20),
    "lstm-256": language(256, 35),
}
EVALUATED = ("mlp", "conv", "transformer")  # the models of tvm_eval.py


@dataclass(frozen=True)
class Case:
    """One model at one batch, its matmuls and convolutions rounded to a precision; `drawn` is a
    model that MODELS does not list."""

    model: str
    batch: int
    precision: str = "float32"
    drawn: Model | None = None

    @property
    def kind(self) -> Model:
        """The model, without its batch."""
        return self.drawn or MODELS[self.model]

    @property
    def name(self) -> str:
        name = f"{self.model}, batch {self.batch}"
        return name if self.precision == "float32" else f"{name}, {self.precision}"

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of the factory."""
        return {"batch": self.batch, **self.kind.options}

    @property
    def factory(self) -> str:
        """The factory as needle_tvm.process.child names functions."""
        return f"apps.models.{self.kind.factory}"


# The evaluation's models, then six others of many shapes.
DEFAULT = (
    *(Case(name, 8) for name in EVALUATED),
    Case("mlp-391-777-333-50", 5),
    Case("mlp-1024x3", 1),
    Case("mlp-300x4", 200),
    Case("conv", 2),
    Case("convnet", 1),
    Case("encoder", 2),
)


def chosen(
    models: Collection[str] | None, batches: Collection[int] | None, whole: bool
) -> list[Case]:
    """The models at `batches`, or each at its own; DEFAULT if neither is given. A `whole` run has
    all models, by default at all of their batches."""
    if not (models or batches or whole):
        return list(DEFAULT)
    names = tuple(MODELS) if whole else models or EVALUATED
    return [
        Case(name, batch)
        for name in names
        for batch in (batches or MODELS[name].batches[: None if whole else 1])
    ]


def drawn(seed: int, count: int) -> list[Case]:
    """Models of shapes drawn at random, the same for a seed: MLPs, convolutional nets and encoders
    in turn, named after their shapes."""
    rng = random.Random(seed)

    def between(least: int, most: int) -> int:
        """A whole number, evenly on a log scale."""
        return round(least * (most / least) ** rng.random())

    def draw_mlp() -> Case:
        sizes = [between(8, 1024) for _ in range(between(2, 6))]
        name = f"mlp {'-'.join(map(str, sizes))}"
        return Case(name, between(1, 256), drawn=mlp(*sizes, head=len(sizes) > 2))

    def draw_convnet() -> Case:
        depth, image, kernel = between(1, 5), between(8, 48), rng.choice((1, 3, 5))
        channels = [3, *(between(8, 64) for _ in range(depth))]
        strides = [rng.choice((1, 1, 2)) for _ in range(depth)]
        options = {"channels": channels, "image": image, "kernel": kernel, "strides": strides}
        shape = "-".join(map(str, channels))
        steps = "".join(map(str, strides))
        name = f"conv {shape}, {kernel} x {kernel} / {steps}, {image} x {image}"
        return Case(name, between(1, 8), drawn=Model("convnet", "convnet:build", (), options))

    def draw_encoder() -> Case:
        heads, length, layers = between(1, 12), between(8, 128), between(1, 3)
        size, times = heads * between(16, 64), rng.choice((2, 3, 4))
        options = {"length": length, "size": size, "heads": heads}
        options |= {"hidden": times * size, "layers": layers}
        name = f"encoder {layers} x {length} x {size}, heads {heads}, hidden {times * size}"
        return Case(name, between(1, 4), drawn=Model("bert", "bert:build", (), options))

    kinds = (draw_mlp, draw_convnet, draw_encoder)
    return [kinds[number % len(kinds)]() for number in range(count)]


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
        """The model's outputs in float64 for each set of inputs, op by op on the NumPy device."""
        graph = trace(self.model, *self.tensors)
        found = []
        for arrays in apps.contestants.fresh(self.inputs):
            values = evaluate(graph, arrays)
            found += [values[node].numpy() for node in graph.outputs]
        return found

    def eager(self, threads: int, device: str = "cpu") -> Contestant:
        """The model on one of needle's own devices, nothing compiled."""
        kwargs = {**self.recipe, "device": device}
        return Contestant(EAGER, "apps.contestants:eager", kwargs, threads=threads)

    def called(self, name: str, threads: int, arrays: bool = False, **search: Any) -> Contestant:
        """The compiled model as its users call it, with Tensors or with `arrays`.

        It is compiled here, and its process gets it from needle_tvm's cache.
        """
        self.compile(threads, **search)
        kwargs = {**self.recipe, "choices": {"threads": threads, **search}, "arrays": arrays}
        return Contestant(name, "apps.contestants:executable", kwargs, threads=threads)

    def compiled(self, name: str, executable: Any, threads: int) -> Contestant:
        """The code of an executable as a contestant, exported to an artifact of its own."""
        path = self.folder / f"artifact-{len(list(self.folder.iterdir()))}"
        return self.exported(name, executable.export(path), threads)

    def loaded(self, name: str, path: Path | str) -> Contestant:
        """The code at `path` on a GPU, as users of `needle_tvm.load` call it: with Tensors there.
        It gets this subject's weights."""
        kwargs = {"path": str(path), "weights": self.files.weights, "inputs": self.files.inputs}
        return Contestant(name, "apps.contestants:loaded", kwargs)

    def exported(
        self, name: str, path: Path | str, threads: int, way: str = "artifact"
    ) -> Contestant:
        """The artifact at `path` as a contestant: its code alone or, the `way` "program", as users
        of the runtime call it."""
        kwargs = {"path": str(path), "inputs": self.files.inputs}
        return Contestant(name, f"apps.contestants:{way}", kwargs, threads=threads)

    def ways(self, name: str, threads: int, **search: Any) -> list[Contestant]:
        """The compiled model called with Tensors, through the runtime with arrays, and its code."""
        code = self.compiled(name + CODE, self.compile(threads, **search), threads)
        runtime = self.exported(name + RUNTIME, code.kwargs["path"], threads, "program")
        return [self.called(name, threads, **search), runtime, code]

    def peers(self, names: Collection[str], threads: int, **more: Any) -> list[Contestant]:
        """The peers among `names` (keys of apps/peers.py) that are installed and can run this
        model; `more` may have their `device`, or `code`."""
        return apps.peers.contestants(
            self.case.kind.peer,
            self.files,
            threads,
            options=self.case.options,
            images=any(x.ndim == 4 for x in self.inputs),
            names=names,
            precision=self.case.precision,
            **more,
        )

    def contestants(self, options: argparse.Namespace) -> list[Contestant]:
        """The contestants on a CPU: needle eager, compiled without a search and, if `options` ask,
        with one, and the peers; all as they are called, and as code where they can be."""
        threads = options.threads
        found = [self.eager(threads), *self.ways(TUNED, threads)]
        search = {"trials": options.trials, "minutes": options.minutes}
        if options.trials or options.minutes:
            budget = f"{options.minutes:g} min" if options.minutes else f"{options.trials} trials"
            found += self.ways(f"{TUNED}, {budget}", threads, **search)
        return found + self.peers(options.peers, threads, code=True)
