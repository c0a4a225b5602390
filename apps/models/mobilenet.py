"""MobileNet's depthwise separable blocks, on 112 x 112 pixels.

A. Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
Applications" (2017): the layers after its first convolution, down to 28 x 28 pixels.
"""

from __future__ import annotations

import numpy as np

import needle as ndl
from apps.models.resnet import with_statistics
from needle import nn

BATCH = 1
IMAGE = 112
WIDTH = 32
CLASSES = 1000
STRIDES = (1, 2, 1, 2, 1)  # one per block; the first and the stride-2 blocks double the channels


class Separable(nn.Module):
    """relu(norm(conv)) twice: a depthwise 3 x 3 convolution, then a 1 x 1 across channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv(inputs, inputs, 3, stride, bias=False, groups=inputs)
        self.depthwise_norm = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv(inputs, outputs, 1, bias=False)
        self.pointwise_norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        x = self.relu(self.depthwise_norm(self.depthwise(x)))
        return self.relu(self.pointwise_norm(self.pointwise(x)))


class MobileNet(nn.Module):
    """(N, width, H, W) -> scores (N, classes)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        blocks, channels = [], width
        for number, stride in enumerate(STRIDES):
            outputs = channels * 2 if stride == 2 or not number else channels
            blocks.append(Separable(channels, outputs, stride))
            channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


def build(
    batch: int = BATCH, image: int = IMAGE, width: int = WIDTH, classes: int = CLASSES
) -> tuple[nn.Module, np.ndarray]:
    """Return a model and an input of shape (batch, width, image, image), equal in every process."""
    ndl.manual_seed(0)
    rng = np.random.default_rng(0)
    model = with_statistics(MobileNet(width, classes), rng)
    return model, rng.standard_normal((batch, width, image, image), dtype=np.float32)
