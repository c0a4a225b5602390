"""Helpers for the shapes of reshaped values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...sizes.dims import Expression
from ...sizes.extents import same

Shape = tuple[Any, ...]


def with_ones(shape: Shape, axes: Sequence[int]) -> list[Any]:
    """Return a `shape` with new axes of extent 1 at `axes` of the result."""
    rest = iter(shape)
    return [1 if a in axes else next(rest) for a in range(len(shape) + len(axes))]


def unit_axis(before: Sequence[Any], after: Sequence[Any]) -> int | None:
    """Return the axis of extent 1 that is the only difference between the shapes: it is new in
    `after`, or removed from `before`. Return None if the shapes differ in another way."""
    longer, shorter = (after, before) if len(after) > len(before) else (before, after)
    if len(longer) != len(shorter) + 1:
        return None
    for axis in range(len(before)):
        rest = (*longer[:axis], *longer[axis + 1 :])
        if same(longer[axis], 1) and same(rest, tuple(shorter)):
            return axis
    return None


def reshape_target(old: Shape | None, new: Shape) -> tuple[list[Any], bool]:
    """Return the target shape of a Reshape from `old` to `new`, and whether a 0 in it is an extent
    of 0. If not, 0 stands for an extent that does not change, and -1 for one that follows from the
    others, so that few sizes must be computed."""
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
