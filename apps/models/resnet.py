"""ResNet9 for 32 x 32 colour images, and a smaller one for the 8 x 8 digits."""

from __future__ import annotations

from typing import Any

import numpy as np

import needle as ndl
from needle import nn

BATCH = 8
IMAGE = (3, 32, 32)
DIGIT = (1, 8, 8)
CLASSES = 10


class ConvBN(nn.Module):
    """relu(batch_norm(conv(x))) over (N, C, H, W)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        device: Any = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv = nn.Conv(in_channels, out_channels, kernel_size, stride=stride, **where)
        self.norm = nn.BatchNorm2d(out_channels, **where)
        self.relu = nn.ReLU()

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.relu(self.norm(self.conv(x)))


def residual(channels: int, **where: Any) -> nn.Residual:
    """Return two ConvBN and a skip connection."""
    blocks = [ConvBN(channels, channels, 3, 1, **where) for _ in range(2)]
    return nn.Residual(nn.Sequential(*blocks))


class ResNet9(nn.Module):
    """A residual network: (N, 3, 32, 32) -> scores (N, 10)."""

    def __init__(self, device: Any = None, dtype: str = "float32") -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.model = nn.Sequential(
            ConvBN(3, 16, 7, 4, **where),
            ConvBN(16, 32, 3, 2, **where),
            residual(32, **where),
            ConvBN(32, 64, 3, 2, **where),
            ConvBN(64, 128, 3, 2, **where),
            residual(128, **where),
            nn.Flatten(),
            nn.Linear(128, 128, **where),
            nn.ReLU(),
            nn.Linear(128, CLASSES, **where),
        )

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.model(x)


class DigitsResNet(nn.Module):
    """A small residual network: (N, 1, 8, 8) -> scores (N, 10)."""

    def __init__(self, device: Any = None, dtype: str = "float32") -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.features = nn.Sequential(
            ConvBN(1, 16, 3, 1, **where),
            residual(16, **where),
            ConvBN(16, 32, 3, 2, **where),
            residual(32, **where),
        )
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, CLASSES, **where))

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        return self.head(self.features(x).mean((2, 3)))


def build(batch: int = BATCH) -> tuple[nn.Module, np.ndarray]:
    """Return ResNet9 and an input of shape (batch, 3, 32, 32), both the same in every process."""
    return _example(ResNet9, (batch, *IMAGE))


def digits(batch: int = BATCH) -> tuple[nn.Module, np.ndarray]:
    """Return the digits' ResNet and an input of shape (batch, 1, 8, 8)."""
    return _example(DigitsResNet, (batch, *DIGIT))


def _example(kind: type[nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, np.ndarray]:
    ndl.manual_seed(0)
    rng = np.random.default_rng(0)
    model = with_statistics(kind(), rng)
    return model, rng.standard_normal(shape, dtype=np.float32)


def with_statistics(model: nn.Module, rng: np.random.Generator) -> nn.Module:
    """Return the model in eval mode, with batch norm statistics as after training: the initial 0
    and 1 would hide a mistake in their use."""
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            values = rng.uniform(0.5, 1.5, buffer.shape) - name.endswith("running_mean")
            buffer.data = ndl.Tensor(values.astype(buffer.dtype), requires_grad=False)
    model.eval()
    return model
