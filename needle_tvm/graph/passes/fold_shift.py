"""Folds two shifts in a row into one.

Before: `add(add(y, a), b)`, where
- `y` depends on an input and is a matmul or an NHWC, HWIO convolution (other values are left alone,
  because adding to one may be a deliberate way to round it, as in `(x + 1e8) - 1e8`),
- `a` and `b` have static shapes and depend on parameters of the function and constants alone;
  their sum has no more elements than the larger of them, and `y` has the result's shape,
- nothing else reads `add(y, a)`.

After: `add(y, add(a, b))`. The inner sum is work on parameters, which `LiftTransformParams` moves
out of `main`. A layer's bias and the shift of a batch norm are then a single addition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import is_conv
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import shape_of
from needle_tvm.tir.functions import static_shape


def fold_shift(module: IRModule, target: Target) -> IRModule:
    """Fold every pair of shifts that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Folder, with_parameters=True)


@expr_functor.mutator
class _Folder(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.add"):
            return call
        for inner, b in (call.args, reversed(call.args)):
            value = self.only_use(inner)
            if not is_op(value, "relax.add") or not self.is_known(b):
                continue
            for y, a in (value.args, reversed(value.args)):
                if self._is_product(y) and not self.is_known(y) and self.is_known(a):
                    return self._folded(call, y, a, b)
        return call

    def _is_product(self, expr: Any) -> bool:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return is_conv(value) or is_op(value, "relax.matmul")

    def _folded(self, call: Any, y: Any, a: Any, b: Any) -> Any:
        one, other = static_shape(a), static_shape(b)
        if one is None or other is None or shape_of(y) != shape_of(call):
            return call
        if math.prod(np.broadcast_shapes(one, other)) > max(math.prod(one), math.prod(other)):
            return call
        return relax.op.add(y, self.builder_.emit(relax.op.add(a, b)))
