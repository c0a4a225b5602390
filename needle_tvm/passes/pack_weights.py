"""Dense layers on packed weights.

Before: `matmul(x, w)`, where
- `w` depends on parameters of the function alone and has a static shape (K, N),
- `x` has a static shape (..., K) and does not depend on parameters alone,
- both are float32 or float64 and no extent is 0.

After: `dense(x, pack_weight(w))`, where `pack_weight` lays `w` out as panels
`[ceil(N / nt)][K][nt]`, the last one filled up with zeros, and `dense` reads one panel front to
back for each register tile. `pack_weight` depends on the weights alone, so `LiftTransformParams`
later moves it out of `main`; it is marked opaque so that nothing is fused into it, while the
elementwise ops after `dense` are fused into its write-back.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm import (
    OP_PATTERN,
    IRModule,
    Target,
    expr_functor,
    relax,
    static_shape,
    te,
    tirx,
    tvm,
)
from needle_tvm.passes.dependence import is_parameter_work, parameters_of
from needle_tvm.schedule.cpu import DENSE, Tile, dense_tile

_DTYPES = ("float32", "float64")


def pack_weights(module: IRModule, target: Target) -> IRModule:
    """Rewrite every `matmul` that meets the preconditions, in every Relax function."""
    for name, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and "num_input" in (function.attrs or {}):
            mutator = _Packer(module, target, parameters_of(function))
            mutator.builder_.update_func(name, mutator.visit_expr(function))
            module = mutator.builder_.get()
    return module


@expr_functor.mutator
class _Packer(expr_functor.PyExprMutator):  # type: ignore[name-defined]
    def __init__(self, module: IRModule, target: Target, parameters: set[Any]) -> None:
        super().__init__(module)
        self._target = target
        self._parameters = parameters
        self._packed: dict[tuple[Any, int], Any] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != tvm.ir.Op.get("relax.matmul"):
            return call
        x, w = call.args
        if not self._is_parameter_work(w) or self._is_parameter_work(x):
            return call
        x_shape, w_shape = static_shape(x), static_shape(w)
        if x_shape is None or w_shape is None or len(w_shape) != 2 or len(x_shape) < 2:
            return call
        if 0 in x_shape or 0 in w_shape or x.ty.dtype not in _DTYPES or x.ty.dtype != w.ty.dtype:
            return call
        rows, (k, n) = math.prod(x_shape[:-1]), w_shape
        tile = dense_tile(rows, n, k, str(x.ty.dtype), self._target)
        if len(x_shape) > 2:
            x = self.builder_.emit(relax.op.reshape(x, (rows, k)))
        y = self.builder_.emit_te(
            lambda a, p: dense(a, p, n, tile),
            x,
            self._panels(w, tile.columns),
            primfunc_name_hint="dense",
            primfunc_attrs={"op_pattern": OP_PATTERN.out_fusable},
        )
        return relax.op.reshape(y, (*x_shape[:-1], n)) if len(x_shape) > 2 else y

    def _is_parameter_work(self, expr: Any) -> bool:
        return is_parameter_work(expr, self._parameters, self.lookup_binding)

    def _panels(self, w: Any, columns: int) -> Any:
        """`w` in panels; packed once however many layers share it."""
        if (w, columns) not in self._packed:
            self._packed[w, columns] = self.builder_.emit_te(
                lambda weight: pack(weight, columns),
                w,
                primfunc_name_hint="pack_weight",
                primfunc_attrs={"op_pattern": OP_PATTERN.opaque},
            )
        return self._packed[w, columns]


def pack(weight: te.Tensor, columns: int) -> te.Tensor:
    """(K, N) -> (ceil(N / columns), K, columns), zeros where the last panel is wider than N."""
    k, n = (int(extent) for extent in weight.shape)

    def element(panel: Any, row: Any, lane: Any) -> Any:
        column = panel * columns + lane
        if n % columns == 0:
            return weight[row, column]
        return tirx.if_then_else(column < n, weight[row, column], tirx.const(0, weight.dtype))

    return te.compute((-(-n // columns), k, columns), element, name="pack")


def dense(x: te.Tensor, panels: te.Tensor, n: int, tile: Tile) -> te.Tensor:
    """(M, K) by panels of a (K, n) weight -> (M, n).

    The accumulator is kept in tiles of its own shape, so that the schedule can hold one tile in
    registers. Rows past M read the last row again and are dropped in the write-back.
    """
    m, k = (int(extent) for extent in x.shape)
    row_blocks = -(-m // tile.rows)
    axis = te.reduce_axis((0, k), name="k")

    def product(block: Any, panel: Any, i: Any, j: Any) -> Any:
        row = block * tile.rows + i
        if m % tile.rows:
            row = tirx.min(row, tirx.const(m - 1, "int64"))
        return te.sum(x[row, axis] * panels[panel, axis, j], axis=axis)

    tiles = te.compute(
        (row_blocks, panels.shape[0], tile.rows, tile.columns),
        product,
        name="tiles",
        attrs={DENSE: [tile.rows, tile.columns]},
    )
    return te.compute(
        (m, n),
        lambda i, j: tiles[i // tile.rows, j // tile.columns, i % tile.rows, j % tile.columns],
        name="dense",
    )
