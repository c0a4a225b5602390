"""Drops broadcasts that the next operator performs anyway.

Before: `op(x, broadcast_to(b))` or `op(broadcast_to(b), x)`, where
- `op` is an elementwise operator of two operands that broadcasts them by NumPy's rule,
- `op(x, b)` is known to have the same shape as before, symbolic extents included.

After: `op(x, b)`. A bias is then read as one row. This also matters for the work on parameters that
is done once at load: with the broadcast, the bias would be stored once per row of the batch.
"""

from __future__ import annotations

from typing import Any

from needle.autograd.shapes import broadcast_shapes
from needle.errors import ShapeError
from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax, tvm
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import Size, shape_of

_OPERATORS = tuple(
    tvm.ir.Op.get(f"relax.{name}")
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
)
_BROADCAST = tvm.ir.Op.get("relax.broadcast_to")


def drop_broadcasts(module: IRModule, target: Target) -> IRModule:
    """Drop every broadcast that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Dropper)


@expr_functor.mutator
class _Dropper(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op not in _OPERATORS:
            return call
        operands, shape = list(call.args), shape_of(call)
        for position, other in ((0, 1), (1, 0)):
            source = self._before_broadcast(operands[position])
            before = None if source is None else shape_of(source)
            beside = shape_of(operands[other])
            if shape is None or before is None or beside is None:
                continue
            if _broadcast(before, beside) == shape:
                operands[position] = source
        return relax.Call(call.op, operands, call.attrs, call.ty_args)

    def _before_broadcast(self, expr: Any) -> Any:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, relax.Call) and value.op == _BROADCAST:
            return value.args[0]
        return None


def _broadcast(*shapes: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Return the shape that the operands broadcast to; None if they are not known to broadcast."""
    try:
        return broadcast_shapes("broadcast", *shapes)
    except ShapeError:
        return None
