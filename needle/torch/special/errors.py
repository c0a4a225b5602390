"""The complementary error function, and functions of the normal distribution."""

from __future__ import annotations

import math

from ... import ops
from ...autograd.tensor import Tensor
from ...ops.exponential import _FAR, _MIDDLE, _TAIL
from .piecewise import either, polynomial, ratio, size

# ln(erfcx(x) / t) for t = 2 / (2 + x) as a polynomial in 2 t - 1, interpolated at 26 Chebyshev
# nodes with 60 digits; its error is below 1e-15.
_ERFCX = (
    -1.1141466421901909e-09, -1.2776506237493277e-08, 3.675878538183882e-08, 7.746001345360312e-08,
    -3.086559820402206e-07, -4.1484920834124593e-08, 1.3137199073509803e-06,
    -1.4094127307024207e-06, -2.994294118363313e-06, 8.662494482986981e-06, 1.6080205095439494e-07,
    -3.023780825572967e-05, 3.1737328155349395e-05, 7.141808767204543e-05, -0.00017430116360991256,
    -9.373894209180262e-05, 0.0006736785371369921, -0.00014624628859718252, -0.0023458124784660516,
    0.0017589335075480397, 0.00882493855611383, -0.00987268936410846, -0.046895610231160824,
    0.047343306841863754, 0.6726432239776567, -0.6717940840566922,
)  # fmt: skip


def _of_positive(x: Tensor) -> Tensor:
    t = 2.0 / (x + 2.0)
    return t * ops.exp(polynomial(t * 2.0 - 1.0, _ERFCX))


def erfcx(x: Tensor) -> Tensor:
    """Return exp(`x` * `x`) * erfc(`x`)."""
    return either(
        x < 0, x, lambda x: ops.exp(x * x) * 2.0 - _of_positive(-x), _of_positive, -1.0, 1.0
    )


def erfc(x: Tensor) -> Tensor:
    """Return 1 - erf(`x`), with full precision where it is small."""
    bounded = ops.clip(size(x), None, 30.0)  # erfc(30) is 0
    made = _of_positive(bounded) * ops.exp(bounded * -bounded)
    return ops.where(x < 0, 2.0 - made, made)


def log_ndtr(x: Tensor) -> Tensor:
    """Return the logarithm of the normal distribution function of `x`."""
    root = math.sqrt(0.5)
    return either(
        x < -1,
        x,
        lambda x: ops.log(_of_positive(x * -root) * 0.5) - x * x * 0.5,
        lambda x: ops.log1p(erfc(x * root) * -0.5),
        -2.0,
        0.0,
    )


def ndtri(p: Tensor) -> Tensor:
    """Return the inverse of the normal distribution function at `p` (Wichura 1988, as in
    `ops.erfinv`)."""

    def middle(p: Tensor) -> Tensor:
        q = p - 0.5
        return q * ratio(0.180625 - q * q, *(row[::-1] for row in _MIDDLE))

    def tail(p: Tensor) -> Tensor:
        r = ops.sqrt(-ops.log(ops.where(p < 0.5, p, 1.0 - p)))
        found = either(
            r <= 5,
            r,
            lambda r: ratio(r - 1.6, *(row[::-1] for row in _TAIL)),
            lambda r: ratio(r - 5.0, *(row[::-1] for row in _FAR)),
            2.0,
            6.0,
        )
        return ops.where(p < 0.5, -found, found)

    inside = ops.logical_and(p > 0, p < 1)
    found = either(
        ops.abs(p - 0.5) <= 0.425, p, middle, lambda p: tail(ops.where(p < 1, p, 0.9)), 0.5, 0.01
    )
    ends = ops.where(p == 0, -math.inf, ops.where(p == 1, math.inf, math.nan))
    return ops.where(inside, found, ends)
