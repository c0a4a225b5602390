"""Dense layers and convolutions on packed weights.

Before: `matmul(x, w)` or `conv2d(x, w)` in the layouts NHWC and HWIO, without groups, where
- `w` depends on parameters of the function alone; its static shape is (K, N) or (kh, kw, C, N),
- `x` has a static shape, (..., K) or (B, H, W, C), and does not depend on parameters alone,
- both are float32 or float64 and no extent is 0.

After: `dense(x, pack_weight(w))` or `conv(x, pack_weight(w))`, where `pack_weight` lays `w` out as
panels `[ceil(N / nt)][...][nt]`, the last one filled up with zeros, and the product reads one panel
front to back for each register tile of rows (pixels, for a convolution) by columns. `pack_weight`
depends on the weights alone, so `LiftTransformParams` later moves it out of `main`; it is marked
opaque so that nothing is fused into it, while the elementwise ops after the product are fused into
its write-back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
from needle_tvm.passes.rewrite import rewrite
from needle_tvm.schedule.cpu import DENSE, Tile, dense_tile

_DTYPES = ("float32", "float64")
_MATMUL, _CONV2D = tvm.ir.Op.get("relax.matmul"), tvm.ir.Op.get("relax.nn.conv2d")


def pack_weights(module: IRModule, target: Target) -> IRModule:
    """Rewrite every product that meets the preconditions, in every Relax function."""
    return rewrite(
        module,
        lambda module, function: _Packer(module, target, parameters_of(function)),
        with_parameters=True,
    )


@expr_functor.mutator
class _Packer(expr_functor.PyExprMutator):  # type: ignore[name-defined]
    def __init__(self, module: IRModule, target: Target, parameters: set[Any]) -> None:
        super().__init__(module)
        self._target = target
        self._parameters = parameters
        self._packed: dict[tuple[Any, int], Any] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op not in (_MATMUL, _CONV2D):
            return call
        x, w = call.args
        x_shape, w_shape = static_shape(x), static_shape(w)
        if x_shape is None or w_shape is None or 0 in x_shape or 0 in w_shape:
            return call
        if x.ty.dtype not in _DTYPES or x.ty.dtype != w.ty.dtype:
            return call
        if not self._is_parameter_work(w) or self._is_parameter_work(x):
            return call
        if call.op == _CONV2D:
            return self._convolution(call, x, w)
        if len(w_shape) != 2 or len(x_shape) < 2:
            return call
        rows, (k, n) = math.prod(x_shape[:-1]), w_shape
        tile = dense_tile(rows, n, str(x.ty.dtype), self._target)
        if len(x_shape) > 2:
            x = self.builder_.emit(relax.op.reshape(x, (rows, k)))
        y = self._product(lambda a, p: dense(a, p, n, tile), x, w, tile, "dense")
        return relax.op.reshape(y, (*x_shape[:-1], n)) if len(x_shape) > 2 else y

    def _convolution(self, call: Any, x: Any, w: Any) -> Any:
        attrs = call.attrs
        layouts = tuple(map(str, (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)))
        if layouts != ("NHWC", "HWIO", "NHWC") or int(attrs.groups) != 1:
            return call
        top, left, bottom, right = (int(n) for n in attrs.padding)
        if top or left or bottom or right:
            padding = [0, 0, top, bottom, left, right, 0, 0]
            x = self.builder_.emit(relax.op.nn.pad(x, padding))
        batch, rows, columns, n = (int(extent) for extent in call.ty.shape.values)
        tile = dense_tile(batch * rows * columns, n, str(x.ty.dtype), self._target)
        window = Window(
            rows, columns, *(int(s) for s in attrs.strides), *(int(d) for d in attrs.dilation)
        )
        y = self._product(lambda a, p: conv(a, p, n, window, tile), x, w, tile, "conv")
        return relax.op.reshape(y, (batch, rows, columns, n))

    def _product(self, rule: Any, x: Any, w: Any, tile: Tile, name: str) -> Any:
        return self.builder_.emit_te(
            rule,
            x,
            self._panels(w, tile.columns),
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": OP_PATTERN.out_fusable},
        )

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
    """(..., N) -> (ceil(N / columns), ..., columns), zeros where the last panel is wider than N."""
    *inner, n = (int(extent) for extent in weight.shape)

    def element(panel: Any, *rest: Any) -> Any:
        *index, lane = rest
        column = panel * columns + lane
        value = weight(*index, column)
        if n % columns == 0:
            return value
        return tirx.if_then_else(column < n, value, tirx.const(0, weight.dtype))

    return te.compute((-(-n // columns), *inner, columns), element, name="pack")


def dense(x: te.Tensor, panels: te.Tensor, n: int, tile: Tile) -> te.Tensor:
    """(M, K) by panels of a (K, n) weight -> (M, n)."""
    m, k = (int(extent) for extent in x.shape)
    axis = te.reduce_axis((0, k), name="k")
    return _tiled(m, n, tile, panels, [axis], lambda row: x[row, axis], "dense")


@dataclass(frozen=True)
class Window:
    """What of a convolution's geometry its padded input and its weights do not say."""

    rows: int  # of the output
    columns: int
    row_stride: int
    column_stride: int
    row_dilation: int
    column_dilation: int


def conv(x: te.Tensor, panels: te.Tensor, n: int, window: Window, tile: Tile) -> te.Tensor:
    """(B, H, W, C), padded, by panels of a (kh, kw, C, n) weight -> (B * rows * columns, n).

    The pixels of all images are the rows of one product: nothing is copied to make them so.
    """
    taps = [
        te.reduce_axis((0, int(extent)), name=name)
        for extent, name in zip(panels.shape[1:4], ("dy", "dx", "c"), strict=True)
    ]
    dy, dx, channel = taps
    pixels = window.rows * window.columns

    def value(pixel: Any) -> Any:
        row, column = pixel % pixels // window.columns, pixel % window.columns
        return x[
            pixel // pixels,
            row * window.row_stride + dy * window.row_dilation,
            column * window.column_stride + dx * window.column_dilation,
            channel,
        ]

    return _tiled(int(x.shape[0]) * pixels, n, tile, panels, taps, value, "conv")


def _tiled(
    m: int,
    n: int,
    tile: Tile,
    panels: te.Tensor,
    axes: list[Any],
    value: Callable[[Any], Any],
    name: str,
) -> te.Tensor:
    """The (m, n) product of rows, whose elements `value(row)` reads at `axes`, and panels.

    The accumulator is kept in tiles of its own shape, so that the schedule can hold one tile in
    registers. Rows past the last read the last one again and are dropped in the write-back.
    """

    def product(block: Any, panel: Any, i: Any, j: Any) -> Any:
        row = block * tile.rows + i
        if m % tile.rows:
            row = tirx.min(row, tirx.const(m - 1, "int64"))
        return te.sum(value(row) * panels(panel, *axes, j), axis=axes)

    tiles = te.compute(
        (-(-m // tile.rows), panels.shape[0], tile.rows, tile.columns),
        product,
        name="tiles",
        attrs={DENSE: [tile.rows, tile.columns]},
    )
    return te.compute(
        (m, n),
        lambda i, j: tiles[i // tile.rows, j // tile.columns, i % tile.rows, j % tile.columns],
        name=name,
    )
