"""Models of one layer, of one product, or of almost no arithmetic."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn
from needle.nn import functional as F

TINY = 4


def lstm(
    batch: int = 1, length: int = 64, size: int = 256, layers: int = 2
) -> tuple[nn.Module, np.ndarray]:
    """Return nn.LSTM and an input of shape (length, batch, size), both the same in every process.

    The module returns the last layer's outputs and the last state of each layer.
    """
    ndl.manual_seed(0)
    return nn.LSTM(size, size, layers).eval(), _drawn((length, batch, size))[0]


class Attention(nn.Module):
    """softmax(q k / sqrt(d)) v of three inputs: attention without a causal mask."""

    def forward(self, q: ndl.Tensor, k: ndl.Tensor, v: ndl.Tensor) -> ndl.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def attention(
    batch: int = 8, heads: int = 8, length: int = 1024, size: int = 64
) -> tuple[nn.Module, tuple[np.ndarray, ...]]:
    """Return the module and three float32 inputs of shape (batch, heads, length, size)."""
    return Attention(), _drawn(*[(batch, heads, length, size)] * 3)


class Matmul(nn.Module):
    """The product a @ b of two inputs."""

    def forward(self, a: ndl.Tensor, b: ndl.Tensor) -> ndl.Tensor:
        return a @ b


def matmul(
    batch: int = 1024, columns: int = 512, terms: int = 2048
) -> tuple[nn.Module, tuple[np.ndarray, ...]]:
    """Return the module and float32 inputs of shapes (batch, terms) and (terms, columns)."""
    return Matmul(), _drawn((batch, terms), (terms, columns))


class Tiny(nn.Module):
    """relu(x @ weight + bias) for each of `count` inputs, with a separate Linear for each. The
    overhead of a call takes longer than the arithmetic."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.linears = [nn.Linear(TINY, TINY) for _ in range(count)]
        self.relu = nn.ReLU()

    def forward(self, *inputs: ndl.Tensor) -> ndl.Tensor | tuple[ndl.Tensor, ...]:
        layers = zip(self.linears, inputs, strict=True)
        first, *others = (self.relu(linear(x)) for linear, x in layers)
        return (first, *others) if others else first


def tiny(batch: int = 1, count: int = 1) -> tuple[Tiny, tuple[np.ndarray, ...]]:
    """Return the model and `count` inputs of shape (batch, 4), the same in every process."""
    ndl.manual_seed(0)
    return Tiny(count).eval(), _drawn(*[(batch, TINY)] * count)


def _drawn(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
