"""Polynomials, and piecewise functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import ops
from ...autograd.tensor import Tensor


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return the polynomial in `x` with these `coefficients`, the highest power first."""
    made = x * float(coefficients[0]) + float(coefficients[1])
    for each in coefficients[2:]:
        made = made * x + float(each)
    return made


def ratio(x: Tensor, above: Sequence[float], below: Sequence[float]) -> Tensor:
    """Return the quotient of two polynomials in `x` with the coefficients `above` and `below`."""
    return polynomial(x, above) / polynomial(x, below)


def either(
    condition: Tensor,
    x: Tensor,
    yes: Callable[[Tensor], Tensor],
    no: Callable[[Tensor], Tensor],
    inside: float,
    outside: float,
) -> Tensor:
    """Return `yes(x)` where the `condition` holds, else `no(x)`. Where a function is not selected,
    it is computed at a harmless number (`yes` at `inside`, `no` at `outside`), so that no gradient
    becomes NaN."""
    return ops.where(
        condition,
        yes(ops.where(condition, x, inside)),
        no(ops.where(condition, outside, x)),
    )


def size(x: Tensor) -> Tensor:
    """Return |`x`|, with the gradient 1 at 0."""
    return ops.where(x < 0, -x, x)
