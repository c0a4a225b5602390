"""softmax(q k / sqrt(d)) v of three inputs, as a module without weights."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn
from needle.nn import functional as F


class Attention(nn.Module):
    """Scaled dot-product attention that is not causal."""

    def forward(self, q: ndl.Tensor, k: ndl.Tensor, v: ndl.Tensor) -> ndl.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def build(
    batch: int = 8, heads: int = 8, length: int = 1024, size: int = 64
) -> tuple[nn.Module, tuple[np.ndarray, ...]]:
    """The module and three float32 inputs of shape (batch, heads, length, size)."""
    rng = np.random.default_rng(0)
    shape = (batch, heads, length, size)
    return Attention(), tuple(rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
