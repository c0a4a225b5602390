"""1-D convolutions as 2-D convolutions of images one row high.

Before: `conv1d(x, w)` in the layouts NCW and OIW, the shape of `w` static.

After: the NHWC, HWIO `conv2d` of `x` permuted and reshaped to (B, 1, W, C), with the same stride,
padding, dilation and groups along the row. Its result is reshaped and permuted back. In a chain of
convolutions, `sink_permutes` and `sink_units` leave only the first permutation and the last.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import exprs_of, shape_of
from needle_tvm.tir.functions import static_shape


def conv1d_as_conv2d(module: IRModule, target: Target) -> IRModule:
    """Rewrite every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.nn.conv1d"):
            return call
        (x, w), attrs, emit = call.args, call.attrs, self.builder_.emit
        layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
        image, window, result = shape_of(x), static_shape(w), shape_of(call)
        if layouts != ("NCW", "OIW", "NCW") or image is None or window is None or result is None:
            return call
        batch, inputs, width = image
        outputs, depth, taps = window
        row = emit(relax.op.permute_dims(x, [0, 2, 1]))
        row = emit(relax.op.reshape(row, exprs_of((batch, 1, width, inputs))))
        weights = emit(relax.op.permute_dims(w, [2, 1, 0]))
        weights = emit(relax.op.reshape(weights, (1, taps, depth, outputs)))
        before, after = (int(padding) for padding in attrs.padding)
        y = relax.op.nn.conv2d(
            row,
            weights,
            strides=(1, int(attrs.strides[0])),
            padding=(0, before, 0, after),
            dilation=(1, int(attrs.dilation[0])),
            groups=int(attrs.groups),
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=attrs.out_dtype,
        )
        y = emit(relax.op.reshape(emit(y), exprs_of((batch, result[2], outputs))))
        return relax.op.permute_dims(y, [0, 2, 1])
