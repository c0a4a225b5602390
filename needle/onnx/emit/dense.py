"""The rule for matrix products."""

from __future__ import annotations

from ... import ops
from ._rules import Site, rule
from ._writer import Value


@rule(ops.Matmul)
def matmul(s: Site, a: Value, b: Value) -> Value:
    w, out = s.w, s.out
    wide = "int32" if out.dtype == "bool" else out.dtype
    made: Value = w.node("MatMul", w.cast(a, wide), w.cast(b, wide), shape=out.shape)
    return w.cast(made, out.dtype)
