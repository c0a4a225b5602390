"""Permutations and reshapes moved behind elementwise operators.

Before: an elementwise operator reads `view(x)`, and its other operand, if it has one, is
- a scalar constant, or
- for a permutation: a permutation in the same order of a tensor of the same shape;
- for a reshape of rows (M, N) to (..., N): something that varies along the last axis alone, or any
  tensor of the result's shape, which is reshaped to the rows.
All shapes are static.

After: the operator reads `x`, and its result is viewed. Two views in a row become one, or none. So
a chain of convolutions that each go to channels last and back stays in channels last, and what
follows a product works on the rows the product makes, activations and residual sums included.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from needle_tvm._tvm import Constant, IRModule, Target, expr_functor, relax, static_shape, tvm
from needle_tvm.passes.rewrite import rewrite


def _operators(*names: str) -> tuple[Any, ...]:
    return tuple(tvm.ir.Op.get(f"relax.{name}") for name in names)


(_PERMUTE, _RESHAPE) = _operators("permute_dims", "reshape")
_UNARY = _operators(
    *("negative", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "abs", "erf"),
    *("nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.relu"),
)
_BINARY = _operators("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")


class _View(Protocol):
    """What the pass must know of one kind of view."""

    def is_view(self, call: Any) -> bool:
        """Whether a call is a view of this kind that is worth sinking."""

    def again(self, view: Any, x: Any) -> Any:
        """`view`'s view of another tensor of its source's shape."""

    def merged(self, outer: Any, inner: Any) -> Any:
        """One expression for `outer`, a view of the view `inner`."""

    def beside(self, view: Any, other: Any, value: Any) -> Any:
        """What to combine with `view`'s source instead of `other` (bound to `value`), or None."""


class _Permutation:
    def is_view(self, call: Any) -> bool:
        return call.op == _PERMUTE and static_shape(call.args[0]) is not None

    def again(self, view: Any, x: Any) -> Any:
        return relax.op.permute_dims(x, self._order(view))

    def merged(self, outer: Any, inner: Any) -> Any:
        first = self._order(inner)
        order = [first[axis] for axis in self._order(outer)]
        source = inner.args[0]
        return source if order == sorted(order) else relax.op.permute_dims(source, order)

    def beside(self, view: Any, other: Any, value: Any) -> Any:
        if value is None or not self.is_view(value) or self._order(value) != self._order(view):
            return None
        same = static_shape(value.args[0]) == static_shape(view.args[0])
        return value.args[0] if same else None

    def _order(self, call: Any) -> list[int]:
        count, axes = len(static_shape(call.args[0]) or ()), call.attrs.axes
        return [int(a) % count for a in (reversed(range(count)) if axes is None else axes)]


class _Rows:
    def is_view(self, call: Any) -> bool:
        if call.op != _RESHAPE:
            return False
        before, after = static_shape(call.args[0]), static_shape(call)
        if before is None or after is None or len(before) != 2 or len(after) < 2:
            return False
        return before[1] == after[-1]

    def again(self, view: Any, x: Any) -> Any:
        return relax.op.reshape(x, static_shape(view))

    def merged(self, outer: Any, inner: Any) -> Any:
        return _reshaped(inner.args[0], static_shape(outer))

    def beside(self, view: Any, other: Any, value: Any) -> Any:
        rows, shape = static_shape(view.args[0]), static_shape(other)
        if shape is None or rows is None:
            return None
        if value is not None and self.is_view(value) and static_shape(value.args[0]) == rows:
            return value.args[0]
        if shape == static_shape(view):
            return relax.op.reshape(other, rows)
        if shape and math.prod(shape[:-1]) == 1 and shape[-1] in (1, rows[1]):
            return other if len(shape) <= 2 else relax.op.reshape(other, (shape[-1],))
        return None


def _reshaped(x: Any, shape: Any) -> Any:
    return x if static_shape(x) == shape else relax.op.reshape(x, shape)


def sink_permutes(module: IRModule, target: Target) -> IRModule:
    """Sink every permutation that meets the preconditions, in every Relax function."""
    return _sink(module, _Permutation())


def sink_reshapes(module: IRModule, target: Target) -> IRModule:
    """Sink every reshape of rows that meets the preconditions, in every Relax function."""
    return _sink(module, _Rows())


def _sink(module: IRModule, view: _View) -> IRModule:
    return rewrite(module, lambda module, _: _Sinker(module, view))


@expr_functor.mutator
class _Sinker(expr_functor.PyExprMutator):  # type: ignore[name-defined]
    def __init__(self, module: IRModule, view: _View) -> None:
        super().__init__(module)
        self._view = view

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _RESHAPE and static_shape(call) is not None:
            inner = self._value(call.args[0])
            if inner is not None and inner.op == _RESHAPE:
                return _reshaped(inner.args[0], static_shape(call))
        if call.op in (_PERMUTE, _RESHAPE):
            inner = self._viewed(call.args[0])
            merges = inner is not None and call.op == inner.op and static_shape(call) is not None
            return self._view.merged(call, inner) if merges else call
        if call.op in _UNARY:
            view = self._viewed(call.args[0])
            return call if view is None else self._sunk(call, view, [view.args[0]])
        if call.op in _BINARY:
            return self._binary(call)
        return call

    def _binary(self, call: Any) -> Any:
        for position in (0, 1):
            view, other = self._viewed(call.args[position]), call.args[1 - position]
            if view is None:
                continue
            partner = other
            if not (isinstance(other, Constant) and static_shape(other) == ()):
                partner = self._view.beside(view, other, self._value(other))
            if partner is not None:
                operands = [view.args[0], partner]
                return self._sunk(call, view, operands if position == 0 else operands[::-1])
        return call

    def _sunk(self, call: Any, view: Any, operands: list[Any]) -> Any:
        operands = [self.builder_.emit(o) if isinstance(o, relax.Call) else o for o in operands]
        result = self.builder_.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
        return self._view.again(view, result)

    def _viewed(self, expr: Any) -> Any:
        """The view that `expr` is bound to, None where it is none."""
        value = self._value(expr)
        return value if value is not None and self._view.is_view(value) else None

    def _value(self, expr: Any) -> Any:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return value if isinstance(value, relax.Call) else None
