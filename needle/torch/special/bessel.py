"""Bessel functions and the Airy function."""

from __future__ import annotations

import math

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from . import tables
from .piecewise import either, polynomial, ratio, size

_EULER = 0.57721566490153286061


def _i_series(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the power series (9.6.10) in x * x / 4, and the asymptotic series (9.7.1) in 1 / x."""
    near, far = [1.0], [1.0]
    for i in range(1, 46):
        near.append(near[-1] / (i * (i + order)))
    for i in range(1, 16):
        far.append(-far[-1] * (4 * order**2 - (2 * i - 1) ** 2) / (8 * i))
    return tuple(near[::-1]), tuple(far[::-1])


_I_SERIES = _i_series(0), _i_series(1)


def _i_near(order: int, x: Tensor) -> Tensor:
    series = polynomial(x * x * 0.25, _I_SERIES[order][0])
    return series * x * 0.5 if order else series


def scaled_i(order: int, x: Tensor) -> Tensor:
    """Return the modified Bessel function of the first kind, with `order` 0 or 1, at `x`, times
    exp(-|`x`|)."""

    def far(x: Tensor) -> Tensor:
        return polynomial(1.0 / x, _I_SERIES[order][1]) / ops.sqrt(x * (2 * math.pi))

    positive = size(x) if order else ops.abs(x)  # the slopes at 0 are 1 and 0
    found = either(
        positive < 20, positive, lambda x: _i_near(order, x) * ops.exp(-x), far, 1.0, 30.0
    )
    return ops.where(x < 0, -found, found) if order else found


def _k_series(order: int) -> tuple[float, ...]:
    """Return the power series (9.6.11, 9.6.13) in x * x / 4, without its logarithmic terms."""
    terms = []
    for i in range(14):
        harmonic = sum(1 / j for j in range(1, i + 1))
        if order == 0:
            terms.append(harmonic / math.factorial(i) ** 2)
        else:
            psi = 2 * harmonic + 1 / (i + 1) - 2 * _EULER
            terms.append(psi / (math.factorial(i) * math.factorial(i + 1)))
    return tuple(terms[::-1])


_K_SERIES = _k_series(0), _k_series(1)
_STEPS = np.arange(0, 26) * 0.4


def scaled_k(order: int, x: Tensor) -> Tensor:
    """Return the modified Bessel function of the second kind, with `order` 0 or 1, at `x`, times
    exp(`x`). Above 2, the trapezoidal rule integrates exp(x - x cosh(t)) cosh(order t) (9.6.24)."""

    def near(x: Tensor) -> Tensor:
        series = polynomial(x * x * 0.25, _K_SERIES[order])
        if order == 0:
            result = series - (ops.log(x * 0.5) + _EULER) * _i_near(0, x)
        else:
            result = 1.0 / x + ops.log(x * 0.5) * _i_near(1, x) - x * 0.25 * series
        return result * ops.exp(x)

    def far(x: Tensor) -> Tensor:
        root = ops.sqrt(x)
        steps = Tensor(_STEPS, requires_grad=False)
        weights = Tensor(np.where(_STEPS == 0, 0.2, 0.4), requires_grad=False)
        t = steps / ops.reshape(root, (*root.shape, 1))
        half = ops.sinh(t * 0.5)
        terms = ops.exp(half * half * ops.reshape(x * -2.0, (*x.shape, 1))) * weights
        if order:
            terms = terms * ops.cosh(t)
        return ops.sum(terms, axes=-1) / root

    inside = ops.logical_and(x > 0, x < math.inf)
    result = either(x <= 2, ops.where(inside, x, 1.0), near, far, 1.0, 3.0)
    ends = ops.where(x == 0, math.inf, ops.where(x == math.inf, 0.0, math.nan))
    return ops.where(inside, result, ends)


_J = (
    (tables.J0_P, tables.J0_Q, 5.78318596294678452118, 30.4712623436620863991),
    (tables.J1_P, tables.J1_Q, 14.6819706421238932572, 49.2184563216946036703),
)
_Y = (tables.Y0_P, tables.Y0_Q), (tables.Y1_P, tables.Y1_Q)
_FAR = (
    (tables.PP0, tables.PQ0, tables.QP0, tables.QQ0),
    (tables.PP1, tables.PQ1, tables.QP1, tables.QQ1),
)


def _j_near(order: int, x: Tensor) -> Tensor:
    above, below, first, second = _J[order]
    square = x * x
    found = (square - first) * (square - second) * ratio(square, above, below)
    return found * x if order else found


def _wave(order: int, x: Tensor, quarter: bool) -> Tensor:
    """Return J or, with `quarter`, Y for large x: a cosine or, a quarter period later, a sine, with
    slowly varying factors."""
    p_above, p_below, q_above, q_below = _FAR[order]
    near_zero = 5.0 / x
    square = near_zero * near_zero
    angle = x - (math.pi / 4 + order * math.pi / 2)
    p = ratio(square, p_above, p_below)
    q = near_zero * ratio(square, q_above, q_below)
    cosine, sine = ops.cos(angle), ops.sin(angle)
    found = p * sine + q * cosine if quarter else p * cosine - q * sine
    return found * math.sqrt(2 / math.pi) / ops.sqrt(x)


def bessel_j(order: int, x: Tensor) -> Tensor:
    """Return the Bessel function of the first kind, with `order` 0 or 1, at `x`."""
    positive = size(x) if order else ops.abs(x)
    found = either(
        positive <= 5,
        positive,
        lambda x: _j_near(order, x),
        lambda x: _wave(order, x, False),
        1.0,
        6.0,
    )
    return ops.where(x < 0, -found, found) if order else found


def bessel_y(order: int, x: Tensor) -> Tensor:
    """Return the Bessel function of the second kind, with `order` 0 or 1, at `x`; NaN below 0."""

    def near(x: Tensor) -> Tensor:
        result = ratio(x * x, *_Y[order])
        logarithm = ops.log(x) * _j_near(order, x)
        if order:
            return result * x + (logarithm - 1.0 / x) * (2 / math.pi)
        return result + logarithm * (2 / math.pi)

    result = either(
        x <= 5, ops.where(x > 0, x, 1.0), near, lambda x: _wave(order, x, True), 1.0, 6.0
    )
    ends = ops.where(x == 0, -math.inf, math.nan)
    return ops.where(x > 0, result, ends)


def _airy_series() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the two power series (10.4.3) in x ** 3."""
    f, g = [1.0], [1.0]
    for i in range(1, 24):
        f.append(f[-1] / ((3 * i) * (3 * i - 1)))
        g.append(g[-1] / ((3 * i) * (3 * i + 1)))
    return tuple(f[::-1]), tuple(g[::-1])


_AIRY_F, _AIRY_G = _airy_series()


def airy(x: Tensor) -> Tensor:
    """Return the Airy function of `x`; NaN at the infinities, as in PyTorch."""

    def exponential(x: Tensor) -> Tensor:
        root = ops.sqrt(x)
        zeta = x * root * (2 / 3)
        result = ratio(1.0 / zeta, tables.AN, tables.AD)
        return result * 0.5 / math.sqrt(math.pi) / (ops.sqrt(root) * ops.exp(zeta))

    def wave(x: Tensor) -> Tensor:
        zeta = -x * ops.sqrt(-x) * (2 / 3)
        z = 1.0 / zeta
        square = z * z
        cosine = z * ratio(square, tables.AGN, tables.AGD)
        sine = square * ratio(square, tables.AFN, tables.AFD) + 1.0
        angle = zeta + math.pi / 4
        result = ops.sin(angle) * sine - ops.cos(angle) * cosine
        return result / math.sqrt(math.pi) / ops.sqrt(ops.sqrt(-x))

    def series(x: Tensor) -> Tensor:
        cube = x * x * x
        f, g = polynomial(cube, _AIRY_F), x * polynomial(cube, _AIRY_G)
        return f * 0.355028053887817239260 - g * 0.258819403792806798405

    bounded = ops.clip(x, -1e200, 104.0)
    result = either(
        ops.abs(x) < 2.09,
        bounded,
        series,
        lambda x: either(x > 0, x, exponential, wave, 3.0, -3.0),
        0.0,
        3.0,
    )
    return ops.where(ops.isfinite(x), ops.where(x > 103.892, 0.0, result), math.nan)


def spherical_j0(x: Tensor) -> Tensor:
    """Return sin(`x`) / `x`."""
    series = [(-1.0) ** i / math.factorial(2 * i + 1) for i in range(7)]
    found = either(
        ops.abs(x) < 0.5,
        x,
        lambda x: polynomial(x * x, series[::-1]),
        lambda x: ops.sin(x) / x,
        0.0,
        1.0,
    )
    return ops.where(ops.isinf(x), 0.0, found)
