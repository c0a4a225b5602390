"""The Transformer: two layers of eight heads on inputs of shape (8, 10, 512)."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn

BATCH = 8
LENGTH = 10
SIZE = 512


def build(batch: int = BATCH) -> tuple[nn.Module, np.ndarray]:
    """Return the model and an input of shape (batch, 10, 512), both the same in every process.

    The model has no causal mask and takes the batch first; it returns what nn.Transformer returns.
    """
    ndl.manual_seed(0)
    model = nn.Transformer(
        SIZE,
        SIZE,
        2,
        num_head=8,
        dim_head=32,
        dropout=0.0,
        causal=False,
        batch_first=True,
        sequence_len=LENGTH,
    )
    model.eval()
    x = np.random.default_rng(0).standard_normal((batch, LENGTH, SIZE), dtype=np.float32)
    return model, x
