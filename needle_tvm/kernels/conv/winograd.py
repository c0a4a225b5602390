"""Replaces 3x3 convolutions with Winograd's minimal filtering if that is estimated to be faster.

Before: `conv2d(x, w)` in the layouts NHWC and HWIO, where
- the window is 3x3, without strides, dilation or groups,
- `w` depends on parameters of the function alone, and `x` does not,
- images, rows and columns may be symbolic; no extent is 0, both are float32 or both float64, and
  the input and output channels fill vectors,
- the saved multiplications outweigh the cost of the transforms and of larger weights
  (`tile_size`), and the transformed image is not very large. For a symbolic batch, the decision
  assumes the geometric mean of its bounds; for symbolic rows or columns, it assumes a large image,
  since small images take little time either way.

After: `output(matmul(input(x), weight(w)))`. With a = m + 2, `input` transforms overlapping tiles
of the image into a x a numbers for each tile and channel, and `output` transforms the results of
the a * a matmuls into m x m results (`winograd_te`). Elementwise ops after the convolution are
fused into `output`. `weight` is work on parameters, which `LiftTransformParams` moves out of
`main`. `pack_weights` packs the matmuls' weights, as for dense layers.

With m = 2 a result is as exact as the direct sum. With m = 4 the transforms have larger
coefficients, and the rounding error is about three times as large.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm.names import OP_PATTERN, IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import conv_extents
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.conv import winograd_te
from needle_tvm.kernels.conv.cpu_tiles import LARGE, fetching
from needle_tvm.kernels.conv.winograd_te import WINDOW, Tiling
from needle_tvm.target.info import target_info

_DTYPES = ("float32", "float64")

# The cost of a transformed number, in multiply-adds of a matmul: the number is computed, written,
# and read again, often by another core. On Zen 4 the cost is 13 to 30, less for larger images.
_TRANSFORM = 20

# The cost of waiting for all cores two more times, between the transforms and the matmuls: 5 us.
_WAITS = 600_000

# Bytes of a transformed image: the image, its transform and the matmuls' results are in memory at
# the same time.
_LARGEST = 64 << 20

_WORTH = 0.8  # fraction of the direct time: a convolution must be clearly faster
_EXACT = 0.85  # fraction of the time with m = 2: a smaller gain is not worth the larger error


def winograd(module: IRModule, target: Target) -> IRModule:
    """Rewrite every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter, with_parameters=True)


def tile_size(output: tuple[int, int, int, int], channels: int, item: int) -> int | None:
    """Return m, where a tile has m x m results; None if the direct convolution is faster. `output`
    is (B, rows, columns, N); its elements are sums over `channels` and have `item` bytes."""
    batch, rows, columns, n = output

    def cost(places: int, numbers: int) -> float:
        """Return the cost of `numbers` matmuls of `places` rows each."""
        weights = numbers * channels * n
        return places * weights + fetching(weights, item)

    def transformed(m: int) -> float:
        tiles, numbers = Tiling(m, batch, (rows, columns), (0, 0)).tiles, _numbers(m)
        if transformed_bytes(m, output, channels, item) > _LARGEST:
            return math.inf
        return cost(tiles, numbers) + tiles * numbers * (channels + n) * _TRANSFORM + _WAITS

    small, large = transformed(2), transformed(4)
    worth = _WORTH * cost(batch * rows * columns, WINDOW**2)
    if small < worth and _EXACT * small <= large:
        return 2
    return 4 if large < worth else None


def transformed_bytes(m: int, output: tuple[int, int, int, int], channels: int, item: int) -> int:
    """Return the size in bytes of the transformed image or of its products, whichever is larger."""
    batch, rows, columns, n = output
    tiles = Tiling(m, batch, (rows, columns), (0, 0)).tiles
    return tiles * _numbers(m) * max(channels, n) * item


def _numbers(m: int) -> int:
    return (m + WINDOW - 1) ** 2


@expr_functor.mutator
class _Rewriter(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._weights: dict[tuple[Any, int], Any] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        tiling = self._tiling(call)
        if tiling is None:
            return call
        x, w = call.args
        seen = self.builder_.emit_te(
            lambda a, *sizes: winograd_te.transformed_input(a, tiling.of(sizes)),
            x,
            *tiling.sizes,
            primfunc_name_hint="winograd_input",
            primfunc_attrs={"op_pattern": OP_PATTERN.opaque},
        )
        products = self.builder_.emit(relax.op.matmul(seen, self._weight(w, tiling.m)))
        return self.builder_.call_te(
            lambda a, *sizes: winograd_te.transformed_output(a, tiling.of(sizes)),
            products,
            *tiling.sizes,
            primfunc_name_hint="winograd_output",
            primfunc_attrs={"op_pattern": OP_PATTERN.out_fusable},
        )

    def _tiling(self, call: Any) -> Tiling | None:
        shapes = conv_extents(call)
        if shapes is None:
            return None
        (x, w), attrs, (_, weight, output) = call.args, call.attrs, shapes
        *window, channels, n = weight
        plain = [*attrs.strides, *attrs.dilation, attrs.groups]
        if window != [WINDOW, WINDOW] or any(int(number) != 1 for number in plain):
            return None
        dtype = str(x.ty.dtype)
        if dtype not in _DTYPES or str(w.ty.dtype) != dtype:
            return None
        if self.is_parameter_work(x) or not self.is_parameter_work(w):
            return None
        item = item_bytes(dtype)
        if math.gcd(channels, n) % target_info(self.target).lanes(dtype):
            return None
        batch, rows, columns, _ = output
        sizes = self.middle(batch), self.large(rows, LARGE), self.large(columns, LARGE), n
        m = tile_size(sizes, channels, item)
        most = self.most(batch), self.most(rows), self.most(columns), n
        if m is None or transformed_bytes(m, most, channels, item) > _LARGEST:
            return None
        top, left = (int(zeros) for zeros in attrs.padding[:2])
        return Tiling(m, batch, (rows, columns), (top, left))

    def _weight(self, w: Any, m: int) -> Any:
        """Return `w` transformed, once for all layers that share it."""
        if (w, m) not in self._weights:
            self._weights[w, m] = self.builder_.emit_te(
                lambda weight: winograd_te.transformed_weight(weight, m),
                w,
                primfunc_name_hint="winograd_weight",
                primfunc_attrs={"op_pattern": OP_PATTERN.opaque},
            )
        return self._weights[w, m]
