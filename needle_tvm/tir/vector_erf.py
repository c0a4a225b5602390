"""Computes erf of float32 vectors (see `vector_math`)."""

from __future__ import annotations

from collections.abc import Callable

from needle_tvm.tir.vector_constants import table
from needle_tvm.tir.vector_text import Text, Value

_SCALE = 3.90625  # the number of intervals from x to x + 1
_ONE_FROM = 3.95  # where the table gives 1; in float32, erf is 1 from 3.92 on
# Coefficients of erf(t) / t = c0 + c1 r + .. with t = (n + r) / _SCALE and |r| <= 1/2: one tuple
# per power, the highest first, for n = 0 to 15. Fitted by least squares of the relative errors at
# Chebyshev nodes.
# fmt: off
_BY_INTERVAL = (
    (
        -0.000185428973, -4.01503967e-05, -5.46469855e-05, -3.93424634e-05,
        -1.09306993e-05, 1.12571979e-05, 1.91075123e-05, 1.54585341e-05,
        8.57828945e-06, 2.97404222e-06, 1.15079537e-07, -9.763246e-07,
        -8.85519682e-07, -6.72432634e-07, -5.28304156e-07, 1.37768254e-07,
    ),
    (
        0.00073049817, 0.000378301833, 0.000126506959, -0.000121061261,
        -0.00024756635, -0.000242073584, -0.000161694828, -7.15291026e-05,
        -1.22340271e-05, 1.51953627e-05, 2.13224412e-05, 1.98732378e-05,
        1.4138137e-05, 1.0040465e-05, 7.27589031e-06, 5.52231904e-06,
    ),
    (
        -0.000121447083, 0.00179259968, 0.00282491464, 0.00280888798,
        0.00201946893, 0.000997406547, 0.000177433059, -0.000280563225,
        -0.000434132642, -0.000416030089, -0.000335863035, -0.000252054189,
        -0.00018492293, -0.000136065733, -0.000101543352, -7.72385756e-05,
    ),
    (
        -0.0246234089, -0.0218533799, -0.0146722049, -0.00597154349,
        0.00139914791, 0.00591710815, 0.0075963717, 0.0073513831,
        0.00621961616, 0.00491750007, 0.00378381857, 0.00290443609,
        0.00225409097, 0.00177680084, 0.00142333016, 0.0011572818,
    ),
    (
        -2.35017478e-06, -0.0474057123, -0.0844492689, -0.105082639,
        -0.109255575, -0.101424262, -0.0874998197, -0.0723239481,
        -0.0586775281, -0.0475506857, -0.0388902165, -0.0322439447,
        -0.0271188617, -0.0231125019, -0.019929627, -0.0173610765,
    ),
    (
        1.12837923, 1.10420656, 1.03707373, 0.940849364,
        0.832447469, 0.726354837, 0.631615758, 0.55174768,
        0.486437589, 0.433541387, 0.390510082, 0.355089426,
        0.325516284, 0.300480008, 0.279017746, 0.260416657,
    ),
)
# fmt: on


def erf(v: Text, x: Value, exp: Callable[[Text, Value], Value]) -> Value:
    """Return erf of `x`. If one instruction can look up 16 numbers, use a table of polynomials, as
    in oneDNN's gelu (error up to 1.4 ulp); else use two polynomials (up to 1 ulp)."""
    return _by_table(v, x) if v.has_wide_parts else _by_exp(v, x, exp)


def _by_table(v: Text, x: Value) -> Value:
    """Return x times the polynomial for its interval. Magnitudes are clipped to `_ONE_FROM`, where
    erf is 1."""
    t, most, scale = v.magnitude(x), v.constant(_ONE_FROM), v.constant(_SCALE)
    shift = v.named("Round")
    t = v.select(t > most, most, t)  # NaN passes
    shifted = v.fma(t, scale, shift)
    r = v.fma(t, scale, shift - shifted)
    place = v.bits(shifted)
    p, *others, constant = (v.looked_up(row, place) for row in _BY_INTERVAL)
    for coefficient in others:
        p = v.fma(p, r, coefficient)
    # The large part of the sum is rounded only once.
    return v.with_sign_of(x, v.fma(constant, t, p * (r * t)))


def _by_exp(v: Text, x: Value, exp: Callable[[Text, Value], Value]) -> Value:
    """Return erf(x): a polynomial near 0, elsewhere 1 - e^(polynomial)."""
    t, s = v.magnitude(x), x * x
    r, u = (v.polynomial(t, *table(name)) for name in ("ErfFirst", "ErfSecond"))
    r = r * s + u
    for coefficient in table("ErfRest"):
        r = r * t + v.constant(coefficient)
    far = v.with_sign_of(x, v.constant(1.0) - exp(v, r * t - t))
    p = v.polynomial(s, *table("Erf"))
    return v.select(t > v.named("ErfNear"), far, p * x + x)
