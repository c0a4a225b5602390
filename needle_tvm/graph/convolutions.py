"""Helpers for the convolutions that passes match: NHWC images with HWIO weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from needle_tvm._tvm.names import relax
from needle_tvm.graph.dependence import is_op
from needle_tvm.tir.extents import is_static, shape_of
from needle_tvm.tir.functions import static_shape


def is_conv(expr: Any) -> TypeGuard[relax.Call]:
    """Return whether `expr` is a `conv2d` of NHWC images with HWIO weights and an NHWC result."""
    if not is_op(expr, "relax.nn.conv2d"):
        return False
    layouts = expr.attrs.data_layout, expr.attrs.kernel_layout, expr.attrs.out_layout
    return tuple(map(str, layouts)) == ("NHWC", "HWIO", "NHWC")


def conv_shapes(expr: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Return the shapes of a convolution's input, weights and result; None if one is empty or not
    static, or if `expr` is not such a convolution."""
    if not is_conv(expr):
        return None
    x, w, y = (static_shape(each) for each in (*expr.args, expr))
    if x is None or w is None or y is None or 0 in (*x, *w, *y):
        return None
    return x, w, y


def conv_extents(expr: Any) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]] | None:
    """Return the shapes as `conv_shapes` does, but let batch, rows and columns be symbolic."""
    if not is_conv(expr):
        return None
    x, w, y = shape_of(expr.args[0]), static_shape(expr.args[1]), shape_of(expr)
    if x is None or w is None or y is None or 0 in (*x, *w, *y):
        return None
    return (x, w, y) if is_static([x[3], y[3]]) and x[0] == y[0] else None


def with_weights(
    call: Any,
    w: Any,
    *,
    images: Any = None,
    strides: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int | None = None,
) -> Any:
    """Return the convolution `call` with the weights `w` and the given images and attributes."""
    attrs = call.attrs
    return relax.op.nn.conv2d(
        call.args[0] if images is None else images,
        w,
        strides=list(attrs.strides if strides is None else strides),
        padding=list(attrs.padding if padding is None else padding),
        dilation=list(attrs.dilation if dilation is None else dilation),
        groups=int(attrs.groups if groups is None else groups),
        data_layout="NHWC",
        kernel_layout="HWIO",
        out_dtype=attrs.out_dtype,
    )
