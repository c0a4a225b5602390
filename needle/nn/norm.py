"""Normalization layers."""

from __future__ import annotations

from math import prod
from typing import Any

from .. import init, ops
from ..backend_ndarray import Device
from ..backend_ndarray.arguments import count, counts, not_negative, share
from ..errors import ShapeError
from ..tensor import Tensor
from .conv import channels_first, channels_last
from .module import Module, Parameter


class LayerNorm1d(Module):
    """Normalize the last axis (of extent `dim`) to mean 0 and variance 1, then scale and shift.

    weight and bias have shape (dim,).
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, device: Device | None = None, dtype: str = "float32"
    ) -> None:
        super().__init__()
        self.dim = count("LayerNorm1d", "dim", dim)
        self.eps = not_negative("LayerNorm1d", "eps", eps)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(dim, **where))
        self.bias = Parameter(init.zeros(dim, **where))

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


class BatchNorm1d(Module):
    """Normalize each of the `dim` columns of (N, dim) over the batch, then scale and shift.

    Train mode uses the batch's mean and biased variance, which also update the buffers running_mean
    and running_var: running = (1 - momentum) * running + momentum * batch. Eval mode uses the
    buffers. weight, bias and the buffers have shape (dim,).
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.dim = count(name, "dim", dim)
        self.eps = not_negative(name, "eps", eps)
        self.momentum = share(name, "momentum", momentum)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(dim, **where))
        self.bias = Parameter(init.zeros(dim, **where))
        self.running_mean = init.zeros(dim, **where)
        self.running_var = init.ones(dim, **where)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x, 2, "(N, dim)")
        return self._normalize(x)

    def _check(self, x: Tensor, ndim: int, form: str) -> None:
        shape = x.shape
        if len(shape) != ndim or shape[1] != self.dim:
            name = type(self).__name__
            raise ShapeError(f"{name}: x has shape {shape}, not {form} with dim={self.dim}")

    def _normalize(self, x: Tensor) -> Tensor:
        """Normalize over all axes but the second."""
        if not self.training:
            statistics = self.running_mean, self.running_var
            return ops.batch_norm(x, self.weight, self.bias, *statistics, self.eps)
        y, mean, variance = ops.batch_norm_train(x, self.weight, self.bias, 1, self.eps)
        self._track(mean.detach(), variance.detach())
        return y

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        m = self.momentum
        for running, batch in ((self.running_mean, mean), (self.running_var, variance)):
            running.data = running.detach() * (1 - m) + batch.astype(running.dtype) * m

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm2d(BatchNorm1d):
    """Normalize each of the `dim` channels of (N, dim, H, W) over all other axes, then scale and
    shift. Otherwise like BatchNorm1d."""

    def forward(self, x: Tensor) -> Tensor:
        self._check(x, 4, "(N, dim, H, W)")
        if self.training:
            return self._normalize(x)
        return channels_first(self._normalize(channels_last(x)))


class GroupNorm(Module):
    """Normalize each of `num_groups` groups of adjacent channels of (N, num_channels, ...), then
    scale and shift each channel.

    weight and bias have shape (num_channels,). ValueError unless num_groups divides num_channels.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_groups} groups do not divide {num_channels}")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = not_negative("GroupNorm", "eps", eps)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(num_channels, **where))
        self.bias = Parameter(init.zeros(num_channels, **where))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        if len(shape) < 2 or shape[1] != self.num_channels:
            raise ShapeError(f"GroupNorm: x has shape {shape}, not (N, {self.num_channels}, ...)")
        each = self.num_channels // self.num_groups
        grouped = ops.reshape(x, (shape[0], self.num_groups, each * prod(shape[2:])))
        y = ops.reshape(ops.normalize(grouped, 2, self.eps), shape)
        channel = (self.num_channels, *[1] * (len(shape) - 2))
        return y * ops.reshape(self.weight, channel) + ops.reshape(self.bias, channel)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"
