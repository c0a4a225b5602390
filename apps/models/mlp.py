"""The MLP: by default 5 x (Linear(512, 512), ReLU) on inputs of shape (8, 512)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

import needle as ndl
from needle import nn

SIZES = (512,) * 6
BATCH = 8

_WEIGHT = re.compile(r"layers\.(\d+)\.linear\.weight")
_HEAD = "head.weight"


class DenseReLU(nn.Module):
    """A dense layer with ReLU: relu(x @ weight + bias)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.relu = nn.ReLU()

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.relu(self.linear(x))


class MLP(nn.Module):
    """A DenseReLU between adjacent `sizes`, then a Linear to `classes` if given."""

    def __init__(self, sizes: Sequence[int], classes: int | None = None) -> None:
        super().__init__()
        self.layers = [DenseReLU(a, b) for a, b in itertools.pairwise(sizes)]
        self.head = nn.Linear(sizes[-1], classes) if classes is not None else nn.Identity()

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build(
    batch: int = BATCH,
    state: Mapping[str, np.ndarray] | None = None,
    sizes: Sequence[int] = SIZES,
    classes: int | None = None,
) -> tuple[MLP, np.ndarray]:
    """Return an MLP and an input of shape (batch, sizes[0]), both the same in every process.

    With `state`, the sizes are read from its weights. Raises ValueError if the sizes do not chain.
    """
    if state is not None:
        sizes, classes = sizes_of(state)
    ndl.manual_seed(0)
    model = MLP(sizes, classes)
    model.eval()
    x = np.random.default_rng(0).standard_normal((batch, sizes[0]), dtype=np.float32)
    return model, x


def sizes_of(state: Mapping[str, np.ndarray]) -> tuple[list[int], int | None]:
    """Return (sizes, classes) of the MLP with these weights.

    Raises ValueError if the weights do not belong to an MLP, or if their sizes do not chain.
    """
    numbers = sorted(int(found[1]) for name in state if (found := _WEIGHT.fullmatch(name)))
    if not numbers or numbers != list(range(len(numbers))):
        missing = next(i for i in itertools.count() if i not in numbers)
        raise ValueError(f"missing layers.{missing}.linear.weight (got {', '.join(state)})")
    names = [f"layers.{number}.linear.weight" for number in numbers]
    names += [_HEAD] if _HEAD in state else []
    for name in names:
        if state[name].ndim != 2:
            raise ValueError(f"{name} has shape {state[name].shape}: must be (inputs, outputs)")
    for before, name in itertools.pairwise(names):
        outputs, inputs = state[before].shape[1], state[name].shape[0]
        if inputs != outputs:
            raise ValueError(f"{name} takes {inputs} inputs, but {before} gives {outputs} outputs")
    widths = [state[names[0]].shape[0], *(state[name].shape[1] for name in names)]
    return (widths[:-1], widths[-1]) if names[-1] == _HEAD else (widths, None)
