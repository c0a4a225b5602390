"""Views as one operator for each kind: reshape, permutation, slice.

Before:
- `squeeze`, `expand_dims` and `flatten`,
- `permute_dims` that moves only axes of extent 1, or has negative axes,
- `broadcast_to` the operand's own shape,
- `take` of one constant position inside an axis of static extent,
- a field of `split` along an axis of static extent,
- a sum, mean, product, maximum or minimum of a tensor without axes.

Their results have elements.

After: `reshape`, nothing, `permute_dims` of axes from 0 on, or `strided_slice`. Passes that read
through views then recognise all of them. TVM's `ConvertLayout` crashes on a `squeeze` or a
`permute_dims` of a negative axis and on a reduction of a tensor without axes.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import Constant, IRModule, Target, expr_functor, relax, tvm
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.graph.views import order_of
from needle_tvm.tir.extents import Size, exprs_of, shape_of

_RESHAPES = tuple(tvm.ir.Op.get(f"relax.{name}") for name in ("squeeze", "expand_dims", "flatten"))
_REDUCTIONS = tuple(
    tvm.ir.Op.get(f"relax.{name}") for name in ("sum", "mean", "prod", "max", "min")
)


def plain_views(module: IRModule, target: Target) -> IRModule:
    """Rewrite every view that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        after = shape_of(call)
        before = shape_of(call.args[0]) if after is not None else None
        if before is None or after is None or 0 in after:  # TVM's reshape takes 0 for "as before"
            return call
        if call.op in _RESHAPES:
            return relax.op.reshape(call.args[0], exprs_of(after))
        if is_op(call, "relax.permute_dims"):
            order = order_of(call)
            moved = [axis for axis in order if before[axis] != 1]
            if moved != sorted(moved):
                return relax.op.permute_dims(call.args[0], order)
            return relax.op.reshape(call.args[0], exprs_of(after))
        if is_op(call, "relax.broadcast_to"):
            return call.args[0] if before == after else call
        if call.op in _REDUCTIONS and before == () and call.ty.dtype == call.args[0].ty.dtype:
            return call.args[0]
        if is_op(call, "relax.take"):
            return self._taken(call, before, after)
        return call

    def _taken(self, call: Any, before: tuple[Size, ...], after: tuple[Size, ...]) -> Any:
        x, index = call.args
        if not isinstance(index, Constant) or shape_of(index) != () or call.attrs.axis is None:
            return call
        axis, at = int(call.attrs.axis) % len(before), int(index.value.numpy())
        if not isinstance(before[axis], int):
            return call
        at = at + before[axis] if at < 0 else at
        if not 0 <= at < before[axis]:
            return call
        part = relax.op.strided_slice(x, [axis], [at], [at + 1], assume_inbound=True)
        return relax.op.reshape(self.builder_.emit(part), exprs_of(after))

    def visit_tuple_getitem_(self, item: Any) -> Any:
        item = self.visit_expr_post_order(item)
        split = self.lookup_binding(item.tuple_value)
        shape = shape_of(split.args[0]) if is_op(split, "relax.split") else None
        if shape is None:
            return item
        axis = int(split.attrs.axis) % len(shape)
        if not isinstance(shape[axis], int):
            return item
        extents = [int(part.shape.values[axis]) for part in item.tuple_value.ty.fields]
        begin = sum(extents[: item.index])
        end = begin + extents[item.index]
        return relax.op.strided_slice(split.args[0], [axis], [begin], [end], assume_inbound=True)
