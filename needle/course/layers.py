"""Restore the course's behaviour of layers, where needle usually follows PyTorch instead."""

from __future__ import annotations

from math import prod
from typing import Any

from .. import init
from ..autograd.tensor import Tensor
from ..methods.augmented import METHODS, OPERATORS
from ..nn import Conv, Linear, module
from ..nn.functional import norm
from .patches import Patches


def _check_nothing(*assignment: Any) -> None:
    """Allow any value for any attribute."""


def _linear_weight(self: Linear, where: dict[str, Any]) -> Tensor:
    return init.kaiming_uniform(self.in_features, self.out_features, **where)


def _linear_bias(self: Linear, where: dict[str, Any]) -> Tensor:
    values = init.kaiming_uniform(self.out_features, 1, **where)
    return values.reshape(1, self.out_features).detach()


def _conv_weight(self: Conv, window: tuple[int, ...], where: dict[str, Any]) -> Tensor:
    outputs = self.out_channels
    fans = prod(window), outputs * prod(window[:2])
    return init.kaiming_uniform(*fans, shape=(*window, outputs), **where)


def _biased_variance(name: str, variance: Tensor, count: int) -> Tensor:
    return variance


def install(patches: Patches) -> None:
    """Restore the course's behaviour."""
    patches.set(Linear, "_drawn_weight", _linear_weight)
    patches.set(Linear, "_drawn_bias", _linear_bias)
    patches.set(Conv, "_drawn_weight", _conv_weight)
    patches.set(norm, "unbiased_variance", _biased_variance)
    patches.set(module, "check_assigned", _check_nothing)
    for name, compute in zip(METHODS, OPERATORS.values(), strict=True):
        patches.set(Tensor, name, lambda self, other, compute=compute: compute(self, other))
