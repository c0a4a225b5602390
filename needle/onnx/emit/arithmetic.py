"""Functions of two or three elements, which broadcast."""

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
    """Of a quotient only the rest is exact, so that the quotient comes from it."""
    zero = like(w, a, 0)
    rest = w.op("Mod", a, b, fmod=1)
    if kind == "fmod":
        return rest
    signs = [w.op("Less", x, zero, dtype="bool") for x in (rest, b)]
    is_zero = w.op("Equal", rest, zero, dtype="bool")
    other = w.op("And", w.op("Xor", *signs), w.op("Not", is_zero))
    rest = w.op("Where", other, w.op("Add", rest, b), rest)
    if kind == "remainder":
        return rest
    quotient = w.op("Round", w.op("Div", w.op("Sub", a, rest), b))
    by_zero = w.op("Equal", b, zero, dtype="bool")
    return w.op("Where", by_zero, w.op("Div", a, b), quotient)


def _of_integers(w: Writer, kind: str, a: Value, b: Value) -> Value:
    """A processor traps at a division by 0, and at that of the least number by -1: both are left
    to the other branch."""
    if a.dtype in ("int8", "uint8", "int16", "uint16"):
        out = _of_integers(w, kind, w.cast(a, "int32"), w.cast(b, "int32"))
        return w.cast(out, a.dtype)
    zero, one = like(w, a, 0), like(w, a, 1)
    by_zero = w.op("Equal", b, zero, dtype="bool")
    by_less = w.op("Equal", b, like(w, a, -1), dtype="bool")
    divisor = w.op("Where", w.op("Or", by_zero, by_less), one, b)
    if kind == "floor_divide":
        whole = w.op("Sub", a, w.op("Mod", a, divisor))
        out = w.op("Where", by_less, w.op("Neg", a), w.op("Div", whole, divisor))
    else:
        out = w.op("Mod", a, divisor, fmod=int(kind == "fmod"))
    return w.op("Where", by_zero, zero, out)


@rule(ops.Atan2)
def atan2(s: Site, a: Value, b: Value) -> Value:
    """atan(a / b), turned by pi where b is below 0. Two infinite numbers count as two of size 1,
    beside which finite ones are 0."""
    w, dtype = s.w, s.out.dtype
    wide = "float64" if dtype == "float64" else "float32"
    a, b = w.cast(a, wide), w.cast(b, wide)
    zero, pi = like(w, a, 0), like(w, a, math.pi)
    infinite = [w.op("IsInf", x, dtype="bool") for x in (a, b)]
    both = w.op("And", *infinite)
    a, b = (w.op("Where", both, w.op("Sign", x), x) for x in (a, b))
    angle = w.op("Atan", w.op("Div", a, b))
    left, under = (w.op("Less", x, zero, dtype="bool") for x in (b, a))
    turn = w.op("Where", under, w.op("Neg", pi), pi)
    angle = w.op("Where", left, w.op("Add", angle, turn), angle)
    nothing = w.op("And", *(w.op("Equal", x, zero, dtype="bool") for x in (a, b)))
    return w.cast(w.op("Where", nothing, zero, angle), dtype)
