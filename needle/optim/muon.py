"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any, ClassVar, NamedTuple

from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import count, finite, flag, fraction, not_negative
from .optimizer import Check, Optimizer, wide, write

_RATES = ("original", "match_rms_adamw")


class Muon(Optimizer):
    """Momentum with orthogonalized steps, for hidden layers' weights, which are matrices (in, out):
    u = momentum * u + (1 - momentum) * grad; p -= lr * weight_decay * p; p -= lr' * orthogonal(u),
    or with `nesterov` p -= lr' * orthogonal((1 - momentum) * grad + momentum * u).

    orthogonal(u) has the singular vectors of u and singular values near 1. ns_steps Newton-Schulz
    steps of degree 5 with ns_coefficients compute it in float32 (PyTorch: in bfloat16), starting
    from u divided by its norm, which counts as at least `eps`. lr' is lr * sqrt(max(1, out / in)),
    or with adjust_lr_fn "match_rms_adamw", 0.2 * lr * sqrt(max(in, out)). Raises ValueError for a
    parameter that is not a matrix: use AdamW for it.
    """

    checks: ClassVar[dict[str, Check]] = {
        "weight_decay": not_negative,
        "momentum": fraction,
        "nesterov": flag,
        "eps": not_negative,
        "ns_steps": count,
    }

    _states = ("u",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        if not isinstance(ns_coefficients, (tuple, list)) or len(ns_coefficients) != 3:
            raise TypeError(f"Muon: ns_coefficients {ns_coefficients!r} are not three numbers")
        for value in ns_coefficients:
            finite("Muon", "ns_coefficients", value)
        if adjust_lr_fn not in (None, *_RATES):
            raise ValueError(
                f"Muon: adjust_lr_fn {adjust_lr_fn!r} is not None, {_RATES[0]!r} or {_RATES[1]!r}"
            )
        self.ns_coefficients = tuple(ns_coefficients)
        self.adjust_lr_fn = adjust_lr_fn
        super().__init__(
            params,
            lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            eps=eps,
            ns_steps=ns_steps,
        )

    def add_param_group(self, group: Any) -> None:
        """Add a group, as every Optimizer does. Raises ValueError for a parameter that is not a
        matrix."""
        super().add_param_group(group)
        for i, param in enumerate(self.params):
            if param.ndim != 2:
                raise ValueError(f"Muon: parameter {i} has shape {param.shape}, not (in, out)")

    def _rule(self, options: Any) -> Any:
        o = options
        how = self.ns_coefficients, o.eps, o.ns_steps, self.adjust_lr_fn
        return _Step(o.weight_decay, o.momentum, o.nesterov, *how)


class _Step(NamedTuple):
    """The step of one parameter, with the interface of `ops.Update`."""

    weight_decay: float
    momentum: float
    nesterov: bool
    ns_coefficients: tuple[float, ...]
    eps: float
    ns_steps: int
    adjust_lr_fn: str | None

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state's arrays."""
        return ("u",)

    def update(
        self, param: NDArray, grad: NDArray, state: Mapping[str, NDArray], lr: float, step: int
    ) -> None:
        """Take the step in place."""
        p, g, u = wide(param), wide(grad), state["u"]
        write(u, u * self.momentum + g * (1 - self.momentum))
        u = g * (1 - self.momentum) + u * self.momentum if self.nesterov else u
        inputs, outputs = param.shape
        if self.adjust_lr_fn == "match_rms_adamw":
            rate = lr * 0.2 * sqrt(max(inputs, outputs))
        else:
            rate = lr * sqrt(max(1, outputs / inputs))
        change = orthogonal(u, self.ns_coefficients, self.ns_steps, self.eps)
        write(param, p * (1 - lr * self.weight_decay) - change * rate)


def orthogonal(x: NDArray, coefficients: Any, steps: int, eps: float) -> NDArray:
    """Return an approximation of the orthogonal matrix nearest to x: divide x by its norm, so that
    all singular values are at most 1, then repeat x = a x + (b x x^T + c (x x^T)^2) x."""
    a, b, c = coefficients
    is_tall = x.shape[0] > x.shape[1]
    x = x.permute((1, 0)) if is_tall else x
    size = sqrt(float((x * x).sum()))
    x = x / (eps if size < eps else size)  # a NaN size stays NaN
    for _ in range(steps):
        gram = x @ x.permute((1, 0))
        x = x * a + (gram * b + (gram @ gram) * c) @ x
    return x.permute((1, 0)) if is_tall else x
