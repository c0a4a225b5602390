"""An LSTM alone: two layers of 256 over 64 steps of 256 features."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn

BATCH = 1
LENGTH = 64
SIZE = 256
LAYERS = 2


def build(
    batch: int = BATCH, length: int = LENGTH, size: int = SIZE, layers: int = LAYERS
) -> tuple[nn.Module, np.ndarray]:
    """nn.LSTM and an input of shape (length, batch, size), both the same in every process.

    Its outputs are those of nn.LSTM: the last layer's outputs, and each layer's last state.
    """
    ndl.manual_seed(0)
    model = nn.LSTM(size, size, layers)
    model.eval()
    x = np.random.default_rng(0).standard_normal((length, batch, size), dtype=np.float32)
    return model, x
