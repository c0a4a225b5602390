"""Batch norm in eval mode as one scale and one shift per channel.

Before: `batch_norm(x, g, b, mean, var)[0]` that is not training, where `x` is float32 or float64 of
a static number of channels and nothing reads the returned statistics.

After: `add(multiply(x, s), t)` with `s = g / sqrt(var + epsilon)` and `t = b - mean * s`, as
tensors that vary only along the channel axis. Both depend only on parameters and constants; after a
convolution or a matmul, `fold_scale` and `fold_shift` reduce them to one addition. TVM's own
`DecomposeOpsForInference` makes five operations on the whole tensor, a division among them.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import Size, shape_of

_DTYPES = ("float32", "float64")


def norm_as_scale(module: IRModule, target: Target) -> IRModule:
    """Rewrite every batch norm that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_tuple_getitem_(self, item: Any) -> Any:
        norm = self.lookup_binding(item.tuple_value)
        if int(item.index) != 0 or not is_op(norm, "relax.nn.batch_norm"):
            return item
        others = [r for r in self.readers[item.tuple_value] if int(getattr(r, "index", -1)) != 0]
        shape = shape_of(norm.args[0])
        if others or bool(norm.attrs.training) or shape is None:
            return item
        if not isinstance(shape[int(norm.attrs.axis)], int):
            return item
        if str(norm.args[0].ty.dtype) not in _DTYPES:
            return item
        return self._affine(norm, shape)

    def _affine(self, norm: Any, shape: tuple[Size, ...]) -> Any:
        x, weight, bias, mean, variance = norm.args
        op, emit, dtype = relax.op, self.builder_.emit, str(x.ty.dtype)
        epsilon = relax.const(float(norm.attrs.epsilon), dtype)
        scale = emit(op.rsqrt(emit(op.add(variance, epsilon))))
        if bool(norm.attrs.scale):
            scale = emit(op.multiply(weight, scale))
        shift = emit(op.negative(emit(op.multiply(mean, scale))))
        if bool(norm.attrs.center):
            shift = emit(op.add(bias, shift))
        axis = int(norm.attrs.axis) % len(shape)
        along = tuple(n if i == axis else 1 for i, n in enumerate(shape))
        scale, shift = (emit(op.reshape(each, along)) for each in (scale, shift))
        return op.add(emit(op.multiply(x, scale)), shift)
