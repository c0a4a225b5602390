"""Folds a scale per output channel into the weights of a matmul or convolution.

Before: `multiply(y, s)`, where
- `y` is `matmul(x, w)` or an NHWC, HWIO `conv2d(x, w)`, or `add` of such a result and `b`,
- `w` depends on parameters of the function alone, `s` and `b` on parameters and constants,
- `w`, `s` and `b` have static shapes, and `w` has two axes or more,
- `s` and `b` vary along the last axis only, the axis of the output channels, and add no axes to the
  result; `s` adds no columns either,
- if `s` is a constant, none of its numbers is so large or small that the weights may overflow or
  underflow where the results would not,
- nothing else reads `y` or the result of the matmul or convolution.

After: the same matmul or convolution with `multiply(w, s)` as its weights, plus `multiply(b, s)`.
The multiplications are work on parameters, which `LiftTransformParams` moves out of `main`. Batch
norm in eval mode has this form; its shift stays an addition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle_tvm._tvm.names import Constant, IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import is_conv
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import shape_of
from needle_tvm.tir.functions import static_shape


def fold_scale(module: IRModule, target: Target) -> IRModule:
    """Fold every scale that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Folder, with_parameters=True)


@expr_functor.mutator
class _Folder(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.multiply"):
            return call
        for y, scale in (call.args, reversed(call.args)):
            if self._is_channelwise(scale) and _is_moderate(scale):
                folded = self._fold(y, scale)
                if folded is not None:
                    return folded
        return call

    def _fold(self, y: Any, scale: Any) -> Any:
        """Return `y * scale` with the scale in the weights; None if the preconditions fail."""
        product, bias = self.only_use(y), None
        if is_op(product, "relax.add"):
            for inner, other in (product.args, reversed(product.args)):
                value = self.only_use(inner)
                if self._is_channelwise(other) and self._is_product(value):
                    product, bias = value, other
                    break
        if not self._is_product(product) or any(
            len(static_shape(each) or ()) > len(shape_of(product) or ())
            for each in (scale, bias)
            if each is not None
        ):
            return None
        x, weights = product.args
        shape, scale_shape = static_shape(weights), static_shape(scale)
        if shape is None or scale_shape is None or math.prod(scale_shape) not in (1, shape[-1]):
            return None
        scale = self.builder_.emit(relax.op.reshape(scale, (math.prod(scale_shape),)))
        scaled = self.builder_.emit(relax.op.multiply(weights, scale))
        result = relax.Call(product.op, [x, scaled], product.attrs, product.ty_args)
        if bias is None:
            return result
        shift = self.builder_.emit(relax.op.multiply(bias, scale))
        return relax.op.add(self.builder_.emit(result), shift)

    def _is_product(self, expr: Any) -> bool:
        """Return whether `expr` multiplies by weights whose last axis is its output channels."""
        if not (is_conv(expr) or is_op(expr, "relax.matmul")):
            return False
        shape = static_shape(expr.args[1])
        return shape is not None and len(shape) >= 2 and self.is_parameter_work(expr.args[1])

    def _is_channelwise(self, expr: Any) -> bool:
        """Return whether `expr` depends on no input and varies along its last axis only."""
        shape = static_shape(expr)
        return shape is not None and math.prod(shape[:-1]) == 1 and self.is_known(expr)


def _is_moderate(scale: Any) -> bool:
    """Return whether a scale is a parameter, or within a factor of a million of 1."""
    if not isinstance(scale, Constant):
        return True
    sizes = np.abs(scale.value.numpy().astype("float64"))
    return bool(((sizes >= 1e-6) & (sizes <= 1e6)).all())
