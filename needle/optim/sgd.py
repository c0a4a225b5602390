"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import flag, fraction, not_negative
from ..op import remembered
from ..ops import SgdUpdate
from .optimizer import Check, Optimizer

_RULE = remembered(SgdUpdate)


def _dampening(owner: str, what: str, value: Any) -> float | None:
    return None if value is None else fraction(owner, what, value)


class SGD(Optimizer):
    """g = grad + weight_decay * p; u = momentum * u + (1 - dampening) * g; p -= lr * u, where u
    starts at the first g.

    A dampening of None stands for the value of momentum; u is then a moving average of gradients
    that starts at 0, as in the course. With `nesterov`, p -= lr * (g + momentum * u) (Sutskever et
    al. 2013). With `maximize`, grad is negated first, so that steps go up. Raises ValueError for
    nesterov without momentum or with dampening.

    >>> p = ndl.Tensor([1.0])
    >>> (p * p).sum().backward()
    >>> ndl.optim.SGD([p], lr=0.25).step()
    >>> p.item()
    0.5
    """

    checks: ClassVar[dict[str, Check]] = {
        "momentum": fraction,
        "dampening": _dampening,
        "weight_decay": not_negative,
        "nesterov": flag,
        "maximize": flag,
    }
    _states = ("u",)
    _optional = ("dampening",)
    momentum: float
    dampening: float | None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float | None = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )
        if nesterov and (not self.momentum or self.dampening):
            raise ValueError(
                f"SGD: nesterov needs a momentum above 0 and no dampening, not {momentum} and "
                f"{dampening}"
            )

    def _rule(self, options: Any) -> Any:
        dampening, averages = options.dampening, False
        if dampening is None:
            averages = not options.nesterov
            dampening = options.momentum if averages else 0.0
        return _RULE(options.momentum, dampening, options.weight_decay, options.nesterov, averages)

    def _kept(self, i: int, rule: Any, options: Any) -> dict[str, NDArray]:
        begins = rule.momentum and "u" not in self.state.get(i, {})
        kept = super()._kept(i, rule, options)
        if begins:
            self._set_steps(i, 0)
        return kept

    def _upgraded(
        self, state: Mapping[Any, Any], numbers: Mapping[str, Any]
    ) -> tuple[Mapping[Any, Any], Mapping[str, Any]]:
        """Return (state, numbers) in the current form: a missing dampening means None."""
        state, numbers = super()._upgraded(state, numbers)
        return state, {"dampening": None, **numbers}

    def _numbers(self) -> dict[str, Any]:
        return {**super()._numbers(), "dampening": self.dampening}
