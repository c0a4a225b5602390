"""Shapes of values that are reshaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...sizes.dims import Expression
from ...sizes.extents import same

Shape = tuple[Any, ...]


def with_ones(shape: Shape, axes: Sequence[int]) -> list[Any]:
    """A shape with new axes of extent 1 at `axes` of the result."""
    rest = iter(shape)
    return [1 if a in axes else next(rest) for a in range(len(shape) + len(axes))]


def unit_axis(before: Sequence[Any], after: Sequence[Any]) -> int | None:
    """The axis of extent 1 that alone is new in `after`, before another one, or that is gone from
    it; None if they differ in another way."""
    longer, shorter = (after, before) if len(after) > len(before) else (before, after)
    if len(longer) != len(shorter) + 1:
        return None
    for axis in range(len(before)):
        rest = (*longer[:axis], *longer[axis + 1 :])
        if same(longer[axis], 1) and same(rest, tuple(shorter)):
            return axis
    return None


def reshape_target(old: Shape | None, new: Shape) -> tuple[list[Any], bool]:
    """What Reshape is given, with 0 for an extent that stays and -1 for one that follows, so that
    few sizes need be computed; and whether a 0 means no elements."""
    if any(same(n, 0) for n in new):
        return list(new), True
    target = list(new)
    for i, n in enumerate(new):
        if isinstance(n, Expression) and old is not None and i < len(old) and same(old[i], n):
            target[i] = 0
    left = [i for i, n in enumerate(target) if isinstance(n, Expression)]
    if len(left) == 1:
        target[left[0]] = -1
    return target, False
