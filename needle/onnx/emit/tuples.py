"""Rules for tuples of tensors, which are not values in an ONNX graph, and for ops that join and
split tensors."""

from __future__ import annotations

from typing import Any

from ... import ops
from ._rules import Site, rule
from ._writer import Value
from .elementwise import plus


@rule(ops.MakeTuple)
def make_tuple(s: Site, *parts: Value) -> tuple[Value, ...]:
    return parts


@rule(ops.TupleGetItem)
def tuple_get_item(s: Site, parts: tuple[Value, ...]) -> Value:
    return parts[s.op.index]


@rule(ops.Stack)
def stack(s: Site, *parts: Value) -> Value:
    w, axis = s.w, s.op.axis % (parts[0].ndim + 1)
    wide = [w.unsqueeze(w.cast(part, s.out.dtype), axis) for part in parts]
    return w.concat(wide, axis, s.out.shape)


@rule(ops.Concat)
def concat(s: Site, *parts: Value) -> Value:
    wide = [s.w.cast(part, s.out.dtype) for part in parts]
    return s.w.concat(wide, s.op.axis % parts[0].ndim, s.out.shape)


@rule(ops.Split)
def split(s: Site, x: Value) -> tuple[Value, ...]:
    w, axis = s.w, s.op.axis % x.ndim
    count = x.extents[axis]
    if count == 1:
        return (w.squeeze(x, axis),)
    one = tuple(1 if a == axis else n for a, n in enumerate(x.extents))
    made: Any = w.node("Split", x, dtype=(None,) * count, axis=axis, num_outputs=count)
    for part in made:
        part.shape = one
    return tuple(w.squeeze(part, axis) for part in made)


@rule(ops.FusedAddScalars)
def fused_add_scalars(s: Site, x: Value) -> tuple[Value, ...]:
    both = zip(s.out, (s.op.c0, s.op.c1), strict=True)
    return tuple(plus(s.w, s.w.cast(x, spec.dtype), number) for spec, number in both)
