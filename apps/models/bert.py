"""A BERT-like encoder: four layers of width 384, twelve heads, on sequences of 128 vectors.

J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers
for Language Understanding" (NAACL 2019): the encoder layers without the word embedding.
"""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn

BATCH = 1
LENGTH = 128
SIZE = 384
HEADS = 12
HIDDEN = 1536
LAYERS = 4


class SelfAttention(nn.Module):
    """Each of `heads` heads attends to its own part of the features: (B, T, size) -> the same."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        if size % heads:
            raise ValueError(f"SelfAttention: heads {heads} does not divide size {size}")
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.attention = nn.MultiHeadAttention()
        self.output = nn.Linear(size, size)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        batch, length, size = x.shape

        def split(features: ndl.Tensor) -> ndl.Tensor:
            parts = features.reshape((batch, length, self.heads, size // self.heads))
            return parts.transpose((1, 2))

        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        mixed, _ = self.attention(q, k, v)
        return self.output(mixed.transpose((1, 2)).reshape((batch, length, size)))


class EncoderLayer(nn.Module):
    """A post-norm layer: x = norm(x + attention(x)), then norm(x + mlp(x)); mlp has a GELU.

    (B, T, size) -> the same.
    """

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = SelfAttention(size, heads)
        self.attention_norm = nn.LayerNorm1d(size)
        self.mlp = nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))
        self.mlp_norm = nn.LayerNorm1d(size)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.mlp_norm(x + self.mlp(x))


def build(
    batch: int = BATCH,
    length: int = LENGTH,
    size: int = SIZE,
    heads: int = HEADS,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
) -> tuple[nn.Module, np.ndarray]:
    """Return the encoder and an input of shape (batch, length, size), the same in every process."""
    ndl.manual_seed(0)
    model = nn.Sequential(*(EncoderLayer(size, heads, hidden) for _ in range(layers)))
    model.eval()
    x = np.random.default_rng(0).standard_normal((batch, length, size), dtype=np.float32)
    return model, x
