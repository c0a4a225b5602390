"""Packs the weights of matmuls, and replaces the matmuls with a kernel that reads packed weights.

Before: `matmul(x, w)`, where
- `x` is (..., M, K) and `w` is (K, N), or (..., K, N) with the same leading axes; K and N are
  static,
- `x` depends on more than parameters of the function,
- `w` depends only on parameters; or at least four rows of `x` are multiplied by it, so that packing
  it in every call pays off,
- both are float32 or both float64, and no extent is 0.

After: `dense(x, pack_weight(w))`, where `pack_weight` lays `w` out as panels
`[ceil(N / nt)][K][nt]`, the last panel zero-padded. The matmul reads one panel front to back for
each register tile of rows by columns. `pack_weight` depends only on the weights, so
`LiftTransformParams` later moves it out of `main`. It is marked opaque so that nothing is fused
into it. The elementwise ops after the matmul are fused into the matmul's write-back. If `w` depends
on more than parameters, it is packed in each call, in a kernel fused with the views of `w`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from needle_tvm._tvm.names import OP_PATTERN, IRModule, Target, expr_functor, relax, te, tirx
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.dense.cpu import DENSE, Tile, dense_tile, symbolic_tile
from needle_tvm.tir.extents import (
    Size,
    expr_of,
    exprs_of,
    extent_of,
    is_static,
    shape_of,
    tiles_in,
)

Layout = Callable[[te.Tensor, int], te.Tensor]

_DTYPES = ("float32", "float64")
_FEWEST_ROWS = 4  # fewest rows of x for which packing w in every call pays off


def pack_weights(module: IRModule, target: Target) -> IRModule:
    """Rewrite every matmul that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _DensePacker, with_parameters=True)


class Packer(Rewriter):
    """The base class of passes that pack a layer's weights into panels."""

    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._packed: dict[tuple[Any, int], Any] = {}

    def panels(self, w: Any, columns: int, layout: Layout | None = None) -> Any:
        """Return `w` packed into panels by `layout` (default: `pack`). A weight that several layers
        share is packed once."""
        if (w, columns) not in self._packed:
            at_load = self.is_parameter_work(w)
            pattern = OP_PATTERN.opaque if at_load else OP_PATTERN.injective
            self._packed[w, columns] = self.builder_.emit_te(
                lambda weight: (layout or pack)(weight, columns),
                w,
                primfunc_name_hint="pack_weight" if at_load else "pack",
                primfunc_attrs={"op_pattern": pattern},
            )
        return self._packed[w, columns]


@expr_functor.mutator
class _DensePacker(Packer):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.matmul"):
            return call
        x, w = call.args
        x_shape, w_shape = shape_of(x), shape_of(w)
        if x_shape is None or w_shape is None or 0 in x_shape or 0 in w_shape:
            return call
        if x.ty.dtype not in _DTYPES or x.ty.dtype != w.ty.dtype:
            return call
        if self.is_parameter_work(x) or len(x_shape) < 2 or len(w_shape) < 2:
            return call
        *batch, k, n = w_shape
        if batch and batch != list(x_shape[:-2]):
            return call
        if not is_static((k, n)):
            return call
        count, rows = math.prod(batch), math.prod(x_shape[len(batch) : -1])
        if self.most(rows) < _FEWEST_ROWS and not self.is_parameter_work(w):
            return call
        tile = self._tile(rows, k, n, str(x.ty.dtype))
        outer = (count,) if batch else ()
        y = self.builder_.emit_te(
            lambda a, p: dense(a, p, n, tile),
            self._shaped(x, (*outer, rows, k)),
            self.panels(self._shaped(w, (*outer, k, n)), tile.columns),
            primfunc_name_hint="dense",
            primfunc_attrs={"op_pattern": OP_PATTERN.out_fusable},
        )
        return (
            y
            if len(x_shape) == 2 + len(outer)
            else relax.op.reshape(y, exprs_of((*x_shape[:-1], n)))
        )

    def _tile(self, rows: Size, k: int, n: int, dtype: str) -> Tile:
        if isinstance(rows, int):
            return dense_tile(rows, k, n, dtype, self.target)
        return symbolic_tile(k, n, dtype, self.target)

    def _shaped(self, x: Any, shape: tuple[Size, ...]) -> Any:
        if shape_of(x) == shape:
            return x
        return self.builder_.emit(relax.op.reshape(x, exprs_of(shape)))


def pack(weight: te.Tensor, columns: int) -> te.Tensor:
    """Lay a weight (..., N) out as (ceil(N / columns), ..., columns), with the last
    panel zero-padded."""
    *inner, n = map(extent_of, weight.shape)
    value = filled_up(weight, columns)

    def element(panel: Any, *at: Any) -> Any:
        place = (*at[:-1], panel * columns + at[-1])
        if n % columns == 0:
            return value(*place)
        # The panel is checked first, so that whole panels need no check for each lane.
        whole = (panel + 1) * columns <= n
        return tirx.if_then_else(whole, weight(*place), value(*place))

    return te.compute(exprs_of((-(-n // columns), *inner, columns)), element, name="pack")


def filled_up(weight: te.Tensor, columns: int) -> Callable[..., Any]:
    """Return a function from indices (..., column) to the element of a weight (..., N). Unless
    `columns` divides N, elements past the last column are zero."""
    n = int(weight.shape[-1])

    def value(*at: Any) -> Any:
        if n % columns == 0:
            return weight(*at)
        return tirx.if_then_else(at[-1] < n, weight(*at), tirx.const(0, weight.dtype))

    return value


def dense(x: te.Tensor, panels: te.Tensor, n: int, tile: Tile) -> te.Tensor:
    """Multiply (M, K) by the panels of a (K, n) weight into (M, n), with or without a batch axis.

    The accumulator has the shape of the tiles, so that the schedule can keep one tile in registers.
    Rows past the end repeat the last row, and the write-back drops them.
    """
    *batch, m, k = map(extent_of, x.shape)
    axis = te.reduce_axis((0, k), name="k")

    def term(*at: Any) -> Any:
        *b, row, panel, j = at
        return x(*b, row, axis) * panels(panel, *b, axis, j)

    return in_tiles((*batch, m, n), tile, term, [axis], DENSE)


def in_tiles(
    shape: Sequence[Size],
    tile: Tile,
    term: Callable[..., Any],
    axes: Sequence[Any],
    annotation: str,
) -> te.Tensor:
    """Sum `term(..., row, panel, column of the panel)` over `axes` into (..., M, n). The block has
    `annotation`, which selects its scheduling rule."""
    *batch, m, n = shape
    blocks, whole = tiles_in(m, tile.rows)

    def product(*at: Any) -> Any:
        *b, block, panel, i, j = at
        row = block * tile.rows + i
        if not whole:
            row = tirx.min(row, expr_of(m) - 1)
        return te.sum(term(*b, row, panel, j), axis=axes)

    tiles = te.compute(
        exprs_of((*batch, blocks, -(-n // tile.columns), tile.rows, tile.columns)),
        product,
        name="tiles",
        attrs={annotation: [tile.rows, tile.columns]},
    )

    def element(*at: Any) -> Any:
        *b, i, j = at
        return tiles(*b, i // tile.rows, j // tile.columns, i % tile.rows, j % tile.columns)

    return te.compute(exprs_of((*batch, m, n)), element, name="dense")
