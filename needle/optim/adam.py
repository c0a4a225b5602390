"""Adam (Kingma and Ba 2014)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import fraction, not_negative
from .optimizer import Check, Optimizer, flag, zeros_of


class Adam(Optimizer):
    """m, v = moving averages of g and g * g, where g = grad + weight_decay * p;
    p -= lr * m' / (sqrt(v') + eps), where m', v' are divided by 1 - beta ** step if
    `bias_correction`. `betas`, PyTorch's name, is the pair (beta1, beta2).

    >>> model = nn.Linear(2, 1)
    >>> optimizer = ndl.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
    >>> nn.MSELoss()(model(ndl.ones(4, 2)), ndl.zeros(4, 1)).backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    """

    checks: ClassVar[dict[str, Check]] = {
        "beta1": fraction,
        "beta2": fraction,
        "eps": not_negative,
        "weight_decay": not_negative,
        "bias_correction": flag,
    }
    _decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        *,
        betas: tuple[float, float] | None = None,
    ) -> None:
        if betas is not None:
            beta1, beta2 = pair_of(type(self).__name__, betas)
        self.t = 0
        self.m: dict[int, NDArray] = {}  # by position of the parameter
        self.v: dict[int, NDArray] = {}
        super().__init__(
            params,
            lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            bias_correction=bias_correction,
        )

    def begin_step(self) -> None:
        self.t += 1

    def _update(self, i: int, param: NDArray, grad: NDArray, o: Any) -> None:
        if i not in self.m:
            self.m[i], self.v[i] = zeros_of(param), zeros_of(param)
        corrected = o.bias_correction
        param.device.kernels.adam_step(
            param.view,
            grad.view,
            self.m[i].view,
            self.v[i].view,
            o.lr,
            o.beta1,
            o.beta2,
            o.eps,
            o.weight_decay,
            1 - o.beta1**self.t if corrected else 1.0,
            1 - o.beta2**self.t if corrected else 1.0,
            self._decoupled,
        )


class AdamW(Adam):
    """Adam with decoupled weight decay, which is not added to the gradient: p -= lr * weight_decay
    * p before each step (Loshchilov and Hutter 2019). The other arguments are those of Adam.

    >>> weight, bias = nn.Linear(2, 1).parameters()
    >>> groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
    >>> optimizer = ndl.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    >>> [group["weight_decay"] for group in optimizer.param_groups]
    [0.1, 0.0]
    """

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        *,
        betas: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(params, lr, beta1, beta2, eps, weight_decay, bias_correction, betas=betas)


def pair_of(owner: str, betas: Any) -> tuple[float, float]:
    """`betas` as a pair. TypeError for anything else."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{owner}: betas {betas!r} is not a pair (beta1, beta2)")
    return betas[0], betas[1]
