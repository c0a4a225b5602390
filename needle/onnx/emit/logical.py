"""Rules for conditions, logic and bits."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...backend_ndarray.dtypes import is_floating
from ._rules import Site, rule
from ._writer import Value, Writer
from .elementwise import like


@rule(ops.Condition)
def condition(s: Site, x: Value) -> Value:
    w, kind = s.w, s.op.kind
    if kind == "logical_not":
        return w.op("Not", w.cast(x, "bool"))
    if not is_floating(x.dtype):
        equal = w.op("Equal", x, x, dtype="bool")
        return equal if kind == "isfinite" else w.op("Not", equal)
    nan = w.op("IsNaN", x, dtype="bool")
    if kind == "isnan":
        return nan
    return w.op("Not", w.op("Or", nan, w.op("IsInf", x, dtype="bool")))


@rule(ops.Logical)
def logical(s: Site, a: Value, b: Value) -> Value:
    name = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}[s.op.kind]
    return s.w.op(name, s.w.cast(a, "bool"), s.w.cast(b, "bool"))


_BITS = {
    "bitwise_and": ("BitwiseAnd", "And"),
    "bitwise_or": ("BitwiseOr", "Or"),
    "bitwise_xor": ("BitwiseXor", "Xor"),
}


@rule(ops.Bitwise)
def bitwise(s: Site, a: Value, b: Value) -> Value:
    dtype = s.out.dtype
    a, b = s.w.cast(a, dtype), s.w.cast(b, dtype)
    if s.op.kind in _BITS:
        return s.w.op(_BITS[s.op.kind][dtype == "bool"], a, b)
    return s.w.cast(_shift(s.w, s.op.kind, a, b), dtype)


def _shift(w: Writer, kind: str, a: Value, b: Value) -> Value:
    """Write a shift in 64 bits as a product with a power of 2, or as a quotient rounded down,
    because ONNX's BitShift takes only unsigned integers. A shift by the number of bits or more
    gives 0, or -1 for a right shift of a negative number."""
    bits = min(np.dtype(a.dtype).itemsize * 8, 63)
    a, b = w.cast(a, "int64"), w.cast(b, "int64")
    zero = like(w, a, 0)
    beyond = w.op(
        "Or",
        w.op("Less", b, zero, dtype="bool"),
        w.op("GreaterOrEqual", b, like(w, a, bits), dtype="bool"),
    )
    powers = w.constant(1 << np.arange(bits), "int64")
    power = w.gather(powers, w.op("Where", beyond, zero, b), 0)
    if kind == "right_shift":
        rest = w.op("Mod", a, power)
        out = w.op("Div", w.op("Sub", a, rest), power)
        below = w.op("Less", a, zero, dtype="bool")
        return w.op("Where", beyond, w.op("Where", below, like(w, a, -1), zero), out)
    out = w.op("Where", beyond, zero, w.op("Mul", a, power))
    if bits < 63:
        return out
    # A shift by 63 moves the lowest bit to the highest.
    top = w.op("Mul", w.op("Mod", a, like(w, a, 2)), like(w, a, -(2**63)))
    return w.op("Where", w.op("Equal", b, like(w, a, 63), dtype="bool"), top, out)


@rule(ops.BitwiseNot)
def bitwise_not(s: Site, x: Value) -> Value:
    return s.w.op("Not" if x.dtype == "bool" else "BitwiseNot", x)
