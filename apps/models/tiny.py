"""A Linear(4, 4) with ReLU for each input, so that a call takes longer than its arithmetic."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn

SIZE = 4


class Tiny(nn.Module):
    """relu(x @ weight + bias) of each of `count` inputs, each with a Linear of its own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.linears = [nn.Linear(SIZE, SIZE) for _ in range(count)]
        self.relu = nn.ReLU()

    def forward(self, *inputs: ndl.Tensor) -> ndl.Tensor | tuple[ndl.Tensor, ...]:
        layers = zip(self.linears, inputs, strict=True)
        first, *others = (self.relu(linear(x)) for linear, x in layers)
        return (first, *others) if others else first


def build(batch: int = 1, count: int = 1) -> tuple[Tiny, tuple[np.ndarray, ...]]:
    """The model and `count` inputs of shape (batch, 4), the same in every process."""
    ndl.manual_seed(0)
    model = Tiny(count)
    model.eval()
    rng = np.random.default_rng(0)
    return model, tuple(rng.standard_normal((batch, SIZE), dtype=np.float32) for _ in range(count))
