"""Packs bfloat16 weights of matmuls for an instruction that multiplies two terms at a time.

Before: `matmul(astype(x), astype(w))` in float32, where
- `x` (..., K) and `w` (K, N) are bfloat16 with static shapes, no extent is 0, and K is even,
- `w` depends only on parameters of the function, and `x` does not,
- the target has AVX512-BF16.

After: `dense(x, pack_weight(w))`, still with sums and a result in float32, where `pack_weight` lays
`w` out as panels `[ceil(N / nt)][K / 2][nt][2]`. The product of two bfloat16 numbers is exact in
float32. So results differ only through the order of the sum and through subnormal numbers, which
the instruction flushes to 0. Without this pass, `pack_weights` would widen the weights at load and
multiply in float32.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm.names import (
    OP_PATTERN,
    IRModule,
    Target,
    expr_functor,
    relax,
    te,
    tirx,
)
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import rewrite
from needle_tvm.kernels.dense.cpu import PAIRS, Tile, dense_tile
from needle_tvm.kernels.dense.pack_weights import Packer, filled_up, in_tiles
from needle_tvm.target import dots
from needle_tvm.target.info import target_info
from needle_tvm.tir.functions import static_shape


def pack_pairs(module: IRModule, target: Target) -> IRModule:
    """Rewrite every matmul that meets the preconditions, in every Relax function."""
    if not target_info(target).has(dots.BF16_PAIRS.feature):
        return module
    return rewrite(module, target, _PairPacker, with_parameters=True)


@expr_functor.mutator
class _PairPacker(Packer):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.matmul") or str(call.ty.dtype) != "float32":
            return call
        x, w = (self._widened(operand) for operand in call.args)
        if x is None or w is None:
            return call
        x_shape, w_shape = static_shape(x), static_shape(w)
        if x_shape is None or w_shape is None or 0 in (*x_shape, *w_shape):
            return call
        if len(x_shape) < 2 or len(w_shape) != 2 or w_shape[0] % 2:
            return call
        if self.is_parameter_work(x) or not self.is_parameter_work(w):
            return call
        *outer, k = x_shape
        n = w_shape[1]
        rows = math.prod(outer)
        tile = dense_tile(rows, k // 2, n, "float32", self.target)  # a pair is as wide as a float32
        y = self.builder_.emit_te(
            lambda a, p: dense(a, p, n, tile),
            x if len(x_shape) == 2 else self.builder_.emit(relax.op.reshape(x, (rows, k))),
            self.panels(w, tile.columns, pack),
            primfunc_name_hint="dense",
            primfunc_attrs={"op_pattern": OP_PATTERN.out_fusable},
        )
        return y if len(x_shape) == 2 else relax.op.reshape(y, (*outer, n))

    def _widened(self, operand: Any) -> Any:
        """Return the bfloat16 tensor that `operand` casts to float32; None for other operands."""
        value = self.lookup_binding(operand) if isinstance(operand, relax.Var) else operand
        if not is_op(value, "relax.astype") or str(value.args[0].ty.dtype) != "bfloat16":
            return None
        return value.args[0]


def pack(weight: te.Tensor, columns: int) -> te.Tensor:
    """Lay a weight (K, N) out as (ceil(N / columns), K / 2, columns, 2), with the last
    panel zero-padded."""
    k, n = (int(extent) for extent in weight.shape)
    value = filled_up(weight, columns)
    return te.compute(
        (-(-n // columns), k // 2, columns, 2),
        lambda panel, pair, lane, term: value(pair * 2 + term, panel * columns + lane),
        name="pack",
    )


def dense(x: te.Tensor, panels: te.Tensor, n: int, tile: Tile) -> te.Tensor:
    """Multiply (M, K) bfloat16 by the panels of a (K, n) weight into (M, n) float32, like
    `pack_weights.dense`."""
    m, k = (int(extent) for extent in x.shape)
    axes = te.reduce_axis((0, k // 2), name="k"), te.reduce_axis((0, 2), name="term")

    def product(row: Any, panel: Any, j: Any) -> Any:
        pair, term = axes
        factors = x(row, pair * 2 + term), panels(panel, pair, j, term)
        left, right = (tirx.Cast("float32", factor) for factor in factors)
        return left * right

    return in_tiles((m, n), tile, product, axes, PAIRS)
