"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import fraction, not_negative
from .optimizer import Check, Optimizer, flag, wide, write, zeros_of


def _dampening(owner: str, what: str, value: Any) -> float | None:
    return None if value is None else fraction(owner, what, value)


class SGD(Optimizer):
    """g = grad + weight_decay * p; u = momentum * u + (1 - dampening) * g; p -= lr * u.

    With dampening None, the default, it equals momentum, and u is a moving average of gradients
    (the course's form) that starts at 0. With a number, u starts at the first g as in PyTorch,
    whose default is 0. With `nesterov`, p -= lr * (g + momentum * u), and dampening None is 0
    (Sutskever et al. 2013). With `maximize`, grad is negated first, so that steps go up. ValueError
    for nesterov without momentum or with dampening.

    >>> p = ndl.Tensor([1.0])
    >>> (p * p).sum().backward()
    >>> ndl.optim.SGD([p], lr=0.25).step()
    >>> p.item()
    0.5
    """

    checks: ClassVar[dict[str, Check]] = {
        "momentum": fraction,
        "weight_decay": not_negative,
        "dampening": _dampening,
        "nesterov": flag,
        "maximize": flag,
    }
    momentum: float
    dampening: float | None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        dampening: float | None = None,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        self.u: dict[int, NDArray] = {}  # by position of the parameter
        super().__init__(
            params,
            lr,
            momentum=momentum,
            weight_decay=weight_decay,
            dampening=dampening,
            nesterov=nesterov,
            maximize=maximize,
        )
        if nesterov and (not self.momentum or self.dampening):
            raise ValueError(
                f"SGD: nesterov needs a momentum above 0 and no dampening, not {momentum} and "
                f"{dampening}"
            )

    def _update(self, i: int, param: NDArray, grad: NDArray, o: Any) -> None:
        velocity = None
        dampening = o.momentum if o.dampening is None else o.dampening
        if o.momentum:
            velocity = self.u.get(i)
            if velocity is None:
                velocity = self.u[i] = zeros_of(param)
                dampening = o.momentum if o.dampening is None else 0.0
            if o.nesterov:
                g = wide(grad) + wide(param) * o.weight_decay
                write(velocity, velocity * o.momentum + g)
                write(param, wide(param) - (g + velocity * o.momentum) * o.lr)
                return
        param.device.kernels.sgd_step(
            param.view,
            grad.view,
            None if velocity is None else velocity.view,
            o.lr,
            o.momentum,
            dampening,
            o.weight_decay,
        )
