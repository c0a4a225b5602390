"""The timed cases: models at several batches, and models of random shapes."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apps.contestants
from apps.models import EVALUATED, MODELS, Model, convnet_model, encoder_model, mlp_model
from apps.subjects import Subject

TUNED = "needle tuned"


@dataclass(frozen=True)
class Case:
    """A model with a batch size; operands of matmuls and convolutions are rounded to a precision.
    `drawn` is a model that MODELS does not list."""

    model: str
    batch: int
    precision: str = "float32"
    drawn: Model | None = None

    @property
    def kind(self) -> Model:
        """The model without its batch."""
        return self.drawn or MODELS[self.model]

    @property
    def name(self) -> str:
        name = f"{self.model}, batch {self.batch}"
        return name if self.precision == "float32" else f"{name}, {self.precision}"

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of the factory."""
        return {"batch": self.batch, **self.kind.options}

    @property
    def factory(self) -> str:
        """The factory, named as needle_runtime.process.child names functions."""
        return self.kind.factory

    def subject(self, folder: Path) -> Subject:
        """Build the model and write its weights and inputs to the folder."""
        model, inputs = apps.contestants.build_model(self.factory, **self.options)
        return Subject(self.kind, self.options, model.eval(), inputs, self.precision).save(folder)


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
    """Return the models at `batches`, or each model at its own batch; DEFAULT if neither is given.
    A `whole` run has all models, by default at all of their batches."""
    if not (models or batches or whole):
        return list(DEFAULT)
    names = tuple(MODELS) if whole else models or EVALUATED
    return [
        Case(name, batch)
        for name in names
        for batch in (batches or MODELS[name].batches[: None if whole else 1])
    ]


def drawn(seed: int, count: int) -> list[Case]:
    """Return models whose random shapes depend only on the seed: MLPs, convolutional nets and
    encoders in turn, named after their shapes."""
    rng = random.Random(seed)

    def between(least: int, most: int) -> int:
        """Return a random whole number, uniform on a log scale."""
        return round(least * (most / least) ** rng.random())

    def draw_mlp() -> Case:
        sizes = [between(8, 1024) for _ in range(between(2, 6))]
        name = f"mlp {'-'.join(map(str, sizes))}"
        return Case(name, between(1, 256), drawn=mlp_model(*sizes, head=len(sizes) > 2))

    def draw_convnet() -> Case:
        depth, image, kernel = between(1, 5), between(8, 48), rng.choice((1, 3, 5))
        channels = [3, *(between(8, 64) for _ in range(depth))]
        strides = [rng.choice((1, 1, 2)) for _ in range(depth)]
        options = {"channels": channels, "image": image, "kernel": kernel, "strides": strides}
        shape = "-".join(map(str, channels))
        steps = "".join(map(str, strides))
        name = f"conv {shape}, {kernel} x {kernel} / {steps}, {image} x {image}"
        return Case(name, between(1, 8), drawn=convnet_model(**options))

    def draw_encoder() -> Case:
        heads, length, layers = between(1, 12), between(8, 128), between(1, 3)
        size, times = heads * between(16, 64), rng.choice((2, 3, 4))
        options = {"length": length, "size": size, "heads": heads}
        options |= {"hidden": times * size, "layers": layers}
        name = f"encoder {layers} x {length} x {size}, heads {heads}, hidden {times * size}"
        return Case(name, between(1, 4), drawn=encoder_model(**options))

    kinds = (draw_mlp, draw_convnet, draw_encoder)
    return [kinds[number % len(kinds)]() for number in range(count)]
