"""Moves permutations and reshapes past elementwise operators, from operands to results.

Before: an elementwise operator, a comparison or a cast of booleans reads `view(x)`, and its other
operand, if it has one, is
- a scalar constant, or
- for a permutation: a permutation in the same order; a tensor whose inverse permutation another
  operator already reads; or a tensor of the same rank that varies along at most one axis, which is
  reshaped;
- for a reshape: a tensor that has no more axes than the view and varies along the last only; or any
  tensor of the view's shape, which is reshaped to x's shape. If x holds images, the tensor may also
  vary along the batch, if the view has the same batch.
The reshapes turn
- rows (M, N) into (..., N),
- images (B, 1, W, N) into sequences (B, W, N),
- lists of pixels (B, P, 1, N) into images (B, H, W, N), or
- images (B * D, H, W, N) into volumes (B, D, H, W, N).
A concatenation may read several permutations in the same order. On a CPU, a slice may also read a
permutation, and a slice along channels may also read a reshape of images. All ranks are static.

After: the operator reads `x`, and its result is viewed. Two views in a row become one, or none. If
convolutions in a chain each permute to channels last and back, the whole chain stays in channels
last. The epilogue of a matmul, with activations and residual sums, works on the matmul's rows. A
permutation that moves only axes of extent 1 becomes a reshape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from needle_tvm._tvm.names import Constant, IRModule, Target, expr_functor, relax, tirx, tvm
from needle_tvm.graph.rewrite import rewrite
from needle_tvm.graph.views import order_of
from needle_tvm.target.info import target_info
from needle_tvm.tir.extents import exprs_of, shape_of


def _operators(*names: str) -> tuple[Any, ...]:
    return tuple(tvm.ir.Op.get(f"relax.{name}") for name in names)


(_PERMUTE, _RESHAPE, _CONCAT, _SLICE) = _operators(
    "permute_dims", "reshape", "concat", "strided_slice"
)
UNARY = _operators(
    *("negative", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "abs", "erf"),
    *("nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.relu", "nn.leakyrelu", "nn.softplus", "clip"),
)
BINARY = _operators("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
_CAST = tvm.ir.Op.get("relax.astype")
_COMPARISONS = _operators("equal", "greater", "greater_equal", "less", "less_equal")


class _View(Protocol):
    """The operations that the pass needs on one kind of view."""

    def note(self, variable: Any, call: Any) -> None:
        """Note that `call` is bound to `variable`."""

    def forget(self) -> None:
        """Forget everything noted."""

    def is_view(self, call: Any) -> bool:
        """Return whether a call is a view of this kind that is worth sinking."""

    def again(self, view: Any, x: Any) -> Any:
        """Return the same view of `x`, a tensor with the shape of `view`'s source."""

    def beside(self, view: Any, other: Any, value: Any) -> Any:
        """Return the operand to use beside `view`'s source in place of `other` (bound to `value`),
        or None."""

    def axis_of(self, view: Any, axis: int) -> int | None:
        """Return the axis of `view`'s source that corresponds to `axis` of the view, or None."""


class _Permutation:
    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}  # (tensor, order) -> its permutation

    def note(self, variable: Any, call: Any) -> None:
        if self.is_view(call):
            self._made.setdefault((call.args[0], tuple(order_of(call))), variable)

    def forget(self) -> None:
        self._made.clear()

    def is_view(self, call: Any) -> bool:
        return call.op == _PERMUTE and shape_of(call.args[0]) is not None

    def again(self, view: Any, x: Any) -> Any:
        return relax.op.permute_dims(x, order_of(view))

    def axis_of(self, view: Any, axis: int) -> int | None:
        return order_of(view)[axis]

    def beside(self, view: Any, other: Any, value: Any) -> Any:
        order, shape = order_of(view), shape_of(other)
        if value is not None and self.is_view(value) and order_of(value) == order:
            return value.args[0]
        if shape is None or len(shape) != len(order):
            return None
        stored = [shape[order.index(axis)] for axis in range(len(order))]
        if sum(extent != 1 for extent in shape) <= 1:
            return other if stored == list(shape) else relax.op.reshape(other, exprs_of(stored))
        return self._made.get((other, tuple(order.index(axis) for axis in range(len(order)))))


class _Rows:
    def note(self, variable: Any, call: Any) -> None:
        pass

    def forget(self) -> None:
        pass

    def is_view(self, call: Any) -> bool:
        if call.op != _RESHAPE:
            return False
        before, after = shape_of(call.args[0]), shape_of(call)
        if before is None or after is None or len(before) != 2 or len(after) < 2:
            return False
        return before[1] == after[-1]

    def again(self, view: Any, x: Any) -> Any:
        return relax.op.reshape(x, exprs_of(shape_of(view) or ()))

    def axis_of(self, view: Any, axis: int) -> int | None:
        return None

    def beside(self, view: Any, other: Any, value: Any) -> Any:
        rows, viewed, shape = map(shape_of, (view.args[0], view, other))
        if shape is None or rows is None or viewed is None:
            return None
        if shape == viewed:
            if value is not None and self.is_view(value) and shape_of(value.args[0]) == rows:
                return value.args[0]
            return relax.op.reshape(other, exprs_of(rows))
        along_last = shape and math.prod(shape[:-1]) == 1 and shape[-1] in (1, rows[-1])
        if along_last and len(shape) <= len(viewed):  # an operand with more axes would add axes
            return other if len(shape) <= 2 else relax.op.reshape(other, exprs_of(shape[-1:]))
        return None


class _Images(_Rows):
    def is_view(self, call: Any) -> bool:
        if call.op != _RESHAPE:
            return False
        before, after = shape_of(call.args[0]), shape_of(call)
        if before is None or after is None or len(before) != 4:
            return False
        batch, _, _, n = before
        sequences = before[1] == 1 and after == (batch, *before[2:])
        pixels = before[2] == 1 and len(after) == 4 and (after[0], after[3]) == (batch, n)
        volumes = len(after) == 5 and after[2:] == before[1:]
        return sequences or pixels or volumes

    def axis_of(self, view: Any, axis: int) -> int | None:
        channels = len(shape_of(view) or ()) - 1
        return 3 if axis == channels else None

    def beside(self, view: Any, other: Any, value: Any) -> Any:
        images, viewed, shape = map(shape_of, (view.args[0], view, other))
        if images and viewed and shape and len(shape) == len(viewed):
            of_image = shape[0] == viewed[0] == images[0] and math.prod(shape[1:-1]) == 1
            if of_image and shape[-1] in (1, viewed[-1]):
                return relax.op.reshape(other, exprs_of((shape[0], 1, 1, shape[-1])))
        return super().beside(view, other, value)


def _is_mask(call: Any) -> bool:
    """Return whether a call casts booleans. Other casts stay beside the matmul that reads them
    (`narrow_products`)."""
    return call.op == _CAST and str(call.args[0].ty.dtype) == "bool"


def _moves_units_alone(source: Any, order: list[int]) -> bool:
    """Return whether a permutation leaves every element where it is in memory."""
    shape = shape_of(source)
    moved = [] if shape is None else [axis for axis in order if shape[axis] != 1]
    return shape is not None and moved == sorted(moved)


def _permuted_once(outer: Any, inner: Any) -> Any:
    """Return one expression for `outer`, a permutation of the permutation `inner`."""
    first = order_of(inner)
    order = [first[axis] for axis in order_of(outer)]
    source = inner.args[0]
    if order == sorted(order):
        return source
    if _moves_units_alone(source, order):
        shape = shape_of(source) or ()
        return relax.op.reshape(source, exprs_of([shape[axis] for axis in order]))
    return relax.op.permute_dims(source, order)


def _reshaped(x: Any, shape: Any) -> Any:
    return x if shape_of(x) == shape else relax.op.reshape(x, exprs_of(shape))


def sink_permutes(module: IRModule, target: Target) -> IRModule:
    """Sink every permutation that meets the preconditions, in every Relax function."""
    return _sink(module, target, _Permutation)


def sink_reshapes(module: IRModule, target: Target) -> IRModule:
    """Sink every reshape of rows that meets the preconditions, in every Relax function."""
    return _sink(module, target, _Rows)


def sink_images(module: IRModule, target: Target) -> IRModule:
    """Sink every reshape of the images that a convolution returns: to volumes, to sequences, or
    from a list of pixels back to an image."""
    return _sink(module, target, _Images)


def reshape_permutes(module: IRModule, target: Target) -> IRModule:
    """Turn every permutation that moves only axes of extent 1 into a reshape, which is a view.

    Run this pass after permutations have sunk: they sink past more operators than reshapes do.
    """
    return rewrite(module, target, lambda module, *_: _Reshaper(module))


@expr_functor.mutator
class _Reshaper(expr_functor.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _PERMUTE and _moves_units_alone(call.args[0], order_of(call)):
            return relax.op.reshape(call.args[0], exprs_of(shape_of(call) or ()))
        return call


def _sink(module: IRModule, target: Target, view: Callable[[], _View]) -> IRModule:
    slices = target_info(target).is_cpu  # not timed on a GPU
    return rewrite(module, target, lambda module, *_: _Sinker(module, view(), slices))


@expr_functor.mutator
class _Sinker(expr_functor.PyExprMutator):
    def __init__(self, module: IRModule, view: _View, slices: bool) -> None:
        super().__init__(module)
        self._view = view
        self._slices = slices

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        variable = self.visit_expr(binding.var)
        value = self._value(variable)
        if value is not None:
            self._view.note(variable, value)

    def visit_dataflow_block_(self, block: Any) -> Any:
        self._view.forget()  # bindings in one block are not visible in another
        block = super().visit_dataflow_block_(block)
        self._view.forget()
        return block

    def visit_binding_block_(self, block: Any) -> Any:
        self._view.forget()
        block = super().visit_binding_block_(block)
        self._view.forget()
        return block

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _RESHAPE and shape_of(call) is not None:
            inner = self._value(call.args[0])
            if inner is not None and inner.op == _RESHAPE:
                return _reshaped(inner.args[0], shape_of(call))
        if call.op == _PERMUTE and shape_of(call) is not None:
            if order_of(call) == sorted(order_of(call)):
                return call.args[0]
            inner = self._viewed(call.args[0])
            twice = inner is not None and inner.op == _PERMUTE
            return _permuted_once(call, inner) if twice else call
        if call.op in UNARY or _is_mask(call):
            view = self._viewed(call.args[0])
            operands = [] if view is None else [view.args[0], *call.args[1:]]
            return call if view is None else self._sunk(call, view, operands)
        if call.op in BINARY or call.op in _COMPARISONS:
            return self._binary(call)
        if call.op == _CONCAT:
            return self._concat(call)
        return self._slice(call) if call.op == _SLICE and self._slices else call

    def _slice(self, call: Any) -> Any:
        """Return a slice of a view as a view of the source's slice."""
        view, shape = self._viewed(call.args[0]), shape_of(call)
        if view is None or shape is None:
            return call
        axes = [self._view.axis_of(view, int(axis)) for axis in call.args[1].fields]
        if None in axes:
            return call
        along = relax.Tuple([tirx.IntImm("int64", axis) for axis in axes])
        operands = [view.args[0], along, *call.args[2:]]
        sliced = self.builder_.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
        return self._view.again(view, sliced) if view.op == _PERMUTE else _reshaped(sliced, shape)

    def _concat(self, call: Any) -> Any:
        """Return a concatenation of permutations in the same order as one permutation."""
        parts = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
        views = [self._viewed(part) for part in parts]
        if not views or any(view is None or view.op != _PERMUTE for view in views):
            return call
        order = order_of(views[0])
        if any(order_of(view) != order for view in views):
            return call
        sources = [view.args[0] for view in views]
        joined = self.builder_.emit(relax.op.concat(sources, order[int(call.attrs.axis)]))
        return self._view.again(views[0], joined)

    def _binary(self, call: Any) -> Any:
        for position in (0, 1):
            view, other = self._viewed(call.args[position]), call.args[1 - position]
            if view is None:
                continue
            partner = other
            if not (isinstance(other, Constant) and shape_of(other) == ()):
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
        """Return the view that `expr` is bound to; None if it is not a view."""
        value = self._value(expr)
        return value if value is not None and self._view.is_view(value) else None

    def _value(self, expr: Any) -> Any:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return value if isinstance(value, relax.Call) else None
