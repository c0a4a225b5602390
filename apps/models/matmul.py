"""A B, a matmul of two inputs."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn


class Matmul(nn.Module):
    """a @ b."""

    def forward(self, a: ndl.Tensor, b: ndl.Tensor) -> ndl.Tensor:
        return a @ b


def build(
    batch: int = 1024, columns: int = 512, terms: int = 2048
) -> tuple[nn.Module, tuple[np.ndarray, np.ndarray]]:
    """The module and float32 inputs of shapes (batch, terms) and (terms, columns)."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((batch, terms), dtype=np.float32)
    return Matmul(), (a, rng.standard_normal((terms, columns), dtype=np.float32))
