"""Families of orthogonal polynomials, by degree."""

from __future__ import annotations

from ... import ops
from ...autograd.tensor import Tensor
from .piecewise import either

# The polynomials of degree 1, a + b x, by the family's letters.
_FIRST = {
    "t": (0.0, 1.0),
    "u": (0.0, 2.0),
    "v": (-1.0, 2.0),
    "w": (1.0, 2.0),
    "h": (0.0, 2.0),
    "he": (0.0, 1.0),
    "l": (1.0, -1.0),
    "p": (0.0, 1.0),
}


def of_degree(kind: str, x: Tensor, degree: int) -> Tensor:
    """Return the polynomial in `x` with this `degree` from the family `kind`, by the three-term
    recurrence (22.7). It is 0 below degree 0."""
    before, current = x * 0.0 + 1.0, x * _FIRST[kind][1] + _FIRST[kind][0]
    if degree < 1:
        return before if degree == 0 else x * 0.0
    for k in range(1, degree):
        if kind == "l":
            product = ((2.0 * k + 1.0 - x) * current - before * float(k)) / (k + 1.0)
        elif kind == "p":
            product = (x * current * (2.0 * k + 1.0) - before * float(k)) / (k + 1.0)
        else:
            factor = {"h": 2.0 * k, "he": float(k)}.get(kind, 1.0)
            product = x * current * (1.0 if kind == "he" else 2.0) - before * factor
        before, current = current, product
    return current


def chebyshev(kind: str, x: Tensor, degree: Tensor) -> Tensor:
    """Return the Chebyshev polynomial `kind` in `x`, where `degree` is a tensor of integers, by
    cosines (22.3.15) within [-1, 1] and hyperbolic cosines beyond."""
    if kind == "w":
        result = chebyshev("v", -x, degree)
        return ops.where(_is_odd(degree), -result, result)
    n = ops.trunc(degree)

    def within(x: Tensor) -> Tensor:
        angle = ops.acos(x)
        if kind == "t":
            return ops.cos(n * angle)
        if kind == "u":
            return ops.sin((n + 1.0) * angle) / ops.sin(angle)
        return ops.cos((n + 0.5) * angle) / ops.cos(angle * 0.5)

    def beyond(x: Tensor) -> Tensor:
        angle = ops.acosh(ops.abs(x))
        odd = ops.logical_and(x < 0, _is_odd(n))
        if kind == "t":
            result = ops.cosh(n * angle)
        elif kind == "u":
            result = ops.sinh((n + 1.0) * angle) / ops.sinh(angle)
        else:
            above = ops.cosh((n + 0.5) * angle) / ops.cosh(angle * 0.5)
            below = ops.sinh((n + 0.5) * angle) / ops.sinh(angle * 0.5)
            result = ops.where(x < 0, below, above)
        return ops.where(odd, -result, result)

    at_one = {"t": n * 0.0 + 1.0, "u": n + 1.0, "v": n * 0.0 + 1.0}[kind]
    at_minus_one = n * 2.0 + 1.0 if kind == "v" else at_one
    at_minus_one = ops.where(_is_odd(n), -at_minus_one, at_minus_one)
    result = either(ops.abs(x) < 1, x, within, beyond, 0.25, 2.0)
    result = ops.where(x == 1, at_one, ops.where(x == -1, at_minus_one, result))
    return ops.where(n < 0, 0.0, ops.where(n == 0, 1.0, ops.where(n == 1, _first(kind, x), result)))


def _first(kind: str, x: Tensor) -> Tensor:
    return x * _FIRST[kind][1] + _FIRST[kind][0]


def _is_odd(n: Tensor) -> Tensor:
    half = n * 0.5
    return ops.floor(half) != half
