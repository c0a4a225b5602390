"""3-D convolutions as 2-D convolutions of images.

Before: `conv3d(x, w)` in the layouts NCDHW and OIDHW, the shape of `w` and the number of planes of
`x` static, no extent 0.

After: NHWC, HWIO `conv2d`s of the planes of `x`, permuted to channels last, with the same stride,
padding and dilation along rows and columns. Without groups the `kd` planes that a result reads are
side by side in the channels of one image. With groups each of them has a convolution, and these are
added: the channels of a group would not stay together. The result is permuted back; in a chain of
convolutions `sink_permutes` leaves only the first permutation and the last.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import exprs_of, shape_of
from needle_tvm.tir.functions import static_shape

_LAYOUTS = ("NCDHW", "OIDHW", "NCDHW")


def conv3d_as_conv2d(module: IRModule, target: Target) -> IRModule:
    """Rewrite every convolution that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.nn.conv3d"):
            return call
        (x, w), attrs, emit = call.args, call.attrs, self.builder_.emit
        layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
        volume, window, result = shape_of(x), static_shape(w), shape_of(call)
        if layouts != _LAYOUTS or volume is None or window is None or result is None:
            return call
        if not isinstance(volume[2], int) or 0 in (*volume, *window, *result):
            return call
        planes = self._planes(x, window[2], result[2], attrs)
        together = int(attrs.groups) == 1 and len(planes) > 1
        if together:
            planes = [emit(relax.op.concat(planes, axis=4))]
        weights = self._weights(w, window, together)
        images = [self._convolved(*each, attrs) for each in zip(planes, weights, strict=True)]
        y = images[0]
        for other in images[1:]:
            y = emit(relax.op.add(y, other))
        batch, _, count, rows, columns = result
        y = emit(relax.op.reshape(y, exprs_of((batch, count, rows, columns, window[0]))))
        return relax.op.permute_dims(y, [0, 4, 1, 2, 3])

    def _planes(self, x: Any, taps: int, count: Any, attrs: Any) -> list[Any]:
        """For each tap along the depth the planes (B, count, H, W, C) that the results read."""
        emit, before = self.builder_.emit, int(attrs.padding[0])
        stride, dilation = int(attrs.strides[0]), int(attrs.dilation[0])
        x = emit(relax.op.permute_dims(x, [0, 2, 3, 4, 1]))
        after = int(attrs.padding[3])
        if before or after:
            x = emit(relax.op.nn.pad(x, [0, 0, before, after, 0, 0, 0, 0, 0, 0]))
        if taps == 1 and stride == 1:
            return [x]
        return [
            emit(
                relax.op.strided_slice(
                    *(x, [1], [tap * dilation], [tap * dilation + (count - 1) * stride + 1]),
                    *([stride],),
                    assume_inbound=True,
                )
            )
            for tap in range(taps)
        ]

    def _weights(self, w: Any, window: tuple[int, ...], together: bool) -> list[Any]:
        """The weights (kh, kw, in, out) of each convolution: of one, or of one for each plane."""
        op, emit = relax.op, self.builder_.emit
        outputs, depth, taps, *kernel = window
        if together:
            w = emit(op.permute_dims(w, [3, 4, 2, 1, 0]))
            return [emit(op.reshape(w, (*kernel, taps * depth, outputs)))]
        w = emit(op.permute_dims(w, [2, 3, 4, 1, 0]))
        each = [
            emit(op.strided_slice(w, [0], [tap], [tap + 1], assume_inbound=True))
            for tap in range(taps if taps > 1 else 0)
        ]
        return [emit(op.reshape(part, (*kernel, depth, outputs))) for part in each or [w]]

    def _convolved(self, planes: Any, weights: Any, attrs: Any) -> Any:
        """The convolution of planes (B, D, H, W, C), as images (B * D, H, W, C)."""
        batch, depth, *image = shape_of(planes) or ()
        images = self.builder_.emit(relax.op.reshape(planes, exprs_of((batch * depth, *image))))
        padding = [int(zeros) for zeros in attrs.padding]
        y = relax.op.nn.conv2d(
            images,
            weights,
            strides=[int(step) for step in attrs.strides[1:]],
            padding=(*padding[1:3], *padding[4:]),
            dilation=[int(step) for step in attrs.dilation[1:]],
            groups=int(attrs.groups),
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=attrs.out_dtype,
        )
        return self.builder_.emit(y)
