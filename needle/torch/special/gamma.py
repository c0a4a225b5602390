"""The logarithm of the gamma function, its derivatives, the Hurwitz zeta function, and the
incomplete gamma functions."""

from __future__ import annotations

import math

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from .piecewise import either, polynomial

_SHIFT = 10  # the least argument at which asymptotic series have full precision
# B(2 i) / (2 i) (2 i - 1) and B(2 i) / (2 i) for the Bernoulli numbers B, the highest first.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_STIRLING = tuple(b / (2 * i * (2 * i - 1)) for i, b in enumerate(_BERNOULLI, 1))[::-1]
_DIGAMMA = tuple(b / (2 * i) for i, b in enumerate(_BERNOULLI, 1))[::-1]


def _lgamma_of_positive(x: Tensor) -> Tensor:
    """Compute lgamma by Stirling's series (6.1.41), at x + 10 if x is small."""
    small = x < _SHIFT
    near = ops.where(small, x, 1.0)
    steps = near
    for i in range(1, _SHIFT):
        steps = steps * (near + float(i))
    far = ops.where(small, x + float(_SHIFT), x)
    series = polynomial(1.0 / (far * far), _STIRLING) / far
    found = (far - 0.5) * (ops.log(far) - 1.0) + (math.log(2 * math.pi) / 2 - 0.5) + series
    return found - ops.where(small, ops.log(steps), 0.0)


def lgamma(x: Tensor) -> Tensor:
    """Return ln |gamma(`x`)|, which is infinite at 0, the negative integers and the infinities."""

    def turned(x: Tensor) -> Tensor:
        rest = ops.abs(x - ops.round(x))
        return ops.log(math.pi / ops.sin(rest * math.pi)) - _lgamma_of_positive(1.0 - x)

    found = either(
        ops.logical_and(x < 0.5, ops.isfinite(x)), x, turned, _lgamma_of_positive, 0.25, 1.5
    )
    found = ops.where(ops.logical_or(x == 1, x == 2), found - ops.detach(found), found)
    return ops.where(ops.isinf(x), math.inf, found)


def _digamma_of_positive(x: Tensor) -> Tensor:
    small = x < _SHIFT
    near = ops.where(small, x, 1.0)
    steps = 1.0 / near
    for i in range(1, _SHIFT):
        steps = steps + 1.0 / (near + float(i))
    far = ops.where(small, x + float(_SHIFT), x)
    inverse = 1.0 / (far * far)
    found = ops.log(far) - 0.5 / far - inverse * polynomial(inverse, _DIGAMMA)
    return found - ops.where(small, steps, 0.0)


def digamma(x: Tensor) -> Tensor:
    """Return the derivative of `lgamma` at `x` (6.3.6, 6.3.7, 6.3.18). It is infinite at 0, and NaN
    at the negative integers."""

    def turned(x: Tensor) -> Tensor:
        rest = x - ops.trunc(x)
        found = _digamma_of_positive(1.0 - x) - math.pi / ops.tan(rest * math.pi)
        return ops.where(rest == 0, math.nan, found)

    found = either(x < 0, x, turned, _digamma_of_positive, -0.5, 1.0)
    return ops.where(x == 0, -1.0 / x, found)


def _zeta_of_positive(s: Tensor, q: Tensor) -> Tensor:
    """Return the Hurwitz zeta function for s > 1 and q > 0, by the Euler-Maclaurin formula
    (23.1.6)."""
    total = ops.power(q, -s)
    for i in range(1, _SHIFT):
        total = total + ops.power(q + float(i), -s)
    far = q + float(_SHIFT)
    last = ops.power(far, -s)
    tail = last * far / (s - 1.0) + last * 0.5
    factor, inverse = last * s / far, 1.0 / (far * far)
    for i, b in enumerate(_BERNOULLI, 1):
        tail = tail + factor * (b / math.factorial(2 * i))
        factor = factor * ((s + float(2 * i - 1)) * (s + float(2 * i))) * inverse
    return total + ops.where(last == 0, 0.0, tail)


def zeta(s: Tensor, q: Tensor) -> Tensor:
    """Return the Hurwitz zeta function, the sum of (`q` + k) ** -`s`. For negative q, whose powers
    are real only for integer s, the terms below 0 are a difference of two such sums."""
    whole = ops.floor(s) == s
    positive = q > 0
    safe = ops.where(s > 1, s, 2.0)
    below = ops.where(positive, -0.5, q)
    rest = below - ops.round(below)  # the first terms above and below 0
    above = ops.where(rest < 0, rest + 1.0, rest)
    under = ops.where(rest < 0, -rest, 1.0 - rest)
    sign = 1.0 - (safe - ops.floor(safe * 0.5) * 2.0) * 2.0
    negative = _zeta_of_positive(safe, under) - _zeta_of_positive(safe, 1.0 - below)
    negative = sign * negative + _zeta_of_positive(safe, ops.where(rest == 0, 1.0, above))
    negative = ops.where(whole, negative, math.nan)
    negative = ops.where(ops.floor(q) == q, math.inf, negative)
    found = ops.where(positive, _zeta_of_positive(safe, ops.where(positive, q, 1.0)), negative)
    found = ops.where(s > 1, found, ops.where(s == 1, math.inf, math.nan))
    endless = ops.logical_or(q == math.inf, ops.logical_and(s == math.inf, q > 1))
    found = ops.where(endless, math.nan, found)  # as in PyTorch
    return ops.where(ops.isnan(q), math.nan, found)


def polygamma(order: int, x: Tensor) -> Tensor:
    """Return the `order`-th derivative of `digamma` at `x` (6.4.10)."""
    if order == 0:
        return digamma(x)
    found = zeta(ops.where(ops.isnan(x), x, order + 1.0), x)
    return found * float((-1) ** (order + 1) * math.factorial(order))


# Nodes and weights of the integral of f over [0, inf) by the substitution exp(pi / 2 sinh(t))
# (Takahasi and Mori, "Double exponential formulas for numerical integration", 1974).
_TIMES = np.linspace(-4.2, 3.2, 225)
_NODES = np.exp(np.pi / 2 * np.sinh(_TIMES))
_WEIGHTS = _NODES * (np.pi / 2) * np.cosh(_TIMES) * (_TIMES[1] - _TIMES[0])


def incomplete_gamma(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """Return the regularized incomplete gamma function of `a` and `x`, lower or `upper`. It is an
    integral over u, with t = x exp(-u) for small x and t = x exp(u) for x above a."""
    inside = ops.logical_and(ops.logical_and(a > 0, x > 0), ops.isfinite(a + x))
    a_, x_ = ops.where(inside, a, 1.0), ops.where(inside, x, 1.0)
    is_low = x_ <= ops.clip(a_, 1.0)
    rate = ops.abs(a_ - x_) + ops.sqrt(ops.maximum(a_, x_))  # about 1 / the width of the integrand
    steps = Tensor(_NODES, requires_grad=False)
    weights = Tensor(_WEIGHTS, requires_grad=False)

    def spread(t: Tensor) -> Tensor:
        return ops.reshape(t, (*t.shape, 1))

    a_, x_ = ops.add(a_, x_ * 0.0), ops.add(x_, a_ * 0.0)
    sign = spread(ops.where(is_low, -1.0, 1.0))
    u = steps / spread(rate) * sign
    grown = ops.expm1(u)
    terms = ops.exp(spread(a_) * u - spread(x_) * grown) * weights
    integral = ops.sum(terms, axes=-1) / rate
    part = integral * ops.exp(a_ * ops.log(x_) - x_ - lgamma(a_))
    found = ops.where(is_low, 1.0 - part, part) if upper else ops.where(is_low, part, 1.0 - part)
    zero, one = (1.0, 0.0) if upper else (0.0, 1.0)
    ends = ops.where(a == 0, ops.where(x > 0, one, math.nan), math.nan)
    ends = ops.where(ops.logical_and(a > 0, x == 0), zero, ends)
    ends = ops.where(ops.logical_and(ops.isfinite(a), x == math.inf), one, ends)
    ends = ops.where(ops.logical_and(a == math.inf, ops.isfinite(x)), zero, ends)
    ends = ops.where(ops.logical_or(a < 0, x < 0), math.nan, ends)
    return ops.where(inside, found, ends)
