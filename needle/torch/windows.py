"""What converters of windows share: numbers for each axis, and batches of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .. import ops
from ..tensor import Tensor

Made = TypeVar("Made", Tensor, tuple[Tensor, ...])


def each_axis(given: Any, count: int) -> tuple[Any, ...]:
    """An argument with a number for each axis: one number is that of all."""
    found = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return found * count if len(found) == 1 else found


def batched(x: Tensor, count: int, function: Callable[[Tensor], Made]) -> Made:
    """`function` of x (N, C, and `count` axes), which may come without the first of them."""
    if x.ndim != count + 1:
        return function(x)
    made = function(ops.unsqueeze(x, 0))
    if isinstance(made, tuple):
        return tuple(ops.squeeze(each, 0) for each in made)
    return ops.squeeze(made, 0)
