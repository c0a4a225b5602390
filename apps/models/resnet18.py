"""ResNet-18 for 224 x 224 images and 1000 classes.

K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition" (CVPR 2016).
"""

from __future__ import annotations

import numpy as np

import needle as ndl
from apps.models.resnet import with_statistics
from needle import nn

BATCH = 1
IMAGE = 224
WIDTH = 64  # channels of the first stage; each of the next three doubles them
CLASSES = 1000
STAGES = 4
BLOCKS = 2  # per stage


class ConvNorm(nn.Module):
    """batch_norm(conv(x)) over (N, C, H, W); the convolution has no bias."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv(inputs, outputs, kernel, stride, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.norm(self.conv(x))


class Block(nn.Module):
    """relu(shortcut(x) + two 3 x 3 convolutions of x). The shortcut is a 1 x 1 convolution if the
    shape changes, otherwise x itself."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride)
        self.second = ConvNorm(outputs, outputs, 3, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.relu(self.shortcut(x) + self.second(self.relu(self.first(x))))


class ResNet18(nn.Module):
    """ResNet-18: (N, 3, H, W) -> scores (N, classes)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, 7, 2)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, channels = [], width
        for stage in range(STAGES):
            for number in range(BLOCKS):
                outputs = width << stage
                blocks.append(Block(channels, outputs, 2 if stage and not number else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        x = self.blocks(self.pool(self.relu(self.stem(x))))
        return self.head(x.mean((2, 3)))


def build(
    batch: int = BATCH, image: int = IMAGE, width: int = WIDTH, classes: int = CLASSES
) -> tuple[nn.Module, np.ndarray]:
    """Return ResNet-18 and an input of shape (batch, 3, image, image), equal in every process."""
    ndl.manual_seed(0)
    rng = np.random.default_rng(0)
    model = with_statistics(ResNet18(width, classes), rng)
    return model, rng.standard_normal((batch, 3, image, image), dtype=np.float32)
