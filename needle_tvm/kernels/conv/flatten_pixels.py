"""Puts the pixels of an image in one line for 1x1 convolutions if register tiles then fit better.

Before: `conv2d(x, w)` in the layouts NHWC and HWIO, where
- `w` is (1, 1, C, N),
- there are no strides, padding, dilation or groups, all shapes are static, no extent is 0, and
  the images have several rows and columns,
- tiles along all H * W pixels are estimated to take less time than tiles in an image's rows.

After: `reshape(conv2d(reshape(x), w))`, with images of H * W rows of one pixel. Neither reshape
moves data. A tile of 6 pixels covers rows of 7 or 14 pixels badly, and 49 or 196 pixels well.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import conv_shapes
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.conv.cpu_tiles import conv_cycles

_WORTH_IT = 0.97  # largest time that is worth it, as a fraction of the time of tiles in rows


def flatten_pixels(module: IRModule, target: Target) -> IRModule:
    """Rewrite every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter, with_parameters=True)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shapes = conv_shapes(call)
        if shapes is None:
            return call
        (x, w), attrs, (batch, height, width, n) = call.args, call.attrs, shapes[2]
        steps = [*attrs.strides, *attrs.dilation, attrs.groups]
        if shapes[1][:2] != (1, 1) or any(int(each) != 1 for each in steps):
            return call
        if any(int(each) for each in attrs.padding) or 1 in (height, width):
            return call
        terms, dtype = shapes[1][2], str(w.ty.dtype)
        step = terms * item_bytes(dtype)

        def cycles(rows: int, columns: int) -> float:
            return conv_cycles((batch, rows, columns, n), terms, dtype, self.target, None, step)

        if cycles(height * width, 1) > _WORTH_IT * cycles(height, width):
            return call
        pixels = self.builder_.emit(relax.op.reshape(x, (batch, height * width, 1, terms)))
        y = relax.Call(call.op, [pixels, w], attrs, call.ty_args)
        return relax.op.reshape(self.builder_.emit(y), shapes[2])
