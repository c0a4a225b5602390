"""Replaces convolutions that equal a matmul, such as those whose window covers the whole image.

Before: `conv2d(x, w)` in the layouts NHWC and HWIO, without groups, padding or dilation, where no
extent is 0, and
- `w` (H, W, C, N) covers every image (B, H, W, C) at once, and only B may be symbolic, or
- `w` is (1, 1, C, N), there are no strides, and H or W is symbolic.

After: `reshape(matmul(reshape(x), reshape(w)))`, where a row is an image, or a pixel. None of the
reshapes moves data. A 1x1 convolution of larger images of static size is left alone: its kernel's
tiles lie along the rows of the image.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import conv_extents
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import exprs_of, is_static


def conv_as_matmul(module: IRModule, target: Target) -> IRModule:
    """Rewrite every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shapes = conv_extents(call)
        if shapes is None or int(call.attrs.groups) != 1 or any(call.attrs.padding):
            return call
        (x, w), attrs, (before, weight, after) = call.args, call.attrs, shapes
        *window, _, n = weight
        if any(int(dilation) != 1 for dilation in attrs.dilation):
            return call
        pixels = window == [1, 1] and not is_static(before[1:3])
        if pixels and any(int(stride) != 1 for stride in attrs.strides):
            return call
        if not pixels and before[1:3] != tuple(window):
            return call
        k = math.prod(weight[:-1])
        rows = self.builder_.emit(relax.op.reshape(x, exprs_of((math.prod(before) // k, k))))
        weights = self.builder_.emit(relax.op.reshape(w, (k, n)))
        product = self.builder_.emit(relax.op.matmul(rows, weights, attrs.out_dtype))
        return relax.op.reshape(product, exprs_of(after))
