"""Conditions, logic and bits."""

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
    """In 64 bits without a sign, the only ones that ONNX shifts: a number below 0 shifts right with
    its bits turned around. A shift by all bits leaves zeros, or signs to the right."""
    bits = np.dtype(a.dtype).itemsize * 8
    a, b = w.cast(a, "int64"), w.cast(b, "int64")
    zero = like(w, a, 0)
    beyond = w.op(
        "Or",
        w.op("Less", b, zero, dtype="bool"),
        w.op("GreaterOrEqual", b, like(w, a, bits), dtype="bool"),
    )
    by = w.cast(w.op("Where", beyond, zero, b), "uint64")
    if kind == "left_shift":
        out = w.op("BitShift", w.cast(a, "uint64"), by, direction="LEFT")
        return w.op("Where", beyond, zero, w.cast(out, "int64"))
    below = w.op("Less", a, zero, dtype="bool")
    size = w.op("Where", below, w.op("BitwiseNot", a), a)
    out = w.cast(w.op("BitShift", w.cast(size, "uint64"), by, direction="RIGHT"), "int64")
    out = w.op("Where", beyond, zero, out)
    return w.op("Where", below, w.op("BitwiseNot", out), out)


@rule(ops.BitwiseNot)
def bitwise_not(s: Site, x: Value) -> Value:
    return s.w.op("Not" if x.dtype == "bool" else "BitwiseNot", x)
