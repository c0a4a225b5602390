"""Replaces several layer norms of one tensor with one, folding scales and shifts into matmuls.

Before: `layer_norm(x, g, b)` over the last axis, in two or more places with the same `x` and
epsilon, where
- `x` has two or more axes, because a bias is a row; the last axis is static, and no extent is
  known to be 0,
- `g` and `b` depend on parameters of the function alone,
- every reader of the norm is `matmul(norm, w)` with a `w` of static shape (K, N) that depends on
  parameters alone.

After: one norm `n` without scale and shift, and `add(matmul(n, g * w), b @ w)` for each matmul. So
queries, keys and values that had separate norms share one norm, and their matmuls can be merged.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.dependence import (
    Origins,
    bindings_of,
    is_op,
    parameters_of,
    readers_of,
)
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import is_static, shape_of
from needle_tvm.tir.functions import static_shape


def share_norms(module: IRModule, target: Target) -> IRModule:
    """Share every group of norms that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Sharer, with_parameters=True)


@expr_functor.mutator
class _Sharer(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._norms = _norms_to_share(function)
        self._shared: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        norm = self._norms.get(call.args[0]) if is_op(call, "relax.matmul") else None
        if norm is None:
            return self.visit_expr_post_order(call)
        w = self.visit_expr(call.args[1])
        x, scale, shift = (self.visit_expr(operand) for operand in norm.args)
        k = (static_shape(w) or ())[0]
        column = self.builder_.emit(relax.op.reshape(scale, (k, 1)))
        scaled = self.builder_.emit(relax.op.multiply(w, column))
        row = self.builder_.emit(relax.op.reshape(shift, (1, k)))
        bias = self.builder_.emit(relax.op.matmul(row, w))
        product = relax.op.matmul(self._normalised(x, norm), scaled)
        return relax.op.add(self.builder_.emit(product), bias)

    def _normalised(self, x: Any, norm: Any) -> Any:
        key = x, float(norm.attrs.epsilon)
        if key not in self._shared:
            unused = relax.const(np.ones((shape_of(x) or ())[-1:]), str(x.ty.dtype))
            plain = relax.op.nn.layer_norm(
                x, unused, unused, axes=[-1], epsilon=key[1], center=False, scale=False
            )
            self._shared[key] = self.builder_.emit(plain)
        return self._shared[key]


def _norms_to_share(function: relax.Function) -> dict[Any, Any]:
    """Return the variables of norms that meet the preconditions, each with its norm."""
    bindings, readers = bindings_of(function), readers_of(function)
    origins = Origins(parameters_of(function), bindings.get)

    def fits(variable: Any, norm: Any) -> bool:
        shape = shape_of(norm)
        if shape is None or len(shape) < 2 or 0 in shape or not is_static(shape[-1:]):
            return False
        if not all(map(origins.is_parameter_work, norm.args[1:])):
            return False
        if [int(axis) % len(shape) for axis in norm.attrs.axes] != [len(shape) - 1]:
            return False
        return bool(readers[variable]) and all(
            is_op(reader, "relax.matmul")
            and reader.args[0].same_as(variable)
            and len(static_shape(reader.args[1]) or ()) == 2
            and origins.is_parameter_work(reader.args[1])
            for reader in readers[variable]
        )

    groups = defaultdict(list)
    for variable, value in bindings.items():
        if is_op(value, "relax.nn.layer_norm") and fits(variable, value):
            groups[value.args[0], float(value.attrs.epsilon)].append((variable, value))
    return {v: norm for group in groups.values() if len(group) > 1 for v, norm in group}
