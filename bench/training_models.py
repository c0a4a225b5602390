"""Seven small models to train, with one source for both frameworks. `MODELS[name](framework)` takes
the module `needle` or `torch`, and returns a model, its batches and its loss.

`batch(i)` returns NumPy arrays, the same for the same i; `loss(model, *tensors)` returns a scalar.
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

Arrays = tuple[np.ndarray[Any, Any], ...]
Made = tuple[Any, Callable[[int], Arrays], Callable[..., Any]]

HEADS = 4  # heads of the GPT
LATENT = 8  # latent numbers of the VAE
VISCOSITY = 0.01 / math.pi  # of Burgers' equation
STRIDES = (1, 1, 2, 1, 2, 1, 2, 1)  # strides of ResNet-18's blocks
_CHANNELS, _LAYERS, _LENGTH = 128, 4, 64  # of the GPT
_DROPPED = 0.1


def _digits() -> Arrays:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype("float32"), labels.astype("int64")


def cnn(framework: Any) -> Made:
    """Return two convolutions with batch norm and dropout, on 8 x 8 digits."""
    nn = framework.nn
    images, labels = _digits()

    def block(inputs: int, outputs: int) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10)]
    model = nn.Sequential(*block(1, 32), *block(32, 64), *head)

    def batch(i: int) -> Arrays:
        rows = np.random.default_rng(i).integers(0, len(images), 64)
        return images[rows].reshape(-1, 1, 8, 8), labels[rows]

    return model, batch, lambda m, x, y: nn.functional.cross_entropy(m(x), y)


def gpt(framework: Any) -> Made:
    """Return a GPT with dropout, on the characters of two standard library modules."""
    nn = framework.nn
    files = [Path(str(module.__file__)) for module in (argparse, typing)]
    text = "".join(file.read_text(encoding="utf-8") for file in files).encode("ascii", "replace")
    symbols, data = np.unique(np.frombuffer(text, "uint8"), return_inverse=True)
    narrow, wide = _CHANNELS, 4 * _CHANNELS

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(narrow, 3 * narrow)
            self.proj = nn.Linear(narrow, narrow)

        def forward(self, x: Any) -> Any:
            shape = (*x.shape[:2], HEADS, narrow // HEADS)
            q, k, v = (y.reshape(shape).transpose(1, 2) for y in self.qkv(x).split(narrow, dim=2))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).reshape(x.shape))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = nn.Linear(narrow, wide), nn.GELU(), nn.Linear(wide, narrow)
            self.attention = nn.Sequential(nn.LayerNorm(narrow), Attention(), nn.Dropout(_DROPPED))
            self.mlp = nn.Sequential(nn.LayerNorm(narrow), *layers, nn.Dropout(_DROPPED))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(x)
            return x + self.mlp(x)

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(len(symbols), narrow)
            self.positions = nn.Embedding(_LENGTH, narrow)
            self.blocks = nn.Sequential(*[Block() for _ in range(_LAYERS)])
            self.norm = nn.LayerNorm(narrow)
            self.head = nn.Linear(narrow, len(symbols), bias=False)

        def forward(self, indices: Any) -> Any:
            x = self.tokens(indices) + self.positions(framework.arange(indices.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    def batch(i: int) -> Arrays:
        starts = np.random.default_rng(i).integers(0, len(data) - _LENGTH - 1, (16, 1))
        rows = data[starts + np.arange(_LENGTH + 1)]
        return rows[:, :-1], rows[:, 1:]

    def loss(model: Any, x: Any, y: Any) -> Any:
        scores = model(x).reshape(-1, len(symbols))
        return nn.functional.cross_entropy(scores, y.reshape(-1))

    return GPT(), batch, loss


def lstm(framework: Any) -> Made:
    """Return a two-layer LSTM that forecasts a noisy sum of sines."""
    nn = framework.nn
    at, noise = np.arange(3000), np.random.default_rng(5).standard_normal(3000)
    series = np.sin(at / 8) + 0.5 * np.sin(at / 23 + 1) + 0.1 * noise

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(1, 64, 2, batch_first=True)
            self.head = nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            return self.head(self.rnn(x)[0][:, -1])

    def batch(i: int) -> Arrays:
        starts = np.random.default_rng(i).integers(0, len(series) - 49, (32, 1))
        rows = series[starts + np.arange(49)].astype("float32")
        return rows[:, :-1, None], rows[:, -1:]

    return Forecast(), batch, lambda m, x, y: nn.functional.mse_loss(m(x), y)


def vae(framework: Any) -> Made:
    """Return a variational autoencoder of digits; its noise is part of the batch."""
    nn, exp = framework.nn, framework.exp
    images, _ = _digits()

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
            self.encoder = nn.Sequential(*hidden, nn.Linear(128, 2 * LATENT))
            hidden = nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU()
            self.decoder = nn.Sequential(*hidden, nn.Linear(256, 64))

    def batch(i: int) -> Arrays:
        draw = np.random.default_rng(i)
        rows = draw.integers(0, len(images), 128)
        return images[rows], draw.standard_normal((128, LATENT), "float32")

    def loss(model: Any, x: Any, noise: Any) -> Any:
        mean, log_variance = model.encoder(x).split(LATENT, dim=1)
        y = model.decoder(mean + exp(0.5 * log_variance) * noise)
        likelihood = nn.functional.binary_cross_entropy_with_logits(y, x, reduction="sum")
        distance = 1 + log_variance - mean * mean - exp(log_variance)
        return (likelihood - 0.5 * distance.sum()) / x.shape[0]

    return VAE(), batch, loss


def gnn(framework: Any) -> Made:
    """Return a graph network that learns the mean squared distance to the nearest neighbour."""
    nn = framework.nn

    class Layer(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.own = nn.Linear(inputs, outputs)
            self.others = nn.Linear(inputs, outputs)
            self.norm = nn.LayerNorm(outputs)

        def forward(self, x: Any, weights: Any) -> Any:
            others = framework.matmul(weights, self.others(x))
            return nn.functional.relu(self.norm(self.own(x) + others))

    class GraphNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(framework.zeros(1))
            self.layers = nn.ModuleList([Layer(i, 64) for i in (3, 64, 64)])
            self.head = nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            apart = x.unsqueeze(2) - x.unsqueeze(1)
            near = -(apart * apart).sum(-1) * framework.exp(self.scale)
            weights = nn.functional.softmax(near, dim=-1)
            for layer in self.layers:
                x = layer(x, weights)
            return self.head(x.mean(1))

    def batch(i: int) -> Arrays:
        points = np.random.default_rng(i).standard_normal((32, 24, 3), "float32")
        far = ((points[:, :, None] - points[:, None]) ** 2).sum(-1) + 10 * np.eye(24)
        return points, far.min(-1).mean(-1, keepdims=True).astype("float32")

    return GraphNet(), batch, lambda m, x, y: nn.functional.mse_loss(m(x), y)


def pinn(framework: Any, functional: bool = False) -> Made:
    """Return a network for Burgers' equation u_t + u u_x = nu u_xx. The loss takes second
    derivatives with `autograd.grad` or, if `functional`, with `func.grad`."""
    nn = framework.nn
    sizes = 2, 64, 64, 64
    hidden = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.Tanh())]
    model = nn.Sequential(*hidden, nn.Linear(64, 1))

    def batch(i: int) -> Arrays:
        draw = np.random.default_rng(i)
        ranges = (0, 1, 256), (-1, 1, 256), (-1, 1, 64)
        return tuple(draw.uniform(a, b, (n, 1)).astype("float32") for a, b, n in ranges)

    def by_tape(u: Any, t: Any, x: Any) -> tuple[Any, ...]:
        def slope(y: Any, x: Any) -> Any:
            return framework.autograd.grad(y.sum(), [x], create_graph=True)[0]

        t, x = t.detach(), x.detach()
        t.requires_grad = x.requires_grad = True
        now = u(t, x)
        along = slope(now, x)
        return now, slope(now, t), along, slope(along, x)

    def by_functions(u: Any, t: Any, x: Any) -> tuple[Any, ...]:
        slopes = framework.func.grad(lambda t, x: u(t, x).sum(), (0, 1))
        twice = framework.func.grad(lambda t, x: slopes(t, x)[1].sum(), 1)
        return u(t, x), *slopes(t, x), twice(t, x)

    def loss(model: Any, t: Any, x: Any, start: Any) -> Any:
        def u(t: Any, x: Any) -> Any:
            return model(framework.cat([t, x], 1))

        now, in_time, along, twice = (by_functions if functional else by_tape)(u, t, x)
        inside, ones = in_time + now * along - VISCOSITY * twice, framework.ones_like(t)
        first = u(framework.zeros_like(start), start) + framework.sin(math.pi * start)
        edges = u(t, ones), u(t, -ones)
        return sum(((each * each).mean() for each in (first, *edges)), (inside * inside).mean())

    return model, batch, loss


def resnet(framework: Any) -> Made:
    """Return ResNet-18 on random 32 x 32 images in ten classes."""
    nn = framework.nn

    def norm_after(inputs: int, outputs: int, kernel: int, stride: int) -> Any:
        padding = kernel // 2
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.first = norm_after(inputs, outputs, 3, stride)
            self.second = norm_after(outputs, outputs, 3, 1)
            same = inputs == outputs
            self.shortcut = nn.Identity() if same else norm_after(inputs, outputs, 1, stride)
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.shortcut(x) + self.second(self.relu(self.first(x))))

    channels = [64 << number // 2 for number in range(len(STRIDES))]
    sizes = zip([64, *channels], channels, STRIDES, strict=False)
    stem = norm_after(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)
    model = nn.Sequential(*stem, *(Block(*each) for each in sizes), *head)

    def batch(i: int) -> Arrays:
        draw = np.random.default_rng(i)
        return draw.standard_normal((16, 3, 32, 32), "float32"), draw.integers(0, 10, 16)

    return model, batch, lambda m, x, y: nn.functional.cross_entropy(m(x), y)


MODELS: dict[str, Callable[..., Made]] = {
    each.__name__: each for each in (vae, gnn, pinn, cnn, lstm, gpt, resnet)
}
