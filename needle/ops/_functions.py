"""Expressions for functions of one or two elements, for `emit_te` and its argument `k`. Unlike
TVM's functions, they are exact to the last few bits even near 0 and for large quotients."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..op.signatures import Expr, TeNamespace


def fmod(k: TeNamespace, x: Expr, y: Expr) -> Expr:
    """Return the C library's fmod, which is exact for every quotient; TVM's own rounds the
    quotient."""
    dtype = str(x.ty)
    return k.tirx.call_pure_extern(dtype, "fmod" if dtype == "float64" else "fmodf", x, y)


def remainder(k: TeNamespace, x: Expr, y: Expr) -> Expr:
    """Return the remainder with the sign of y, exact for large quotients too."""
    rest = fmod(k, x, y)
    return k.tirx.Select(_of_other_sign(k, rest, y), rest + y, rest)


def _of_other_sign(k: TeNamespace, x: Expr, y: Expr) -> Expr:
    """Return whether one of two numbers is below 0 and the other above."""
    zero = k.tirx.const(0, str(x.ty))
    return k.tirx.any(k.tirx.all(x < zero, y > zero), k.tirx.all(x > zero, y < zero))


def floor_divided(k: TeNamespace, x: Expr, y: Expr) -> Expr:
    """Return the floor of x / y that matches `remainder`, even where `x / y` itself rounds up."""
    zero, one = (k.tirx.const(value, str(x.ty)) for value in (0, 1))
    rest = fmod(k, x, y)
    quotient = (x - rest) / y
    quotient = k.tirx.Select(_of_other_sign(k, rest, y), quotient - one, quotient)
    floor = k.tirx.floor(quotient)
    floor = k.tirx.Select(quotient - floor > k.tirx.const(0.5, str(x.ty)), floor + one, floor)
    return k.tirx.Select(y == zero, x / y, floor)


def _number(k: TeNamespace, like: Expr, value: float) -> Expr:
    return k.tirx.const(value, str(like.ty))


def _series(k: TeNamespace, x: Expr, factors: list[float]) -> Expr:
    """Return factors[0] + factors[1] * x + factors[2] * x * x + ..."""
    total = _number(k, x, factors[-1])
    for factor in reversed(factors[:-1]):
        total = total * x + _number(k, x, factor)
    return total


def expm1(k: TeNamespace, x: Expr) -> Expr:
    """Return exp(x) - 1, computed near 0 from its series to avoid cancellation."""
    terms = 17 if str(x.ty) == "float64" else 9
    near = x * _series(k, x, [1 / math.factorial(i + 1) for i in range(terms)])
    return k.tirx.Select(k.tirx.abs(x) < _number(k, x, 0.5), near, k.tirx.exp(x) - _number(k, x, 1))


def log1p(k: TeNamespace, x: Expr) -> Expr:
    """Return log(1 + x), computed near 0 from the series of 2 artanh(x / (2 + x))."""
    terms = 14 if str(x.ty) == "float64" else 6
    ratio = x / (_number(k, x, 2) + x)
    near = ratio * _series(k, ratio * ratio, [2 / (2 * i + 1) for i in range(terms)])
    return k.tirx.Select(k.tirx.abs(x) < _number(k, x, 0.4), near, k.tirx.log(_number(k, x, 1) + x))


def _odd(k: TeNamespace, x: Expr, of_positive: Callable[[Expr], Expr]) -> Expr:
    y = of_positive(k.tirx.abs(x))
    return k.tirx.Select(x < _number(k, x, 0), -y, y)


def asinh(k: TeNamespace, x: Expr) -> Expr:
    one, large = _number(k, x, 1), _number(k, x, 1e6)

    def of(x: Expr) -> Expr:
        square = x * x
        near = log1p(k, x + square / (one + k.tirx.sqrt(one + square)))
        return k.tirx.Select(x > large, k.tirx.log(x) + _number(k, x, math.log(2)), near)

    return _odd(k, x, of)


def acosh(k: TeNamespace, x: Expr) -> Expr:
    above = x - _number(k, x, 1)
    near = log1p(k, above + k.tirx.sqrt(above) * k.tirx.sqrt(above + _number(k, x, 2)))
    far = k.tirx.log(x) + _number(k, x, math.log(2))
    return k.tirx.Select(x > _number(k, x, 1e6), far, near)


def atanh(k: TeNamespace, x: Expr) -> Expr:
    return _odd(
        k, x, lambda x: _number(k, x, 0.5) * log1p(k, _number(k, x, 2) * x / (_number(k, x, 1) - x))
    )


def sinh(k: TeNamespace, x: Expr) -> Expr:
    """Return (exp(x) - exp(-x)) / 2, computed with expm1, which keeps all digits near 0."""
    half, limit = _number(k, x, 0.5), _number(k, x, 20)

    def of(x: Expr) -> Expr:
        above = expm1(k, x)
        root = k.tirx.exp(x * half)  # its square may overflow
        near = half * (above + above / (above + _number(k, x, 1)))
        return k.tirx.Select(x > limit, half * root * root, near)

    return _odd(k, x, of)


def cosh(k: TeNamespace, x: Expr) -> Expr:
    """Return (exp(x) + exp(-x)) / 2, without overflow in an intermediate result."""
    half = _number(k, x, 0.5)
    root = k.tirx.exp(k.tirx.abs(x) * half)
    return half * root * root + half / (root * root)


def tanh(k: TeNamespace, x: Expr) -> Expr:
    """Return tanh, computed with expm1, which keeps all digits near 0."""

    def of(x: Expr) -> Expr:
        below = expm1(k, _number(k, x, -2) * x)
        return -below / (below + _number(k, x, 2))

    return _odd(k, x, of)
