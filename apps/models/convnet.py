"""A plain convolutional net: by default four 3 x 3 convolutions to 32 channels at 48 x 48."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

import needle as ndl
from needle import nn

BATCH = 1
CHANNELS = (3, 32, 32, 32, 32)
IMAGE = 48


class ConvNet(nn.Module):
    """Convolution and ReLU between adjacent `channels`; `strides` has a stride for each layer."""

    def __init__(self, channels: Sequence[int], kernel: int, strides: Sequence[int]) -> None:
        super().__init__()
        if len(strides) != len(channels) - 1:
            raise ValueError(f"ConvNet: strides {strides} must match the layers of {channels}")
        self.convs = [
            nn.Conv(a, b, kernel, stride=stride)
            for (a, b), stride in zip(itertools.pairwise(channels), strides, strict=True)
        ]
        self.relu = nn.ReLU()

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        for conv in self.convs:
            x = self.relu(conv(x))
        return x


def build(
    batch: int = BATCH,
    channels: Sequence[int] = CHANNELS,
    image: int = IMAGE,
    kernel: int = 3,
    strides: Sequence[int] = (1, 1, 1, 1),
) -> tuple[ConvNet, np.ndarray]:
    """Return the net and an input of shape (batch, channels[0], image, image), both the same in
    every process."""
    ndl.manual_seed(0)
    model = ConvNet(channels, kernel, strides)
    model.eval()
    shape = (batch, channels[0], image, image)
    return model, np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
