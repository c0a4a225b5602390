"""Transposed convolutions as convolutions followed by a pixel shuffle.

Before: `conv1d_transpose(x, w)` or `conv2d_transpose(x, w)` in the layouts NCW, IOW or NCHW, IOHW,
where
- all shapes are static and no extent is 0, there are no groups and no dilation,
- padding cuts off only results to which the first, or the last, input contributes.

After: an NHWC, HWIO `conv2d` of stride 1 whose output channels are those of a block of `s` x `s`
neighbouring results (`s` the stride), a permutation that lays the blocks out (Shi et al.,
"Real-time single image and video super-resolution", 2016), and a slice that applies the padding.
Along one axis, with K taps and T = ceil(K / s), result `q * s + r` of the unpadded convolution is
the sum over t of x[q - t] w[t * s + r]: T taps, in reverse, for each of the `s` values of r.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.functions import static_shape

_LAYOUTS = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
}


def conv_transpose(module: IRModule, target: Target) -> IRModule:
    """Rewrite every transposed convolution that meets the preconditions."""
    return rewrite(module, target, _Rewriter)


class _Axis(NamedTuple):
    """A transposed convolution along one axis, as a convolution of stride 1 into blocks."""

    stride: int
    taps: int  # of the convolution
    filled: int  # taps of the weights, padded to `taps * stride`
    before: int  # zeros before the input, and after it
    after: int
    blocks: int
    begin: int  # of the result in the blocks laid out
    size: int  # of the result


def _axis(size: int, taps: int, stride: int, padding: int, outputs: int) -> _Axis:
    count = -(-taps // stride)
    first, last = padding // stride, (outputs - 1 + padding) // stride
    return _Axis(
        stride,
        count,
        count * stride,
        count - 1 - first,
        last - (size - 1),
        last - first + 1,
        padding % stride,
        outputs,
    )


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        layouts = next((_LAYOUTS[name] for name in _LAYOUTS if is_op(call, name)), None)
        if layouts is None:
            return call
        (x, w), attrs = call.args, call.attrs
        image, window, result = (static_shape(each) for each in (x, w, call))
        if image is None or window is None or result is None or 0 in (*image, *window, *result):
            return call
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != layouts:
            return call
        if str(attrs.out_layout) != layouts[0] or int(attrs.groups) != 1:
            return call
        if any(int(dilation) != 1 for dilation in attrs.dilation):
            return call
        given = zip(image[2:], window[2:], attrs.strides, attrs.padding, result[2:], strict=False)
        axes = [_axis(n, k, int(s), int(p), m) for n, k, s, p, m in given]
        if any(axis.before < 0 or axis.after < 0 for axis in axes):
            return call
        if len(axes) == 1:  # 1-D: as an image one row high
            axes = [_axis(1, 1, 1, 0, 1), *axes]
        return self._convolution(x, w, attrs.out_dtype, axes)

    def _convolution(self, x: Any, w: Any, out_dtype: Any, axes: list[_Axis]) -> Any:
        op, emit = relax.op, self.builder_.emit
        (batch, inputs, *spatial), (_, outputs, *_) = static_shape(x) or (), static_shape(w) or ()
        high, wide = axes
        flat = len(spatial) == 1
        x = emit(op.permute_dims(x, [0, 2, 1] if flat else [0, 2, 3, 1]))
        if flat:
            x = emit(op.reshape(x, (batch, 1, spatial[0], inputs)))
        y = op.nn.conv2d(
            x,
            self._weights(w, axes),
            padding=(high.before, wide.before, high.after, wide.after),
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=out_dtype,
        )
        y = emit(y)
        extents = [axis.blocks * axis.stride for axis in axes]
        if high.stride * wide.stride > 1:
            blocks = (batch, high.blocks, wide.blocks, high.stride, wide.stride, outputs)
            y = emit(op.permute_dims(emit(op.reshape(y, blocks)), [0, 1, 3, 2, 4, 5]))
            y = emit(op.reshape(y, (batch, *extents, outputs)))
        begin, end = [a.begin for a in axes], [a.begin + a.size for a in axes]
        if begin != [0, 0] or end != extents:
            y = emit(op.strided_slice(y, [1, 2], begin, end, assume_inbound=True))
        if flat:
            y = emit(op.reshape(y, (batch, wide.size, outputs)))
        return op.permute_dims(y, [0, 2, 1] if flat else [0, 3, 1, 2])

    def _weights(self, w: Any, axes: list[_Axis]) -> Any:
        """(I, O, K...) -> (T, T, I, s * s * O), with the taps of every block in reverse."""
        op, emit, (high, wide) = relax.op, self.builder_.emit, axes
        inputs, outputs, *taps = static_shape(w) or ()
        if len(taps) == 1:
            taps = [1, *taps]
            w = emit(op.reshape(w, (inputs, outputs, *taps)))
        more = [axis.filled - count for axis, count in zip(axes, taps, strict=True)]
        if any(more):
            w = emit(op.nn.pad(w, [0, 0, 0, 0, 0, more[0], 0, more[1]]))
        parts = (inputs, outputs, high.taps, high.stride, wide.taps, wide.stride)
        w = emit(op.reshape(w, parts))
        for position, axis in ((2, high), (4, wide)):
            if axis.taps > 1:
                w = emit(op.flip(w, position))
        w = emit(op.permute_dims(w, [2, 4, 0, 3, 5, 1]))
        channels = math.prod((high.stride, wide.stride, outputs))
        return emit(op.reshape(w, (high.taps, wide.taps, inputs, channels)))
