"""Merges matmuls of one tensor with several weights into one matmul.

Before: `matmul(x, w)`, optionally plus a bias, in two or more places with the same `x`, where
- `x` has two or more axes; weights and biases have static shapes, and no extent is known to be 0,
- `x` depends on an input, so that all weights can be computed before the first matmul,
- each `w` has the shape (K, N), all with the same K and dtype, and depends on parameters of
  the function alone,
- a bias depends on parameters alone, varies only along its last axis (the axis of the N columns),
  and has no more axes than `x`; either all matmuls have a bias or none has,
- the only reader of the result is one reshape, as for the heads of attention: a kernel that reads
  the result in place can also read its part of the merged result in place.

After: one matmul with all weights side by side, plus all biases, and a slice of the last axis for
each former matmul. It reads `x` once and has more columns to distribute over the cores.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.dependence import (
    Origins,
    bindings_of,
    input_work_of,
    is_op,
    parameters_of,
    readers_of,
)
from needle_tvm.graph.rewrite import Rewriter, rebind, rewrite
from needle_tvm.tir.extents import shape_of
from needle_tvm.tir.functions import static_shape


def merge_products(module: IRModule, target: Target) -> IRModule:
    """Merge every group of matmuls that meets the preconditions, in every Relax function."""
    module = rebind(module, _parameter_work_first)
    return rewrite(module, target, _Merger, with_parameters=True)


def _parameter_work_first(function: relax.Function, bindings: Sequence[Any]) -> Sequence[Any]:
    """Move bindings that depend on no input to the front, so that all weights precede the first
    matmul of their group."""
    if "num_input" not in (function.attrs or {}):
        return bindings
    late = input_work_of(function)
    return sorted(bindings, key=lambda binding: binding.var in late)


@dataclass(frozen=True)
class _Product:
    """A matmul: its operands, its bias if it has one, and the call that computes the result."""

    result: Any
    x: Any
    weights: Any
    bias: Any


@expr_functor.mutator
class _Merger(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._groups = {p.result: group for group in _groups(function) for p in group}
        self._parts: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        if call not in self._groups:
            return self.visit_expr_post_order(call)
        if call not in self._parts:
            self._merge(self._groups[call])
        return self._parts[call]

    def _merge(self, group: list[_Product]) -> None:
        """Emit the group's matmul; the members' results become slices of it."""
        emit = self.builder_.emit
        weights = emit(relax.op.concat([self.visit_expr(p.weights) for p in group], axis=1))
        merged = emit(relax.op.matmul(self.visit_expr(group[0].x), weights))
        if group[0].bias is not None:
            rows = []
            for product in group:
                bias = self.visit_expr(product.bias)
                rows.append(emit(relax.op.reshape(bias, (math.prod(static_shape(bias) or ()),))))
            merged = emit(relax.op.add(merged, emit(relax.op.concat(rows, axis=0))))
        axis, begin = len(shape_of(merged) or ()) - 1, 0
        for product in group:
            end = begin + _columns(product.weights)
            self._parts[product.result] = relax.op.strided_slice(merged, [axis], [begin], [end])
            begin = end


def _columns(weights: Any) -> int:
    return int((static_shape(weights) or ())[1])


def _groups(function: relax.Function) -> list[list[_Product]]:
    """Return the groups of matmuls that meet the preconditions."""
    bindings, readers = bindings_of(function), readers_of(function)
    origins, late = Origins(parameters_of(function), bindings.get), input_work_of(function)

    variable_of = {
        value: variable for variable, value in bindings.items() if isinstance(value, relax.Call)
    }

    def product(call: Any) -> _Product | None:
        x, weights = call.args
        shape, x_shape = static_shape(weights), shape_of(x)
        if shape is None or x_shape is None or len(shape) != 2 or len(x_shape) < 2:
            return None
        if 0 in shape or 0 in x_shape or not origins.is_parameter_work(weights) or x not in late:
            return None
        result, bias = call, None
        (reader, *more) = readers[variable_of[call]] or [None]
        if is_op(reader, "relax.add") and not more:
            left, right = reader.args
            bias = right if left.same_as(variable_of[call]) else left
            extents = static_shape(bias)
            columns = shape[1:]
            if extents is None or extents[-1:] != columns or math.prod(extents) != shape[1]:
                return None
            if not origins.is_parameter_work(bias) or len(extents) > len(x_shape):
                return None
            result = reader
            (reader, *more) = readers[variable_of[result]] or [None]
        if more or not is_op(reader, "relax.reshape"):
            return None
        return _Product(result, x, weights, bias)

    groups = defaultdict(list)
    for value in bindings.values():
        found = product(value) if is_op(value, "relax.matmul") else None
        if found is not None:
            dtypes = str(found.x.ty.dtype), str(found.weights.ty.dtype)
            groups[found.x, dtypes, found.bias is None].append(found)
    return [group for group in groups.values() if len(group) > 1]
