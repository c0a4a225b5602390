"""Adam (Kingma and Ba 2014)."""

from __future__ import annotations

from collections.abc import Iterable

from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import fraction, not_negative
from ..tensor import Tensor
from .optimizer import Optimizer, zeros_of


class Adam(Optimizer):
    """m, v = moving averages of g and g * g, where g = grad + weight_decay * p;
    p -= lr * m' / (sqrt(v') + eps), where m', v' are divided by 1 - beta ** step if
    `bias_correction`.
    """

    _decoupled = False

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(params, lr)
        name = type(self).__name__
        self.beta1 = fraction(name, "beta1", beta1)
        self.beta2 = fraction(name, "beta2", beta2)
        self.eps = not_negative(name, "eps", eps)
        self.weight_decay = not_negative(name, "weight_decay", weight_decay)
        self.bias_correction = bias_correction
        self.t = 0
        self.m: dict[int, NDArray] = {}  # by position of the parameter
        self.v: dict[int, NDArray] = {}

    def step(self) -> None:
        """Update every parameter once. Records no graph."""
        self.t += 1
        super().step()

    def _update(self, i: int, param: NDArray, grad: NDArray) -> None:
        if i not in self.m:
            self.m[i], self.v[i] = zeros_of(param), zeros_of(param)
        corrected = self.bias_correction
        param.device.kernels.adam_step(
            param.view,
            grad.view,
            self.m[i].view,
            self.v[i].view,
            self.lr,
            self.beta1,
            self.beta2,
            self.eps,
            self.weight_decay,
            1 - self.beta1**self.t if corrected else 1.0,
            1 - self.beta2**self.t if corrected else 1.0,
            self._decoupled,
        )


class AdamW(Adam):
    """Adam with decoupled weight decay, which is not added to the gradient:
    p -= lr * weight_decay * p before each step (Loshchilov and Hutter 2019)."""

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(params, lr, beta1, beta2, eps, weight_decay, bias_correction)
