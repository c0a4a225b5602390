"""Checks of the values of tensors: class numbers, probabilities, lengths. A trace has no values, so
only dtypes are checked while tracing."""

from __future__ import annotations

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import INTEGER, is_floating
from ..common.state import state
from .elementwise import cast


def whole_numbers(owner: str, what: str, x: Tensor) -> Tensor:
    """Return `x`, integers or floats with whole values, as integers. Raises TypeError for bool,
    ValueError for a fraction or NaN."""
    if x.dtype in INTEGER:
        return x
    if not is_floating(x.dtype):
        raise TypeError(f"{owner}: {what} is {x.dtype}; it must hold whole numbers")
    if state.trace is None:
        values = x.numpy()
        wrong = values[values != np.trunc(values)]
        if wrong.size:
            raise ValueError(f"{owner}: {what} holds {wrong[0]:g}, which is not a whole number")
    return cast(x, "int64")


def check_integers(owner: str, what: str, x: Tensor) -> None:
    """Raise TypeError for a tensor that does not hold integers."""
    if x.dtype not in INTEGER:
        raise TypeError(f"{owner}: {what} is {x.dtype}; it must hold integers")


def check_within(
    owner: str, what: str, x: Tensor, least: float, most: float, error: type[Exception] = ValueError
) -> None:
    """Raise `error` for an element outside [least, most]; NaN is outside."""
    if state.trace is None and x.size:
        data = x.cached_data
        for value in (data.min().item(), data.max().item()):
            if not least <= value <= most:
                raise error(f"{owner}: {what} holds {value:g}, which is not in [{least}, {most}]")
