"""The small models that the site shows at each pass of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import needle as ndl
from needle import nn, ops

# Most machines can run code for this processor; with it, every machine makes the same pages.
COMMON = "x86-64-v3"


class Example(NamedTuple):
    """A model and its arguments for `compile`: inputs, dims, precision of matmuls, and processor.
    `updates` has (result, input) pairs of numbers: these results replace these inputs."""

    name: str
    what: str
    model: Any
    inputs: tuple[Any, ...]
    dims: Mapping[Any, Any] | None = None
    precision: str = "float32"
    processor: str = COMMON
    updates: tuple[tuple[int, int], ...] = ()


def examples() -> list[Example]:
    """Return the models, the simplest first. Together they need nearly every pass."""
    ndl.manual_seed(0)
    half = ndl.Tensor(np.ones((4, 16), "float32")).astype("bfloat16")
    whole = ndl.Tensor(np.ones((4, 8), "int32"))
    linear = nn.Linear(32, 64).eval()
    none = ndl.Tensor(np.ones((0, 8), "float32"))
    return [
        Example("mlp", "two linear layers, batch norm and ReLU between them", _mlp(), (_x(8, 32),)),
        Example(
            "attention",
            "layer norms, two heads, a residual sum",
            _Attention().eval(),
            (_x(2, 8, 32),),
        ),
        Example(
            "convnet",
            "a 3x3 convolution with batch norm, another whose groups have one channel, the mean",
            _convnet(),
            (_x(2, 3, 12, 12),),
        ),
        Example(
            "deep convolution",
            "a 3x3 convolution of many channels",
            _conv(64, 64),
            (_x(1, 64, 28, 28),),
        ),
        Example(
            "pointwise convolution",
            "a 1x1 convolution of an image of 7 x 7 pixels",
            nn.Conv2d(64, 128, 1).eval(),
            (_x(1, 64, 7, 7),),
        ),
        Example(
            "branches",
            "the sum of a 3x3 and a 1x1 convolution of one image",
            _branches(),
            (_x(1, 16, 14, 14),),
        ),
        Example(
            "padded and dilated",
            "an image padded with zeros, and a 3x3 convolution of it with dilation 12",
            _dilated(),
            (_x(1, 64, 13, 13),),
        ),
        Example(
            "small image",
            "a 3x3 convolution of one pixel, then one of its whole image",
            nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 1)).eval(),
            (_x(2, 4, 1, 1),),
        ),
        Example(
            "volume",
            "a 3-D convolution with a large result, and ReLU",
            nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.ReLU()).eval(),
            (_x(1, 3, 8, 40, 40),),
        ),
        Example("lstm", "an LSTM over four steps", nn.LSTM(8, 16).eval(), (_x(4, 2, 8),)),
        Example(
            "broadcast",
            "a row added to each row, by broadcasting it first",
            _broadcast,
            (_x(4, 8), _x(8)),
        ),
        Example("input returned", "an input among the results", lambda x: (x, x * 2), (_x(4, 8),)),
        Example("constants", "a product of constants", _constants, (_x(4, 8),)),
        Example(
            "nothing", "rows put after no rows", lambda x: ops.concat((none, x), 0), (_x(4, 8),)
        ),
        Example("integers", "sums and divisions of integers", lambda x: (x * 3 + 1) // 2, (whole,)),
        Example(
            "cancelling", "a sum minus one of its terms", lambda x, y: (x + y) - y, (_x(4), _x(4))
        ),
        Example("bfloat16", "two operations in bfloat16", lambda x: (x + 1.5) * x, (half,)),
        Example(
            "rounded", "a linear layer in bfloat16", linear, (_x(8, 32),), precision="bfloat16"
        ),
        Example(
            "bfloat16 instructions",
            "a linear layer in bfloat16, for a processor that has instructions for it",
            linear,
            (_x(8, 32),),
            precision="bfloat16",
            processor="sapphirerapids",
        ),
        Example(
            "training step",
            "a step of gradient descent with momentum, whose results replace weight and average, "
            "and the norm of the gradient",
            _descent,
            (_x(64, 64), _x(64, 64), _x(64, 64)),
            updates=((0, 0), (1, 1)),
        ),
        Example(
            "weight gradient",
            "the gradient with respect to the weights of a 3x3 convolution",
            ops.ConvWeight((3, 3), padding=(1, 1)),
            (_x(2, 8, 8, 16), _x(2, 8, 8, 16)),
        ),
        Example(
            "any size",
            "differences of neighbouring rows, over the number of rows, which may vary",
            _windows,
            (_x(6, 3),),
            dims={0: {0: ndl.Dim("n", min=2, max=64)}},
        ),
    ]


def _x(*shape: int) -> ndl.Tensor:
    return ndl.Tensor(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def _descent(weight: ndl.Tensor, average: ndl.Tensor, gradient: ndl.Tensor) -> Any:
    scaled = gradient * 0.5
    norm = (gradient * gradient).sum()
    return weight - scaled * 0.1, average * 0.9 + scaled, norm


def _mlp() -> nn.Module:
    layers = (nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
    return nn.Sequential(*layers).eval()


def _convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, groups=16),
        _Mean(),
    ).eval()


def _conv(channels: int, results: int) -> nn.Module:
    return nn.Conv2d(channels, results, 3, padding=1).eval()


def _branches() -> Callable[[ndl.Tensor], ndl.Tensor]:
    wide, point = nn.Conv2d(16, 32, 3, padding=1).eval(), nn.Conv2d(16, 32, 1).eval()
    return lambda x: wide(x) + point(x)


def _dilated() -> Callable[[ndl.Tensor], ndl.Tensor]:
    layer = nn.Conv2d(64, 64, 3, padding=12, dilation=12).eval()
    return lambda x: layer(ops.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1))))


def _broadcast(x: ndl.Tensor, row: ndl.Tensor) -> ndl.Tensor:
    return x + ops.broadcast_to(row, (4, 8))


def _constants(x: ndl.Tensor) -> ndl.Tensor:
    return x * ops.exp(ndl.Tensor(np.ones(8, "float32")))


def _windows(x: ndl.Tensor) -> ndl.Tensor:
    return (x[1:] - x[:-1]) / x.shape[0]


class _Mean(nn.Module):
    """The mean over rows and columns of images."""

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return x.mean(axes=(2, 3))


class _Attention(nn.Module):
    """Attention with two heads, a layer norm each for queries, keys and values, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = [nn.LayerNorm(32) for _ in range(3)]
        self.projections = [nn.Linear(32, 32, bias=False) for _ in range(3)]

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        def heads(norm: nn.Module, projection: nn.Module) -> ndl.Tensor:
            return projection(norm(x)).reshape((2, 8, 2, 16)).transpose((1, 2))

        query, key, value = map(heads, self.norms, self.projections)
        scores = ops.softmax(ops.matmul(query, key.transpose((2, 3))) * 0.25, axis=-1)
        return ops.matmul(scores, value).transpose((1, 2)).reshape((2, 8, 32)) + x
