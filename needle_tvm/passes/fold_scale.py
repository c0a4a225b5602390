"""A scale per output channel, folded into the weights that make the channels.

Before: `multiply(y, s)`, where
- `y` is `matmul(x, w)` or an NHWC, HWIO `conv2d(x, w)`, or `add` of such a product and `b`,
- `w`, `s` and `b` depend on parameters of the function alone,
- `s` and `b` vary along the last axis only, which is that of the output channels,
- nothing else reads `y` or the product.

After: the same product with `multiply(w, s)` for its weights, plus `multiply(b, s)`. What is left
of the scale is work on parameters, which `LiftTransformParams` moves out of `main`. This is what
batch norm in eval mode comes to: its shift stays an addition.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from needle_tvm._tvm import IRModule, Target, expr_functor, relax, static_shape, tvm
from needle_tvm.passes.dependence import is_parameter_work, parameters_of
from needle_tvm.passes.rewrite import rewrite


def fold_scale(module: IRModule, target: Target) -> IRModule:
    """Fold every scale that meets the preconditions, in every Relax function."""
    return rewrite(module, _Folder, with_parameters=True)


def is_op(expr: Any, name: str) -> bool:
    """Whether `expr` calls the Relax operator `name`."""
    return isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get(name)


@expr_functor.mutator
class _Folder(expr_functor.PyExprMutator):  # type: ignore[name-defined]
    def __init__(self, module: IRModule, function: relax.Function) -> None:
        super().__init__(module)
        self._parameters = parameters_of(function)
        self._uses = _count_uses(function)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.multiply"):
            return call
        for y, scale in (call.args, reversed(call.args)):
            if self._is_channelwise(scale):
                folded = self._fold(y, scale)
                if folded is not None:
                    return folded
        return call

    def _fold(self, y: Any, scale: Any) -> Any:
        """`y * scale` with the scale in the weights; None where the preconditions do not hold."""
        product, bias = self._only_use(y), None
        if is_op(product, "relax.add"):
            for inner, other in (product.args, reversed(product.args)):
                value = self._only_use(inner)
                if self._is_channelwise(other) and self._is_product(value):
                    product, bias = value, other
                    break
        if not self._is_product(product):
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

    def _only_use(self, var: Any) -> Any:
        """What `var` is bound to, None where it is read in more than one place."""
        if not isinstance(var, relax.Var) or self._uses[var] != 1:
            return None
        return self.lookup_binding(var)

    def _is_product(self, expr: Any) -> bool:
        """Whether `expr` multiplies by weights whose last axis is that of its own channels."""
        if is_op(expr, "relax.nn.conv2d"):
            layouts = expr.attrs.data_layout, expr.attrs.kernel_layout, expr.attrs.out_layout
            if tuple(str(layout) for layout in layouts) != ("NHWC", "HWIO", "NHWC"):
                return False
        elif not is_op(expr, "relax.matmul"):
            return False
        shape = static_shape(expr.args[1])
        return shape is not None and len(shape) >= 2 and self._is_parameter_work(expr.args[1])

    def _is_channelwise(self, expr: Any) -> bool:
        """Whether `expr` depends on parameters alone and varies along its last axis only."""
        shape = static_shape(expr)
        if shape is None or math.prod(shape[:-1]) != 1:
            return False
        return self._is_parameter_work(expr)

    def _is_parameter_work(self, expr: Any) -> bool:
        return is_parameter_work(expr, self._parameters, self.lookup_binding)


def _count_uses(function: relax.Function) -> Counter[Any]:
    """How often each variable is read."""
    uses: Counter[Any] = Counter()

    def visit(expr: Any) -> None:
        operands: list[Any] = []
        if isinstance(expr, relax.Call):
            operands = list(expr.args)
        elif isinstance(expr, relax.Tuple):
            operands = list(expr.fields)
        elif isinstance(expr, relax.SeqExpr):
            operands = [expr.body]
        uses.update(operand for operand in operands if isinstance(operand, relax.Var))

    relax.analysis.post_order_visit(function, visit)
    return uses
