"""Decompositions of PyTorch's operators that choose or find elements by their order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _extreme(name: str) -> Callable[..., Any]:
    """The largest, or smallest, element along an axis and its index; `argmax` takes no bool."""

    def of(x: Any, dim: int, keepdim: bool = False) -> Any:
        ordered = x.to(_uint8()) if "bool" in str(x.dtype) else x
        places = getattr(ordered, f"arg{name}")(dim, keepdim)
        return getattr(x, f"a{name}")(dim, keepdim), places

    return of


def _long() -> Any:
    import torch

    return torch.int64


def _uint8() -> Any:
    import torch

    return torch.uint8


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.ndim == 0:
        return x.clone(), x.new_zeros((), dtype=_long())
    parts = (each.narrow(dim, k - 1, 1) for each in x.sort(dim))
    return tuple(each if keepdim else each.squeeze(dim) for each in parts)


def median(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower median and its index; NaN if there is one."""
    if x.ndim == 0:
        return x.clone(), x.new_zeros((), dtype=_long())
    middle = (x.shape[dim] - 1) // 2
    value, place = (each.narrow(dim, middle, 1) for each in x.sort(dim))
    if x.is_floating_point():
        unknown = x != x
        some = unknown.any(dim, keepdim=True)
        value = value.masked_fill(some, math.nan)
        place = unknown.int().argmax(dim, keepdim=True).where(some, place)
    return tuple(each if keepdim else each.squeeze(dim) for each in (value, place))


def nanmedian(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower median of what is not NaN and its index; NaN if nothing is."""
    if x.ndim == 0 or not x.is_floating_point():
        return median(x, dim, keepdim)
    values, places = x.sort(dim)  # NaN last
    middle = ((x == x).sum(dim, keepdim=True) - 1).clamp(min=0) // 2
    return tuple(
        each if keepdim else each.squeeze(dim)
        for each in (values.gather(dim, middle), places.gather(dim, middle))
    )


def searchsorted_of_a_number(ordered: Any, x: float, **options: Any) -> Any:
    import torch

    return torch.searchsorted(ordered, torch.full((), x, dtype=ordered.dtype), **options)


# By PyTorch's name of the operator.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "max.dim": _extreme("max"),
    "min.dim": _extreme("min"),
    "kthvalue.default": kthvalue,
    "median.dim": median,
    "median.default": lambda x: median(x.reshape(-1), 0)[0],
    "nanmedian.dim": nanmedian,
    "nanmedian.default": lambda x: nanmedian(x.reshape(-1), 0)[0],
    "searchsorted.Scalar": searchsorted_of_a_number,
}
