"""Optimizers with the course's arguments and defaults: SGD's momentum is a moving average of
gradients; Adam's learning rate is 0.01, and its betas are two arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import optim
from .patches import Patches

_needle_sgd: Any = optim.SGD.__init__
_needle_adam: Any = optim.Adam.__init__


def _sgd(
    self: optim.SGD,
    params: Iterable[Any],
    lr: float = 0.01,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    *,
    dampening: float | None = None,
    **options: Any,
) -> None:
    decay = {"weight_decay": weight_decay, "dampening": dampening}
    _needle_sgd(self, params, lr, momentum, **decay, **options)


def _adam(
    self: optim.Adam,
    params: Iterable[Any],
    lr: float = 0.01,
    beta1: float | None = None,
    beta2: float | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
    **options: Any,
) -> None:
    options |= {"beta1": beta1, "beta2": beta2, "bias_correction": bias_correction}
    _needle_adam(self, params, lr, eps=eps, weight_decay=weight_decay, **options)


def install(patches: Patches) -> None:
    """Set the course's constructors."""
    patches.set(optim.SGD, "__init__", _sgd)
    patches.set(optim.Adam, "__init__", _adam)
