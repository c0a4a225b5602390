"""Adam (Kingma and Ba 2014)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import fraction, not_negative
from ..tensor import Tensor
from .optimizer import Check, Optimizer, flag, wide, write, zeros_of


class Adam(Optimizer):
    """m, v = moving averages of g and g * g, where g = grad + weight_decay * p;
    p -= lr * m' / (sqrt(v') + eps), where m', v' are divided by 1 - beta ** step if
    `bias_correction`. `betas`, PyTorch's name, is the pair (beta1, beta2).

    With `amsgrad`, the largest v so far takes the place of v in the step (Reddi et al. 2018). With
    `maximize`, grad is negated first.

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
        "amsgrad": flag,
        "maximize": flag,
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
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        if betas is not None:
            beta1, beta2 = pair_of(type(self).__name__, betas)
        self.t = 0
        self.m: dict[int, NDArray] = {}  # by position of the parameter
        self.v: dict[int, NDArray] = {}
        self.v_max: dict[int, NDArray] = {}  # the largest so far, with amsgrad
        super().__init__(
            params,
            lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            bias_correction=bias_correction,
            amsgrad=amsgrad,
            maximize=maximize,
        )

    def begin_step(self) -> None:
        self.t += 1

    def _update(self, i: int, param: NDArray, grad: NDArray, o: Any) -> None:
        if i not in self.m:
            self.m[i], self.v[i] = zeros_of(param), zeros_of(param)
        corrections = (1 - o.beta1**self.t, 1 - o.beta2**self.t)
        corrections = corrections if o.bias_correction else (1.0, 1.0)
        if o.amsgrad:
            self._update_by_largest(i, param, grad, o, *corrections)
            return
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
            *corrections,
            self._decoupled,
        )

    def _update_by_largest(
        self, i: int, param: NDArray, grad: NDArray, o: Any, first: float, second: float
    ) -> None:
        """The step of amsgrad; m and v are divided by `first` and `second`."""
        if i not in self.v_max:
            self.v_max[i] = zeros_of(param)
        p, m, v, largest = wide(param), self.m[i], self.v[i], self.v_max[i]
        g = wide(grad)
        if self._decoupled:
            p = p * (1 - o.lr * o.weight_decay)
        else:
            g = g + p * o.weight_decay
        write(m, m * o.beta1 + g * (1 - o.beta1))
        write(v, v * o.beta2 + g * g * (1 - o.beta2))
        write(largest, largest.maximum(v))
        write(param, p - m / ((largest / second).sqrt() + o.eps) * (o.lr / first))

    def _state_shape(self, name: str, param: Tensor) -> tuple[int, ...] | None:
        if name == "v_max" and not self._group_of(param)["amsgrad"]:
            return None
        return param.shape


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
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
            bias_correction,
            betas=betas,
            amsgrad=amsgrad,
            maximize=maximize,
        )


def pair_of(owner: str, betas: Any) -> tuple[float, float]:
    """`betas` as a pair. TypeError for anything else."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{owner}: betas {betas!r} is not a pair (beta1, beta2)")
    return betas[0], betas[1]
