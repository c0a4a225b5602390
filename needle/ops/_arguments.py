"""Checks of arguments for functions composed of several ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd.dtypes import value_in
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import NDArray, full
from ..errors import ShapeError
from ..sizes.extents import same
from .elementwise import cast
from .shape import broadcast_to


def check_tensors(name: str, **inputs: Any) -> None:
    """Raise TypeError unless all inputs are Tensors."""
    for what, x in inputs.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {what} is a {type(x).__name__}, not a Tensor")


def as_source(name: str, a: Tensor, source: Any, shape: Sequence[int]) -> Tensor:
    """Return `source`, a Tensor or a number to put into `a`, in a's dtype and broadcast to `shape`.
    Raises ShapeError if it does not broadcast, TypeError for any other type."""
    if isinstance(source, (bool, int, float, np.generic)):
        value = source.item() if isinstance(source, np.generic) else source
        source = make_const(full((), value_in(name, value, a.dtype), a.dtype, a.device))
    elif isinstance(source, (np.ndarray, NDArray)):
        source = make_const(source, a.device)
    elif not isinstance(source, Tensor):
        raise TypeError(f"{name}: the source is a {type(source).__name__}, not a Tensor or number")
    if source.dtype != a.dtype:
        source = cast(source, a.dtype)
    if same(source.shape, tuple(shape)):
        return source
    try:
        return broadcast_to(source, tuple(shape))
    except ShapeError:
        raise ShapeError(
            f"{name}: a source of shape {source.shape} does not broadcast to {tuple(shape)}"
        ) from None
