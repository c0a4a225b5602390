"""Adam (Kingma and Ba 2014)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ..backend_ndarray.arguments import flag, fraction, not_negative
from ..op import remembered
from ..ops import AdamUpdate
from .groups import pair_of
from .optimizer import Check, Optimizer

_RULE = remembered(AdamUpdate)


class Adam(Optimizer):
    """m, v = moving averages of g and g * g, where g = grad + weight_decay * p;
    p -= lr * m' / (sqrt(v') + eps). With `bias_correction`, m' = m / (1 - beta1 ** step) and
    v' = v / (1 - beta2 ** step), where step counts the steps of this parameter; without it, m' = m
    and v' = v. `betas` is the pair (beta1, beta2); the keywords beta1 and beta2 may replace it.

    With `amsgrad`, the step uses the largest v so far (Reddi et al. 2018). With `maximize`, grad is
    negated first. With `decoupled_weight_decay` the optimizer is AdamW.

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
    _states = ("m", "v", "v_max")
    _reads_steps = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        beta1: float | None = None,
        beta2: float | None = None,
        bias_correction: bool = True,
    ) -> None:
        name = type(self).__name__
        first, second = pair_of(name, betas)
        self._decoupled = flag(name, "decoupled_weight_decay", decoupled_weight_decay)
        super().__init__(
            params,
            lr,
            beta1=first if beta1 is None else beta1,
            beta2=second if beta2 is None else beta2,
            eps=eps,
            weight_decay=weight_decay,
            bias_correction=bias_correction,
            amsgrad=amsgrad,
            maximize=maximize,
        )

    def _rule(self, options: Any) -> Any:
        o = options
        corrects, decoupled = o.bias_correction, self._decoupled
        return _RULE(o.beta1, o.beta2, o.eps, o.weight_decay, corrects, o.amsgrad, decoupled)


class AdamW(Adam):
    """Adam with decoupled weight decay: p -= lr * weight_decay * p before each step, and nothing is
    added to the gradient (Loshchilov and Hutter 2019). The other arguments are as in Adam.

    >>> weight, bias = nn.Linear(2, 1).parameters()
    >>> groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
    >>> optimizer = ndl.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    >>> [group["weight_decay"] for group in optimizer.param_groups]
    [0.1, 0.0]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        beta1: float | None = None,
        beta2: float | None = None,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            decoupled_weight_decay=True,
            beta1=beta1,
            beta2=beta2,
            bias_correction=bias_correction,
        )
