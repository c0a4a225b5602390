"""Replaces the gradient with respect to a convolution's weights with a convolution.

Before: a call to the op `conv_weight` (x, g) without groups, in float32 or float64, where all
shapes are static and no extent is 0. Its result is (kh, kw, C, N), for images `x` (B, H, W, C) and
the gradient `g` (B, Y, Z, N) with respect to the convolution's output.

After: `taps(conv2d(permute(x), permute(g)))`, with `x` as images (C, H, W, B) and `g` as weights
(Y, Z, B, N). Convolutions have fast kernels. An output pixel of this convolution is a tap of the
original, so strides and dilation are exchanged. The results of taps that meet only padding are
zeros and are not computed, and an infinite gradient that meets only padding gives no NaN.

`taps` permutes (C, kh, kw, N) to (kh, kw, C, N). It is a function of its own, which no pass moves:
`fuse_planes` lets TVM fuse it into the convolution, whose kernel then writes the gradient in the
layout of the weights, which the norm of a gradient and an optimizer read several times.

A sum over many pixels is computed in parts, one for each group of images, which are then added: the
error of adding n float32 products one after another grows with n.
"""

from __future__ import annotations

from typing import Any

from needle.ops.conv import WEIGHT_GRADIENT
from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax, te
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.conv.cpu import TAPS
from needle_tvm.kernels.conv.trim_taps import trimmed
from needle_tvm.tir.functions import NODES, nodes_in, static_shape

_DTYPES = ("float32", "float64")  # in half precision, every partial sum would be rounded
_TERMS = 512  # terms of a sum that is computed in one part


def weight_gradients(module: IRModule, target: Target) -> IRModule:
    """Rewrite every call that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Rewriter)


@expr_functor.mutator
class _Rewriter(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._geometries: dict[Any, list[int] | None] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        geometry = self._geometry(call)
        if geometry is None:
            return call
        x, g = call.args[1].fields
        images, gradient, result = map(static_shape, (x, g, call))
        if not all(each.ty.dtype in _DTYPES for each in (x, g)):
            return call
        if images is None or gradient is None or result is None or 0 in (*images, *gradient):
            return call
        stride, padding, dilation = geometry[:2], geometry[2:4], geometry[4:]
        emit, op = self.builder_.emit, relax.op
        sides, behind = [], []
        for axis in (0, 1):
            size, taps, outputs = (shape[axis] for shape in (images[1:], result, gradient[1:]))
            side = trimmed(size, taps, outputs, stride[axis], dilation[axis], (padding[axis], 0))
            reach = dilation[axis] * (side.end - side.first - 1) + stride[axis] * (outputs - 1) + 1
            sides.append(side)
            behind.append(reach - size - side.before)
        ends = [images[1 + axis] + min(0, behind[axis]) for axis in (0, 1)]
        if min(ends) <= 0:
            return call
        if min(behind) < 0:  # rows that no window reaches
            x = emit(op.strided_slice(x, [1, 2], [0, 0], ends, assume_inbound=True))
        parts = _parts(images[0], gradient[1] * gradient[2])
        weights = emit(op.permute_dims(g, [1, 2, 0, 3]))
        if parts > 1:
            batch, y, z, n = gradient
            weights = emit(op.reshape(weights, (y, z, parts, batch // parts, n)))
            weights = emit(op.permute_dims(weights, [0, 1, 3, 2, 4]))
            weights = emit(op.reshape(weights, (y, z, batch // parts, parts * n)))
        convolved = emit(
            op.nn.conv2d(
                emit(op.permute_dims(x, [3, 1, 2, 0])),
                weights,
                strides=dilation,
                padding=[*(side.before for side in sides), *(max(0, zeros) for zeros in behind)],
                dilation=stride,
                groups=parts,
                data_layout="NHWC",
                kernel_layout="HWIO",
            )
        )
        if parts > 1:
            kept = [side.end - side.first for side in sides]
            convolved = emit(op.reshape(convolved, (images[3], *kept, parts, result[3])))
            convolved = emit(op.sum(convolved, axis=3))
        widths = [
            count
            for side, taps in zip(sides, result[:2], strict=True)
            for count in (side.first, taps - side.end)
        ]
        if any(widths):
            convolved = emit(op.nn.pad(convolved, [0, 0, *widths, 0, 0]))
        return self._taps_first(convolved)

    def _taps_first(self, convolved: Any) -> Any:
        """Return (C, kh, kw, N) as (kh, kw, C, N)."""
        c, rows, columns, n = static_shape(convolved) or ()
        shape = rows, columns, c, n
        if rows == columns == 1:
            return relax.op.reshape(convolved, shape)

        def taps(y: te.Tensor) -> te.Tensor:
            return te.compute(shape, lambda i, j, c, n: y(c, i, j, n), name="taps", attrs={TAPS: 1})

        return self.builder_.call_te(taps, convolved, primfunc_name_hint="taps")

    def _geometry(self, call: Any) -> list[int] | None:
        """Return stride, padding and dilation of the convolution; None if `call` is not such a
        gradient."""
        if not is_op(call, "relax.call_tir"):
            return None
        function = call.args[0]
        if function not in self._geometries:
            body = self.module[function].body
            found = [
                block.annotations[WEIGHT_GRADIENT]
                for block in nodes_in(body, NODES.sblock)
                if WEIGHT_GRADIENT in block.annotations
            ]
            self._geometries[function] = [int(each) for each in found[0]] if found else None
        return self._geometries[function]


def _parts(batch: int, pixels: int) -> int:
    """Return the largest number of equal groups of images that have at least _TERMS pixels each."""
    parts = range(max(1, min(batch, batch * pixels // _TERMS)), 0, -1)
    return next(count for count in parts if batch % count == 0)
