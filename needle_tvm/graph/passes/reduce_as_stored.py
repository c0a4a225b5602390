"""Replaces reductions of a permuted tensor with reductions of the tensor as it is stored.

Before: `sum`, `mean`, `max` or `min` of `permute_dims(x)`, whose rank is static.

After: the same reduction of `x` along the corresponding axes. The remaining axes are permuted if
their order has changed. For example, the mean over the image after a channels-last convolution then
needs no permuted copy of the image.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax, tvm
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import shape_of

_REDUCTIONS = {
    tvm.ir.Op.get(f"relax.{name}"): getattr(relax.op, name)
    for name in ("sum", "mean", "max", "min")
}


def reduce_as_stored(module: IRModule, target: Target) -> IRModule:
    """Rewrite every reduction that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op not in _REDUCTIONS:
            return call
        (permuted,) = call.args
        value = self.lookup_binding(permuted) if isinstance(permuted, relax.Var) else None
        if value is None or not is_op(value, "relax.permute_dims"):
            return call
        shape = shape_of(value)
        if shape is None:
            return call
        rank = len(shape)
        given, axes, keepdims = value.attrs.axes, call.attrs.axis, bool(call.attrs.keepdims)
        order = [int(a) % rank for a in (reversed(range(rank)) if given is None else given)]
        over = [int(a) % rank for a in (range(rank) if axes is None else axes)]
        kept = [order[a] for a in range(rank) if a not in over]
        reduced = _REDUCTIONS[call.op](value.args[0], sorted(order[a] for a in over), keepdims)
        if keepdims:
            return relax.op.permute_dims(self.builder_.emit(reduced), order)
        if kept == sorted(kept):
            return reduced
        ranks = [sorted(kept).index(axis) for axis in kept]
        return relax.op.permute_dims(self.builder_.emit(reduced), ranks)
