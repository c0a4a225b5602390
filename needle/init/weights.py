"""Initial weights that keep the scale of activations from layer to layer.

Xavier: Glorot and Bengio 2010. Kaiming: He et al. 2015.
"""

from __future__ import annotations

import math
from typing import Any

from ..autograd.shapes import as_shape
from ..autograd.tensor import Tensor
from ..backend_ndarray.arguments import counts, finite, not_negative
from .basic import rand, randn


def xavier_uniform(
    fan_in: int, fan_out: int, gain: float = 1.0, shape: Any = None, **options: Any
) -> Tensor:
    """Return numbers drawn uniformly between -b and b = gain * sqrt(6 / (fan_in + fan_out)). The
    default shape is (fan_in, fan_out)."""
    counts("xavier_uniform", fan_in=fan_in, fan_out=fan_out)
    bound = finite("xavier_uniform", "gain", gain) * math.sqrt(6 / (fan_in + fan_out))
    shape = _shape("xavier_uniform", fan_in, fan_out, shape)
    return rand(*shape, low=-bound, high=bound, **options)


def xavier_normal(
    fan_in: int, fan_out: int, gain: float = 1.0, shape: Any = None, **options: Any
) -> Tensor:
    """Return normally distributed numbers with std = gain * sqrt(2 / (fan_in + fan_out)). The
    default shape is (fan_in, fan_out)."""
    counts("xavier_normal", fan_in=fan_in, fan_out=fan_out)
    std = not_negative("xavier_normal", "gain", gain) * math.sqrt(2 / (fan_in + fan_out))
    shape = _shape("xavier_normal", fan_in, fan_out, shape)
    return randn(*shape, std=std, **options)


def kaiming_uniform(
    fan_in: int, fan_out: int, shape: Any = None, nonlinearity: str = "relu", **options: Any
) -> Tensor:
    """Return numbers drawn uniformly between -b and b = sqrt(2) * sqrt(3 / fan_in). The default
    shape is (fan_in, fan_out).

    Raises ValueError for a nonlinearity other than "relu".
    """
    counts("kaiming_uniform", fan_in=fan_in, fan_out=fan_out)
    bound = _gain("kaiming_uniform", nonlinearity) * math.sqrt(3 / fan_in)
    shape = _shape("kaiming_uniform", fan_in, fan_out, shape)
    return rand(*shape, low=-bound, high=bound, **options)


def kaiming_normal(
    fan_in: int, fan_out: int, shape: Any = None, nonlinearity: str = "relu", **options: Any
) -> Tensor:
    """Return normally distributed numbers with std = sqrt(2 / fan_in). The default shape is
    (fan_in, fan_out).

    Raises ValueError for a nonlinearity other than "relu".
    """
    counts("kaiming_normal", fan_in=fan_in, fan_out=fan_out)
    std = _gain("kaiming_normal", nonlinearity) / math.sqrt(fan_in)
    shape = _shape("kaiming_normal", fan_in, fan_out, shape)
    return randn(*shape, std=std, **options)


def _gain(name: str, nonlinearity: str) -> float:
    if nonlinearity != "relu":
        raise ValueError(f"{name}: nonlinearity {nonlinearity!r} is not supported, only 'relu'")
    return math.sqrt(2.0)


def _shape(name: str, fan_in: int, fan_out: int, shape: Any) -> tuple[int, ...]:
    return (fan_in, fan_out) if shape is None else as_shape(name, shape)
