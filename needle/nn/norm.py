"""Normalization layers."""

from __future__ import annotations

from typing import Any

from .. import init
from ..autograd import Tensor
from ..backend_ndarray import Device
from .module import Module, Parameter


class LayerNorm1d(Module):
    """Normalizes the last axis (of extent `dim`) to mean 0 and variance 1, then scales and shifts.

    weight and bias have shape (dim,).
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, device: Device | None = None, dtype: str = "float32"
    ) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(dim, **where))
        self.bias = Parameter(init.zeros(dim, **where))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / (variance + self.eps).sqrt() * self.weight + self.bias

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


class BatchNorm1d(Module):
    """Normalizes each of the `dim` columns of (N, dim) over the batch, then scales and shifts.

    In train mode by the batch's mean and (biased) variance, which also move the buffers
    running_mean and running_var: running = (1 - momentum) * running + momentum * batch. In eval
    mode by the buffers. weight, bias and the buffers have shape (dim,).
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
        self.dim = dim
        self.eps = eps
        self.momentum = momentum
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.ones(dim, **where))
        self.bias = Parameter(init.zeros(dim, **where))
        self.running_mean = init.zeros(dim, **where)
        self.running_var = init.ones(dim, **where)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.mean(0)
            centred = x - mean
            variance = (centred * centred).mean(0)
            self._track(mean.detach(), variance.detach())
        else:
            centred = x - self.running_mean
            variance = self.running_var
        return centred / (variance + self.eps).sqrt() * self.weight + self.bias

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        m = self.momentum
        for running, batch in ((self.running_mean, mean), (self.running_var, variance)):
            running.data = running.detach() * (1 - m) + batch.astype(running.dtype) * m

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}, momentum={self.momentum}"
