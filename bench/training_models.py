"""Seven small models that are trained: `MODELS[name]()` gives a model, its batches and its loss.

`batch(i)` gives NumPy arrays, the same ones for the same i, and `loss(model, *tensors)` a scalar.
"""

from __future__ import annotations

import argparse
import itertools
import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import needle as ndl
from apps.models import resnet18
from needle import nn
from needle.nn import functional as F

Made = tuple[Any, Callable[[int], tuple[np.ndarray[Any, Any], ...]], Callable[..., Any]]

_CHANNELS, _HEADS, _LAYERS, _LENGTH = 128, 4, 4, 64  # of the GPT
_LATENT = 8  # of the VAE
_DROPPED = 0.1


def _digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype("float32"), labels.astype("int64")


def cnn() -> Made:
    """Two convolutions with batch norm and dropout, on digits of 8 x 8."""
    images, labels = _digits()

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10)]
    model = nn.Sequential(*block(1, 32), *block(32, 64), *head)

    def batch(i: int) -> tuple[np.ndarray[Any, Any], ...]:
        rows = np.random.default_rng(i).integers(0, len(images), 64)
        return images[rows].reshape(-1, 1, 8, 8), labels[rows]

    return model, batch, lambda m, x, y: F.cross_entropy(m(x), y)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_CHANNELS, 3 * _CHANNELS)
        self.proj = nn.Linear(_CHANNELS, _CHANNELS)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        shape = (*x.shape[:2], _HEADS, _CHANNELS // _HEADS)
        q, k, v = (y.reshape(shape).transpose(1, 2) for y in self.qkv(x).split(_CHANNELS, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        narrow, wide = _CHANNELS, 4 * _CHANNELS
        layers = nn.Linear(narrow, wide), nn.GELU(), nn.Linear(wide, narrow), nn.Dropout(_DROPPED)
        self.attention = nn.Sequential(nn.LayerNorm(narrow), _Attention(), nn.Dropout(_DROPPED))
        self.mlp = nn.Sequential(nn.LayerNorm(narrow), *layers)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class _GPT(nn.Module):
    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(symbols, _CHANNELS)
        self.positions = nn.Embedding(_LENGTH, _CHANNELS)
        self.blocks = nn.Sequential(*[_Block() for _ in range(_LAYERS)])
        self.norm = nn.LayerNorm(_CHANNELS)
        self.head = nn.Linear(_CHANNELS, symbols, bias=False)

    def forward(self, indices: ndl.Tensor) -> ndl.Tensor:
        x = self.tokens(indices) + self.positions(ndl.arange(indices.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def gpt() -> Made:
    """A GPT with dropout, on characters of Python's library."""
    files = [Path(str(module.__file__)) for module in (argparse, typing)]
    text = "".join(file.read_text(encoding="utf-8") for file in files).encode("ascii", "replace")
    symbols, data = np.unique(np.frombuffer(text, "uint8"), return_inverse=True)

    def batch(i: int) -> tuple[np.ndarray[Any, Any], ...]:
        starts = np.random.default_rng(i).integers(0, len(data) - _LENGTH - 1, (16, 1))
        rows = data[starts + np.arange(_LENGTH + 1)]
        return rows[:, :-1], rows[:, 1:]

    def loss(model: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x).reshape(-1, len(symbols)), y.reshape(-1))

    return _GPT(len(symbols)), batch, loss


class _Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def lstm() -> Made:
    """A two-layer LSTM that forecasts a noisy sum of sines."""
    at, noise = np.arange(3000), np.random.default_rng(5).standard_normal(3000)
    series = np.sin(at / 8) + 0.5 * np.sin(at / 23 + 1) + 0.1 * noise

    def batch(i: int) -> tuple[np.ndarray[Any, Any], ...]:
        starts = np.random.default_rng(i).integers(0, len(series) - 49, (32, 1))
        rows = series[starts + np.arange(49)].astype("float32")
        return rows[:, :-1, None], rows[:, -1:]

    return _Forecast(), batch, lambda m, x, y: F.mse_loss(m(x), y)


class _VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
        self.encoder = nn.Sequential(*hidden, nn.Linear(128, 2 * _LATENT))
        hidden = nn.Linear(_LATENT, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU()
        self.decoder = nn.Sequential(*hidden, nn.Linear(256, 64))


def vae() -> Made:
    """A variational autoencoder of digits; its noise is part of the batch."""
    images, _ = _digits()

    def batch(i: int) -> tuple[np.ndarray[Any, Any], ...]:
        draw = np.random.default_rng(i)
        rows = draw.integers(0, len(images), 128)
        return images[rows], draw.standard_normal((128, _LATENT), "float32")

    def loss(model: Any, x: Any, noise: Any) -> Any:
        mean, log_variance = model.encoder(x).split(_LATENT, dim=1)
        y = model.decoder(mean + ndl.exp(0.5 * log_variance) * noise)
        likelihood = F.binary_cross_entropy_with_logits(y, x, reduction="sum")
        distance = 1 + log_variance - mean * mean - ndl.exp(log_variance)
        return (likelihood - 0.5 * distance.sum()) / x.shape[0]

    return _VAE(), batch, loss


class _GraphLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.others = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: ndl.Tensor, weights: ndl.Tensor) -> ndl.Tensor:
        return F.relu(self.norm(self.own(x) + ndl.matmul(weights, self.others(x))))


class _GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(ndl.zeros(1))
        self.layers = nn.ModuleList([_GraphLayer(i, 64) for i in (3, 64, 64)])
        self.head = nn.Linear(64, 1)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        apart = x.unsqueeze(2) - x.unsqueeze(1)
        weights = F.softmax(-(apart * apart).sum(-1) * ndl.exp(self.scale), dim=-1)
        for layer in self.layers:
            x = layer(x, weights)
        return self.head(x.mean(1))


def gnn() -> Made:
    """A graph network of points that learns how far each is from the nearest, on average."""

    def batch(i: int) -> tuple[np.ndarray[Any, Any], ...]:
        points = np.random.default_rng(i).standard_normal((32, 24, 3), "float32")
        far = ((points[:, :, None] - points[:, None]) ** 2).sum(-1) + 10 * np.eye(24)
        return points, far.min(-1).mean(-1, keepdims=True).astype("float32")

    return _GraphNet(), batch, lambda m, x, y: F.mse_loss(m(x), y)


def pinn() -> Made:
    """Burgers' equation u_t + u u_x = nu u_xx by a network; its loss has second derivatives."""
    sizes = 2, 64, 64, 64
    hidden = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.Tanh())]
    model = nn.Sequential(*hidden, nn.Linear(64, 1))
    nu = 0.01 / math.pi

    def batch(i: int) -> tuple[np.ndarray[Any, Any], ...]:
        draw = np.random.default_rng(i)
        ranges = (0, 1, 256), (-1, 1, 256), (-1, 1, 64)
        return tuple(draw.uniform(a, b, (n, 1)).astype("float32") for a, b, n in ranges)

    def slope(y: Any, x: Any) -> Any:
        return ndl.autograd.grad(y.sum(), [x], create_graph=True)[0]

    def loss(model: Any, t: Any, x: Any, start: Any) -> Any:
        t, x = t.detach(), x.detach()
        t.requires_grad = x.requires_grad = True

        def u(t: Any, x: Any) -> Any:
            return model(ndl.concat([t, x], axis=1))

        now = u(t, x)
        along = slope(now, x)
        inside = slope(now, t) + now * along - nu * slope(along, x)
        first = u(ndl.zeros_like(start), start) + ndl.sin(math.pi * start)
        edges = u(t, ndl.ones_like(t)), u(t, -ndl.ones_like(t))
        return sum(((each * each).mean() for each in (first, *edges)), (inside * inside).mean())

    return model, batch, loss


def resnet() -> Made:
    """ResNet-18 on random images of 32 x 32 in ten classes."""

    def batch(i: int) -> tuple[np.ndarray[Any, Any], ...]:
        draw = np.random.default_rng(i)
        return draw.standard_normal((16, 3, 32, 32), "float32"), draw.integers(0, 10, 16)

    model = resnet18.ResNet18(resnet18.WIDTH, 10)
    return model, batch, lambda m, x, y: F.cross_entropy(m(x), y)


MODELS: dict[str, Callable[[], Made]] = {
    each.__name__: each for each in (vae, gnn, pinn, cnn, lstm, gpt, resnet)
}
