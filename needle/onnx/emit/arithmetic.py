"""Rules for elementwise functions of two or three tensors, which broadcast."""

from __future__ import annotations

import math

from ... import ops
from ...backend_ndarray.dtypes import is_floating, result_type
from ._fusions import fused
from ._rules import Site, rule
from ._writer import Value, Writer
from .elementwise import like

_COMPARISONS = {
    "equal": "Equal",
    "not_equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}


def _both(s: Site, a: Value, b: Value) -> tuple[Value, Value]:
    return s.w.cast(a, s.out.dtype), s.w.cast(b, s.out.dtype)


@rule(ops.Add)
def add(s: Site, a: Value, b: Value) -> Value:
    merged = fused(s)
    if merged is not None:
        return merged
    a, b = _both(s, a, b)
    return s.w.op("Or" if a.dtype == "bool" else "Add", a, b)


@rule(ops.Subtract)
def subtract(s: Site, a: Value, b: Value) -> Value:
    return s.w.op("Sub", *_both(s, a, b))


@rule(ops.Multiply)
def multiply(s: Site, a: Value, b: Value) -> Value:
    a, b = _both(s, a, b)
    return s.w.op("And" if a.dtype == "bool" else "Mul", a, b)


@rule(ops.Divide)
def divide(s: Site, a: Value, b: Value) -> Value:
    return s.w.op("Div", *_both(s, a, b))


@rule(ops.Power)
def power(s: Site, a: Value, b: Value) -> Value:
    return s.w.op("Pow", *_both(s, a, b))


@rule(ops.Maximum)
def maximum(s: Site, a: Value, b: Value) -> Value:
    a, b = _both(s, a, b)
    return s.w.op("Or" if a.dtype == "bool" else "Max", a, b)


@rule(ops.Minimum)
def minimum(s: Site, a: Value, b: Value) -> Value:
    a, b = _both(s, a, b)
    return s.w.op("And" if a.dtype == "bool" else "Min", a, b)


@rule(ops.Compare)
def compare(s: Site, a: Value, b: Value) -> Value:
    dtype = result_type(a.dtype, b.dtype)
    a, b = s.w.cast(a, dtype), s.w.cast(b, dtype)
    out = s.w.op(_COMPARISONS[s.op.kind], a, b, dtype="bool")
    return s.w.op("Not", out) if s.op.kind == "not_equal" else out


@rule(ops.Where)
def where(s: Site, condition: Value, a: Value, b: Value) -> Value:
    return s.w.op("Where", s.w.cast(condition, "bool"), *_both(s, a, b))


@rule(ops.WholeDivision)
def whole_division(s: Site, a: Value, b: Value) -> Value:
    a, b = _both(s, a, b)
    if is_floating(a.dtype):
        wide = "float64" if a.dtype == "float64" else "float32"
        out = _of_floats(s.w, s.op.kind, s.w.cast(a, wide), s.w.cast(b, wide))
        return s.w.cast(out, s.out.dtype)
    return _of_integers(s.w, s.op.kind, a, b)


def _of_floats(w: Writer, kind: str, a: Value, b: Value) -> Value:
    """Write a division of floats. Only the remainder is exact, so the quotient is computed from
    it."""
    rest = w.op("Mod", a, b, fmod=1)
    if kind == "fmod":
        return rest
    other = _of_other_sign(w, rest, b)
    if kind == "remainder":
        return w.op("Where", other, w.op("Add", rest, b), rest)
    quotient = w.op("Div", w.op("Sub", a, rest), b)
    quotient = w.op("Where", other, w.op("Sub", quotient, like(w, a, 1)), quotient)
    by_zero = w.op("Equal", b, like(w, a, 0), dtype="bool")
    return w.op("Where", by_zero, w.op("Div", a, b), w.op("Round", quotient))


def _of_other_sign(w: Writer, a: Value, b: Value) -> Value:
    """Return whether a is not 0 and exactly one of a and b is below 0."""
    zero = like(w, a, 0)
    signs = [w.op("Less", x, zero, dtype="bool") for x in (a, b)]
    return w.op("And", w.op("Xor", *signs), w.op("Not", w.op("Equal", a, zero, dtype="bool")))


def _of_integers(w: Writer, kind: str, a: Value, b: Value) -> Value:
    """Write a division of integers. Processors trap on a division by 0 and on the least number
    divided by -1, so both cases are computed in another way."""
    if a.dtype in ("int8", "uint8", "int16", "uint16"):
        out = _of_integers(w, kind, w.cast(a, "int32"), w.cast(b, "int32"))
        return w.cast(out, a.dtype)
    zero, one = like(w, a, 0), like(w, a, 1)
    by_zero = w.op("Equal", b, zero, dtype="bool")
    by_less = w.op("Equal", b, like(w, a, -1), dtype="bool")
    divisor = w.op("Where", w.op("Or", by_zero, by_less), one, b)
    if kind == "floor_divide":
        quotient = w.op("Div", a, divisor)
        other = _of_other_sign(w, w.op("Mod", a, divisor, fmod=1), divisor)
        floor = w.op("Where", other, w.op("Sub", quotient, one), quotient)
        out = w.op("Where", by_less, w.op("Neg", a), floor)
    else:
        out = w.op("Mod", a, divisor, fmod=int(kind == "fmod"))
    return w.op("Where", by_zero, zero, out)


@rule(ops.Atan2)
def atan2(s: Site, a: Value, b: Value) -> Value:
    """Write atan(a / b), rotated by pi where b is below 0 or is -0. If both numbers are infinite,
    they are replaced by their signs."""
    w, dtype = s.w, s.out.dtype
    wide = "float64" if dtype == "float64" else "float32"
    a, b = w.cast(a, wide), w.cast(b, wide)
    zero, pi = like(w, a, 0), like(w, a, math.pi)
    under, left = (_is_negative(w, x) for x in (a, b))
    infinite = w.op("And", *(w.op("IsInf", x, dtype="bool") for x in (a, b)))
    a, b = (w.op("Where", infinite, w.op("Sign", x), x) for x in (a, b))
    nothing = w.op("And", *(w.op("Equal", x, zero, dtype="bool") for x in (a, b)))
    angle = w.op("Where", nothing, zero, w.op("Atan", w.op("Div", a, b)))
    turn = w.op("Where", under, w.op("Neg", pi), pi)
    return w.cast(w.op("Where", left, w.op("Add", angle, turn), angle), dtype)


def _is_negative(w: Writer, x: Value) -> Value:
    """Return whether a number is below 0 or is -0, whose inverse is below 0."""
    zero = like(w, x, 0)
    inverse = w.op("Div", like(w, x, 1), x)
    return w.op("Or", *(w.op("Less", y, zero, dtype="bool") for y in (x, inverse)))
