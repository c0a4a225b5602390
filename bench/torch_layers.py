"""Single layers and blocks of PyTorch in many shapes, for `bench.layers`.

`LAYERS` maps the name of a layer to a function that returns the layer and its inputs. The caller
puts the layer into eval mode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function(*inputs)


class Encoder(nn.Module):
    """A pre-norm encoder layer with GELU."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.projections = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        seen = self.norms[0](x)
        q, k, v = (
            project(seen).reshape(batch, length, self.heads, -1).transpose(1, 2)
            for project in self.projections[:3]
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.projections[3](mixed.reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


class Inverted(nn.Module):
    """MobileNetV2's block (Sandler et al., 2018): expand, convolve depthwise, project, add."""

    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        wide = channels * factor
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, channels, 1), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Excited(nn.Module):
    """A convolution with weighted channels (Hu et al., "Squeeze-and-excitation", 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.conv(x))
        weights = torch.sigmoid(self.up(functional.silu(self.down(y.mean((2, 3), keepdim=True)))))
        return x + y * weights


class Dense(nn.Module):
    """DenseNet's block (Huang et al., 2017): each layer sees the outputs of all earlier layers."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth),
                nn.ReLU(),
                nn.Conv2d(channels + i * growth, growth, 3, padding=1),
            )
            for i in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def _mlp(batch: int, *sizes: int) -> Made:
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(batch, sizes[0]),)


def _conv(
    batch: int,
    channels: int,
    outputs: int,
    size: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
) -> Made:
    """Return three convolutions with batch norm and ReLU; the first has the stride."""
    layers: list[nn.Module] = []
    for number in range(3):
        inputs, step = (outputs, 1) if number else (channels, stride)
        conv = nn.Conv2d(inputs, outputs, kernel, step, kernel // 2, groups=groups)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers), (torch.randn(batch, channels, size, size),)


def _encoder(batch: int, length: int, width: int, heads: int, hidden: int) -> Made:
    return Encoder(width, heads, hidden), (torch.randn(batch, length, width),)


def _block(make: Callable[[], nn.Module], *shape: int) -> Made:
    return nn.Sequential(make(), make()), (torch.randn(*shape),)


def _function(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Made:
    return Function(function), tuple(torch.randn(*shape) for shape in shapes)


def _module(make: Callable[[], nn.Module], *shape: int) -> Made:
    return make(), (torch.randn(*shape),)


_MLPS = (
    *((1, 100, 100, 100), (17, 300, 500, 70), (32, 1024, 1024)),
    *((5, 1000, 3, 1000), (64, 64, 2048)),
)
_CONVS = (
    *((1, 3, 32, 224, 7, 2), (1, 48, 96, 28, 3, 2), (8, 16, 16, 32, 3), (4, 256, 256, 14, 1)),
    *((1, 512, 512, 7, 3), (1, 24, 24, 112, 3), (3, 37, 41, 19, 3), (1, 32, 32, 56, 5)),
    *((1, 96, 96, 56, 3, 1, 96), (1, 96, 96, 28, 5, 2, 96)),  # depthwise
    *((1, 128, 128, 28, 3, 1, 32), (1, 256, 256, 14, 3, 1, 32), (1, 96, 96, 28, 3, 1, 4)),
    *((1, 60, 60, 28, 3, 1, 3), (4, 512, 512, 7, 3, 1, 32), (1, 40, 40, 28, 3, 1, 4)),
)
_ENCODERS = (
    *((1, 512, 256, 8, 1024), (4, 77, 512, 8, 2048)),
    *((1, 197, 192, 3, 768), (8, 16, 128, 4, 256)),
)

LAYERS: dict[str, Callable[[], Made]] = {
    **{f"mlp {'-'.join(map(str, each))}": partial(_mlp, *each) for each in _MLPS},
    **{f"conv {'-'.join(map(str, each))}": partial(_conv, *each) for each in _CONVS},
    **{f"encoder {'-'.join(map(str, each))}": partial(_encoder, *each) for each in _ENCODERS},
    "inverted": partial(_block, partial(Inverted, 24, 6), 1, 24, 56, 56),
    "excited": partial(_block, partial(Excited, 64), 1, 64, 28, 28),
    "dense": partial(_module, partial(Dense, 64, 32, 4), 1, 64, 28, 28),
    "conv1d": partial(_block, partial(nn.Conv1d, 64, 64, 9, padding=4), 1, 64, 1000),
    "conv transposed": partial(
        _module, partial(nn.ConvTranspose2d, 64, 32, 4, 2, 1), 1, 64, 32, 32
    ),
    "conv transposed in groups": partial(
        _module, partial(nn.ConvTranspose2d, 64, 64, 4, 2, 1, groups=4), 1, 64, 32, 32
    ),
    "conv3d": partial(_block, partial(nn.Conv3d, 32, 32, 3, padding=1), 1, 32, 8, 28, 28),
    "conv3d transposed": partial(
        _module, partial(nn.ConvTranspose3d, 32, 16, 4, 2, 1), 1, 32, 4, 14, 14
    ),
    "layer norm": partial(_module, partial(nn.LayerNorm, 768), 512, 768),
    "softmax": partial(_module, partial(nn.Softmax, -1), 256, 1000),
    "gelu": partial(_module, nn.GELU, 128, 3072),
    "mean over images": partial(_function, lambda x: x.mean((2, 3)), (8, 256, 28, 28)),
    "sum over rows": partial(_function, lambda x: x.sum(0), (2048, 1024)),
    "max over the middle": partial(_function, lambda x: x.amax(1), (64, 512, 49)),
    "max pool": partial(_module, partial(nn.MaxPool2d, 3, 2, 1), 1, 64, 112, 112),
    "average pool": partial(_module, partial(nn.AvgPool2d, 2), 1, 64, 112, 112),
    "channels last": partial(_function, lambda x: x.permute(0, 2, 3, 1) + 1, (8, 64, 56, 56)),
    "concatenated": partial(
        _function, lambda x, y: torch.cat([x, y], 1) * 2, (4, 64, 56, 56), (4, 64, 56, 56)
    ),
    "product of two": partial(_function, torch.matmul, (384, 500), (500, 333)),
    "products of two": partial(_function, torch.matmul, (12, 128, 64), (12, 64, 128)),
}
