"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable

from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import fraction, not_negative
from ..tensor import Tensor
from .optimizer import Optimizer, zeros_of


class SGD(Optimizer):
    """g = grad + weight_decay * p; u = momentum * u + (1 - momentum) * g; p -= lr * u.

    u is a moving average of gradients (the course's form) that starts at 0. It equals PyTorch's
    with dampening = momentum, except for PyTorch's first step.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr)
        self.momentum = fraction("SGD", "momentum", momentum)
        self.weight_decay = not_negative("SGD", "weight_decay", weight_decay)
        self.u: dict[int, NDArray] = {}  # by position of the parameter

    def _update(self, i: int, param: NDArray, grad: NDArray) -> None:
        velocity = None
        if self.momentum:
            velocity = self.u.get(i)
            if velocity is None:
                velocity = self.u[i] = zeros_of(param)
        param.device.kernels.sgd_step(
            param.view,
            grad.view,
            None if velocity is None else velocity.view,
            self.lr,
            self.momentum,
            self.momentum,
            self.weight_decay,
        )
