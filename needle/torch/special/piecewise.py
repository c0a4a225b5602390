"""Polynomials, and functions that are defined in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import ops
from ...autograd.tensor import Tensor


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The polynomial in x with these coefficients, that of the highest power first."""
    made = x * float(coefficients[0]) + float(coefficients[1])
    for each in coefficients[2:]:
        made = made * x + float(each)
    return made


def ratio(x: Tensor, above: Sequence[float], below: Sequence[float]) -> Tensor:
    """The quotient of two polynomials."""
    return polynomial(x, above) / polynomial(x, below)


def either(
    condition: Tensor,
    x: Tensor,
    yes: Callable[[Tensor], Tensor],
    no: Callable[[Tensor], Tensor],
    inside: float,
    outside: float,
) -> Tensor:
    """yes(x) where the condition holds, else no(x). Each is computed at a harmless number, `inside`
    or `outside`, where the other one counts, so that no gradient becomes NaN there."""
    return ops.where(
        condition,
        yes(ops.where(condition, x, inside)),
        no(ops.where(condition, outside, x)),
    )


def size(x: Tensor) -> Tensor:
    """|x| with the gradient 1 at 0."""
    return ops.where(x < 0, -x, x)
