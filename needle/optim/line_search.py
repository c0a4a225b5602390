"""A line search for the strong Wolfe conditions (Nocedal and Wright, Numerical Optimization,
algorithms 3.5 and 3.6)."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

_DECREASE, _CURVATURE = 1e-4, 0.9  # the usual constants of quasi-Newton methods
_MOST = 25  # the largest number of evaluations

Vector = np.ndarray[Any, Any]


class Point(NamedTuple):
    """A step length, and the loss, gradient and slope along the direction at this length."""

    length: float
    loss: float
    gradient: Vector
    slope: float
    evaluations: int = 0


def strong_wolfe(
    measure: Callable[[float], tuple[float, Vector]],
    length: float,
    loss: float,
    gradient: Vector,
    direction: Vector,
) -> Point:
    """Return a point whose loss is sufficiently lower and whose slope is less steep, or the best
    point found if no length gives both. `measure` returns (loss, gradient) for a length, `length`
    is the first length to try, and loss and gradient belong to length 0."""
    start = Point(0.0, loss, gradient, float(gradient @ direction))
    evaluations = 0

    def at(t: float) -> Point:
        nonlocal evaluations
        evaluations += 1
        value, slopes = measure(t)
        return Point(t, value, slopes, float(slopes @ direction))

    def is_high(point: Point) -> bool:
        return not point.loss <= start.loss + _DECREASE * point.length * start.slope

    def is_flat(point: Point) -> bool:
        return abs(point.slope) <= -_CURVATURE * start.slope

    before, point = start, at(length)
    low, high = start, start
    while True:
        if is_high(point) or (before is not start and point.loss >= before.loss):
            low, high = before, point
            break
        if is_flat(point):
            return point._replace(evaluations=evaluations)
        if point.slope >= 0:
            low, high = point, before
            break
        if evaluations >= _MOST:
            return point._replace(evaluations=evaluations)
        step = point.length - before.length
        longer = _cubic(before, point, point.length + 0.01 * step, point.length * 10)
        before, point = point, at(longer)
    size = float(np.abs(direction).max(initial=0.0))
    while evaluations < _MOST and abs(high.length - low.length) * size > 1e-9:
        near, far = sorted((low.length, high.length))
        margin = 0.1 * (far - near)
        point = at(_cubic(low, high, near + margin, far - margin))
        if is_high(point) or point.loss >= low.loss:
            high = point
            continue
        if is_flat(point):
            low = point
            break
        if point.slope * (high.length - low.length) >= 0:
            high = low
        low = point
    return low._replace(evaluations=evaluations)


def _cubic(a: Point, b: Point, least: float, most: float) -> float:
    """Return the length that minimizes the cubic fitted to the losses and slopes of two points,
    limited to [least, most] (equation 3.59); if the cubic has no minimum, return the midpoint."""
    a, b = (a, b) if a.length <= b.length else (b, a)
    with np.errstate(all="ignore"):
        width = b.length - a.length
        d1 = a.slope + b.slope - 3 * (b.loss - a.loss) / width if width else float("nan")
        square = d1 * d1 - a.slope * b.slope
        if not square >= 0:
            return (least + most) / 2
        d2 = sqrt(square)
        divisor = b.slope - a.slope + 2 * d2
        if not divisor:
            return (least + most) / 2
        found = b.length - width * (b.slope + d2 - d1) / divisor
    return min(max(found, least), most) if found == found else (least + most) / 2
