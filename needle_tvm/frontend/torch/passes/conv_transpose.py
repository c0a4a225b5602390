"""Transposed convolutions as convolutions followed by a pixel shuffle.

Before: `conv1d_transpose(x, w)`, `conv2d_transpose(x, w)` or `conv3d_transpose(x, w)` in the
layouts NCW, IOW and so on, where
- no extent is 0, and only the batch may be symbolic,
- no axis has both a stride and a dilation,
- padding cuts off only results to which the first, or the last, input contributes.

After: what `needle.ops` makes of a transposed convolution of channels last (`_conv_transpose`), of
images one row high for 1-D. A volume is its planes as images, where a result has a channel for each
plane of the kernel; results that fall on one plane are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle.ops._conv_transpose import Axis, axis_of, emit
from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import exprs_of, shape_of
from needle_tvm.tir.functions import static_shape

_LAYOUTS = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
    "relax.nn.conv3d_transpose": ("NCDHW", "IODHW"),
}
_ALONE = Axis(1, 1, 1, 1, 0, 0, 1, 0, 1)  # the rows of an image of one row


def conv_transpose(module: IRModule, target: Target) -> IRModule:
    """Rewrite every transposed convolution that meets the preconditions."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        layouts = next((_LAYOUTS[name] for name in _LAYOUTS if is_op(call, name)), None)
        if layouts is None:
            return call
        (x, w), attrs = call.args, call.attrs
        image, window, result = shape_of(x), static_shape(w), shape_of(call)
        if image is None or window is None or result is None or 0 in (*image, *window, *result):
            return call
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != layouts:
            return call
        if str(attrs.out_layout) != layouts[0]:
            return call
        given = (attrs.strides, attrs.padding[: len(window) - 2], attrs.dilation)
        numbers = zip(*([int(each) for each in numbers] for numbers in given), strict=True)
        sizes = zip(image[2:], result[2:], window[2:], strict=True)
        found = [axis_of(*size, *each) for size, each in zip(sizes, numbers, strict=True)]
        axes = [axis for axis in found if axis is not None]
        if len(axes) < len(found):
            return call
        return self._of_channels_last(x, w, axes, int(attrs.groups))

    def _of_channels_last(self, x: Any, w: Any, axes: Sequence[Axis], groups: int) -> Any:
        """The result for axes of any number."""
        op, emitted, rank = relax.op, self.builder_.emit, len(axes)
        batch, inputs, *extents = shape_of(x) or ()
        _, each, *kernel = static_shape(w) or ()
        x = emitted(op.permute_dims(x, [0, *range(2, rank + 2), 1]))
        w = emitted(op.permute_dims(w, [*range(2, rank + 2), 1, 0]))
        deep, high, wide = [_ALONE] * (3 - rank) + list(axes)
        planes = extents[0] if rank == 3 else 1
        if rank != 2:
            images = (batch * planes, *[1] * (2 - rank), *extents[rank == 3 :], inputs)
            x = emitted(op.reshape(x, exprs_of(images)))
        if rank == 1:
            w = emitted(op.reshape(w, (1, *kernel, each, inputs)))
        if rank == 3:
            w = emitted(op.permute_dims(w, [1, 2, 0, 3, 4]))
            w = emitted(op.reshape(w, (*kernel[1:], kernel[0] * each, inputs)))
        y = emitted(emit(relax, x, w, (high, wide), groups))
        size = [axis.size for axis in axes]
        if rank == 3:
            parts = (batch, planes, high.size * wide.size, groups, kernel[0], each)
            y = self._laid_over(emitted(op.reshape(y, exprs_of(parts))), deep)
        if rank != 2:
            y = emitted(op.reshape(y, exprs_of((batch, *size, groups * each))))
        return op.permute_dims(y, [0, rank + 1, *range(1, rank + 1)])

    def _laid_over(self, y: Any, axis: Axis) -> Any:
        """Add, for each plane of the result, what planes of the input give to it: (B, planes,
        pixels, groups, kernel, channels) -> (B, planes, pixels, groups, channels)."""
        op, emitted = relax.op, self.builder_.emit
        batch, _, pixels, groups, _, each = shape_of(y) or ()
        if axis.taps == 1 and axis.kernel == axis.stride:
            y = emitted(op.permute_dims(y, [0, 1, 4, 2, 3, 5]))
        else:
            if axis.before or axis.after:
                y = emitted(op.nn.pad(y, [0, 0, axis.before, axis.after, *[0] * 8]))
            phases = [self._phase(y, axis, first) for first in range(axis.stride)]
            y = phases[0] if len(phases) == 1 else emitted(op.concat(phases, axis=2))
        extents = (batch, axis.blocks * axis.stride, pixels, groups, each)
        y = emitted(op.reshape(y, exprs_of(extents)))
        if axis.begin or axis.size != axis.blocks * axis.stride:
            ends = [axis.begin], [axis.begin + axis.size]
            y = emitted(op.strided_slice(y, [1], *ends, assume_inbound=True))
        return y

    def _phase(self, y: Any, axis: Axis, first: int) -> Any:
        """The plane `first` of every block, (B, blocks, 1, pixels, groups, channels)."""
        op, emitted, total = relax.op, self.builder_.emit, None
        batch, _, pixels, groups, _, each = shape_of(y) or ()
        for tap, plane in enumerate(range(first, axis.kernel, axis.stride)):
            begin = axis.dilation * (axis.taps - 1 - tap)
            ends = [begin, plane], [begin + axis.blocks, plane + 1]
            part = emitted(op.strided_slice(y, [1, 4], *ends, assume_inbound=True))
            total = part if total is None else emitted(op.add(total, part))
        shape = exprs_of((batch, axis.blocks, 1, pixels, groups, each))
        if total is None:  # a stride beyond the kernel leaves planes between
            return emitted(op.zeros(shape, str(y.ty.dtype)))
        return emitted(op.reshape(total, shape))
