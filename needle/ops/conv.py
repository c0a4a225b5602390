"""Convolution over (N, H, W, C), and the two ops of its gradient.

The scalar product <conv(x, w), g> is linear in x, w and g. Its derivatives with respect to g, x and
w are `Conv`, `ConvInput` and `ConvWeight`, so the gradients of each op are computed by the other
two, and gradients of any order need no further op.
"""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.node import Node
from ..autograd.shapes import Shape, Spec
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, convolution
from ..errors import ShapeError
from ..op import in_float32, register
from ..op.samples import Arg, error, sample
from ..op.signatures import ArrayGradients, Expr, Extent, Gradients, TeNamespace, TeTensor
from . import _conv, _te
from . import _conv_transpose as transposed
from ._windows import IntOrPair, Pair, as_window, counts_te, overlap, pad_te, windows_at

# An annotation of weight gradients without groups: [*stride, *padding, *dilation].
WEIGHT_GRADIENT = "needle.weight_gradient"


def _output(x: Shape, w: Shape, attributes: dict[str, Any]) -> Shape:
    return Conv(**attributes).output(x, w)


@register
class Conv(_conv.ConvOp):
    """y (N, rows, columns, O) = x (N, H, W, C) convolved with w (kh, kw, C / groups, O), where
    rows = (H + 2 padding - dilation (kh - 1) - 1) // stride + 1."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    samples = tuple(sample(x, w, **attributes) for x, w, attributes in _conv.GEOMETRIES)
    error_samples = (
        error(ShapeError, r"3 channels.*\(2, 2, 2, 4\)", (1, 4, 4, 3), (2, 2, 2, 4)),
        error(ShapeError, "first input .* 4 axes", (4, 4, 3), (2, 2, 3, 4)),
        error(ShapeError, "smaller than a window of 5", (1, 4, 4, 1), (5, 5, 1, 1)),
        error(ShapeError, "groups=2", (1, 4, 4, 4), (2, 2, 2, 3), groups=2),
        error(ValueError, "groups 0", (1, 4, 4, 4), (2, 2, 4, 3), groups=0),
        error(ValueError, "stride", (1, 4, 4, 4), (2, 2, 4, 3), stride=0),
        error(TypeError, "padding", (1, 4, 4, 4), (2, 2, 4, 3), padding="same"),
        error(TypeError, "bool", Arg((1, 2, 2, 1), dtype="bool"), Arg((1, 1, 1, 1), dtype="bool")),
    )

    def target(self, x: Shape, w: Shape) -> _conv.Shape4:
        return self.output(x, w)

    def reduction_length(self, x: Spec, w: Spec) -> int:
        return prod(w.shape[:3])

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        _, rows, columns, _ = self.output(x.shape, w.shape)
        return _conv.reference(x, w, self.window(w.shape), (rows, columns), self.groups)

    @in_float32
    def compute(self, x: NDArray, w: NDArray) -> NDArray:
        _, rows, columns, _ = self.output(x.shape, w.shape)
        return _conv.convolve(x, w, self.window(w.shape), (rows, columns), self.groups)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, w = node.inputs
        to_x = ConvInput(x.shape[1:3], **self.geometry)
        to_w = ConvWeight(w.shape[:2], **self.geometry)
        return (
            _as(apply(to_x, (out_grad, w)), x) if x.requires_grad else None,
            _as(apply(to_w, (x, out_grad)), w) if w.requires_grad else None,
        )

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        (x, w), (to_x, to_w) = node.saved, [n.requires_grad for n in node.input_nodes]
        if x.dtype != w.dtype:
            return NotImplemented
        given = self.geometry
        return (
            ConvInput(x.shape[1:3], **given).compute(out_grad, w) if to_x else None,
            ConvWeight(w.shape[:2], **given).compute(x, out_grad) if to_w else None,
        )

    def emit_te(self, k: TeNamespace, x: TeTensor, w: TeTensor) -> TeTensor:
        x, w = _te.promote(k, x, w)
        window = self.window(w.shape)
        n, h, width, _ = x.shape
        kh, kw, inputs, outputs = w.shape
        shape = (n, *counts_te(window, h, width), outputs)
        if _te.is_zero(inputs):
            return k.te.compute(shape, lambda *_: _te.full_like(k, x, 0))
        (s, t), (d, e) = window.stride, window.dilation
        each = outputs // self.groups
        padded = pad_te(k, x, window)
        i, j, f = _axes(k, i=kh, j=kw, f=inputs)

        def body(b: Expr, y: Expr, z: Expr, o: Expr) -> Expr:
            channel = f if self.groups == 1 else k.tirx.floordiv(o, each) * inputs + f
            seen = padded[b, y * s + i * d, z * t + j * e, channel]
            return k.te.sum(seen * w[i, j, f, o], axis=[i, j, f])

        return k.te.compute(shape, body, name="conv")

    def emit(self, r: ModuleType, x: Expr, w: Expr) -> Expr | None:
        if not _te.same_number(r, x, w):
            return None
        window = self.window(w.ty.shape)
        return r.op.nn.conv2d(
            x,
            w,
            strides=list(window.stride),
            padding=[*window.padding, *window.padding],
            dilation=list(window.dilation),
            groups=self.groups,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )


@register
class ConvInput(_conv.ConvOp):
    """y (N, *size, C) = the transposed convolution of outputs g (N, rows, columns, O) with
    w (kh, kw, C / groups, O). It is the gradient of conv for its input."""

    size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    # Whether padding meets an infinite weight (0 * inf) depends on the algorithm.
    samples = tuple(
        sample(Arg(_output(x, w, attributes), special=False), w, size=x[1:3], **attributes)
        for x, w, attributes in _conv.GEOMETRIES
    )
    error_samples = (
        error(ShapeError, r"\(1, 2, 2, 3\).*\(1, 3, 3, 3\)", (1, 2, 2, 3), (2, 2, 1, 3), size=4),
        error(ShapeError, "second input .* 4 axes", (1, 3, 3, 1), (2, 2), size=(4, 4)),
    )

    def target(self, g: Shape, w: Shape) -> _conv.Shape4:
        """Return the shape of the input whose convolution with a weight like `w` has g's shape."""
        h, width = as_window(self.name, self.size, 1, 0, 1).kernel
        shape = g[0], h, width, w[2] * self.groups
        expected = self.output(shape, w)
        if expected != tuple(g):
            raise ShapeError(
                f"{self.name}: outputs of shape {tuple(g)}; size {self.size} and a weight of "
                f"shape {tuple(w)} give {expected}"
            )
        return shape

    def reduction_length(self, g: Spec, w: Spec) -> int:
        return prod(w.shape[:2]) * w.shape[3]

    def reference(self, g: np.ndarray, w: np.ndarray) -> np.ndarray:
        window, (n, h, width, c) = self.window(w.shape), self.target(g.shape, w.shape)
        (p, q) = window.padding
        out = np.zeros((n, h + 2 * p, width + 2 * q, c), np.result_type(g, w))
        grouped = g.reshape((*g.shape[:3], self.groups, w.shape[3] // self.groups))
        for i, j, key in window.keys(g.shape[1:3]):
            tap = w[i, j].reshape((w.shape[2], self.groups, w.shape[3] // self.groups))
            part = np.einsum("nhwgo,cgo->nhwgc", grouped, tap)
            out[key] += part.reshape((*g.shape[:3], c))
        return out[:, p : p + h, q : q + width]

    @in_float32
    def compute(self, g: NDArray, w: NDArray) -> NDArray:
        window, (_, h, width, c) = self.window(w.shape), self.target(g.shape, w.shape)
        if _conv.direct(g, w, self.groups):
            return convolution.conv2d_input(g, w, (h, width), *window[1:])
        groups, taps, each = self.groups, window.kernel, c // self.groups
        reach = [d * (k - 1) - p for k, p, d in zip(taps, *window[2:], strict=True)]
        if window.stride == (1, 1) and min(reach) >= 0:
            # This is itself a convolution, without sums of overlapping windows.
            back = window._replace(padding=(reach[0], reach[1]))
            return _conv.convolve(g, _conv.mirrored(w, groups), back, (h, width), groups)
        seen = _conv.rows_of(g, groups) @ _conv.weights_of(w, groups).permute((0, 2, 1))
        seen = seen.reshape((groups, *g.shape[:3], *taps, each))
        seen = seen.permute((1, 2, 3, 4, 5, 0, 6)).reshape((*g.shape[:3], *taps, c))
        return overlap(seen, window, (h, width))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        g, w = node.inputs
        return (
            _as(apply(Conv(**self.geometry), (out_grad, w)), g) if g.requires_grad else None,
            _as(apply(ConvWeight(w.shape[:2], **self.geometry), (out_grad, g)), w)
            if w.requires_grad
            else None,
        )

    def emit_te(self, k: TeNamespace, g: TeTensor, w: TeTensor) -> TeTensor:
        g, w = _te.promote(k, g, w)
        window = self.window(w.shape)
        h, width = self._extents()
        n, rows, columns, _ = g.shape
        kh, kw, inputs, outputs = w.shape
        each = outputs // self.groups
        zero = _te.full_like(k, g, 0)
        i, j, f = _axes(k, i=kh, j=kw, f=each)

        def body(b: Expr, y: Expr, z: Expr, c: Expr) -> Expr:
            row, column, hits = windows_at(k, window, y, z, i, j)
            hit = k.tirx.all(*hits, row < rows, column < columns)
            o, channel = f, c
            if self.groups > 1:
                o = k.tirx.floordiv(c, inputs) * each + f
                channel = k.tirx.floormod(c, inputs)
            seen = k.tirx.if_then_else(hit, g[b, row, column, o], zero)
            return k.te.sum(seen * w[i, j, channel, o], axis=[i, j, f])

        return k.te.compute((n, h, width, inputs * self.groups), body, name="conv_input")

    def _extents(self) -> Any:
        """Return `size` as a pair; its elements may be TVM expressions."""
        return self.size if isinstance(self.size, tuple) else (self.size,) * 2

    def emit(self, r: ModuleType, g: Expr, w: Expr) -> Expr | None:
        if not _te.same_number(r, g, w):
            return None
        axes = transposed.axes_of(list(g.ty.shape), self.window(w.ty.shape), self._extents())
        return axes and transposed.emit(r, g, w, axes, self.groups)


@register
class ConvWeight(_conv.ConvOp):
    """y (*kernel, C / groups, O) = for each weight, the sum of x * g over the elements of x (N, H,
    W, C) that it multiplies and their outputs g (N, rows, columns, O). It is the gradient of conv
    for its weight."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    # Whether padding meets an infinite gradient (0 * inf) depends on the algorithm.
    samples = tuple(
        sample(x, Arg(_output(x, w, attributes), special=False), kernel=w[:2], **attributes)
        for x, w, attributes in _conv.GEOMETRIES
    )
    error_samples = (
        error(ShapeError, r"\(1, 2, 2, 3\).*\(1, 3, 3, 3\)", (1, 4, 4, 1), (1, 2, 2, 3), kernel=2),
        error(ShapeError, "groups=2", (1, 4, 4, 3), (1, 3, 3, 2), kernel=(2, 2), groups=2),
    )

    def target(self, x: Shape, g: Shape) -> _conv.Shape4:
        """Return the shape of the weight."""
        if self.groups >= 1 and x[3] % self.groups:
            raise ShapeError(
                f"{self.name}: {x[3]} channels are not a multiple of groups={self.groups}"
            )
        kh, kw = as_window(self.name, self.kernel, 1, 0, 1).kernel
        shape = kh, kw, x[3] // max(self.groups, 1), g[3]
        expected = self.output(x, shape)
        if expected != tuple(g):
            raise ShapeError(
                f"{self.name}: outputs of shape {tuple(g)}; an input of shape {tuple(x)} "
                f"and kernel {self.kernel} give {expected}"
            )
        return shape

    def reduction_length(self, x: Spec, g: Spec) -> int:
        return prod(g.shape[:3])

    def reference(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        shape = self.target(x.shape, g.shape)
        window, each = self.window(shape), g.shape[3] // self.groups
        (p, q) = window.padding
        x = np.pad(x, ((0, 0), (p, p), (q, q), (0, 0)))
        out = np.zeros(shape, np.result_type(x, g))
        grouped = g.reshape((*g.shape[:3], self.groups, each))
        for i, j, key in window.keys(g.shape[1:3]):
            seen = x[key].reshape((*g.shape[:3], self.groups, shape[2]))
            out[i, j] = np.einsum("nhwgc,nhwgo->cgo", seen, grouped).reshape(shape[2:])
        return out

    @in_float32
    def compute(self, x: NDArray, g: NDArray) -> NDArray:
        shape, groups = self.target(x.shape, g.shape), self.groups
        if _conv.direct(x, g, groups):
            return convolution.conv2d_weight(x, g, shape[:2], *self.window(shape)[1:])
        seen = _conv.columns_of(x, self.window(shape), g.shape[1:3], groups)
        out = seen.permute((0, 2, 1)) @ _conv.rows_of(g, groups)
        if groups > 1:
            out = out.permute((1, 0, 2))
        return out.reshape(shape)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, g = node.inputs
        to_x = ConvInput(x.shape[1:3], **self.geometry)
        return (
            _as(apply(to_x, (g, out_grad)), x) if x.requires_grad else None,
            _as(apply(Conv(**self.geometry), (x, out_grad)), g) if g.requires_grad else None,
        )

    def emit_te(self, k: TeNamespace, x: TeTensor, g: TeTensor) -> TeTensor:
        x, g = _te.promote(k, x, g)
        kernel = as_window(self.name, self.kernel, 1, 0, 1).kernel
        window = self.window(kernel)
        n, rows, columns, outputs = g.shape
        inputs, each = x.shape[3] // self.groups, outputs // self.groups
        shape = (*kernel, inputs, outputs)
        if _te.is_zero(n):
            return k.te.compute(shape, lambda *_: _te.full_like(k, x, 0))
        (s, t), (d, e) = window.stride, window.dilation
        padded = pad_te(k, x, window)
        b, y, z = _axes(k, b=n, y=rows, z=columns)

        def body(i: Expr, j: Expr, f: Expr, o: Expr) -> Expr:
            channel = f if self.groups == 1 else k.tirx.floordiv(o, each) * inputs + f
            seen = padded[b, y * s + i * d, z * t + j * e, channel]
            return k.te.sum(seen * g[b, y, z, o], axis=[b, y, z])

        geometry = [*window.stride, *window.padding, *window.dilation]
        notes = {WEIGHT_GRADIENT: geometry} if self.groups == 1 else {}
        return k.te.compute(shape, body, name="conv_weight", attrs=notes)


def _axes(k: TeNamespace, **extents: Extent) -> list[Expr]:
    return [k.te.reduce_axis((0, n), name=name) for name, n in extents.items()]


def _as(grad: Tensor, like: Tensor) -> Tensor:
    return grad if grad.dtype == like.dtype else grad.astype(like.dtype)


def conv(
    a: Tensor,
    b: Tensor,
    stride: IntOrPair = 1,
    padding: IntOrPair = 1,
    dilation: IntOrPair = 1,
    groups: int = 1,
) -> Tensor:
    """Return `a` (N, H, W, C) convolved with `b` (kh, kw, C / groups, O): (N, rows, columns, O).

    `stride`, `padding` (zeros on both sides) and `dilation` are ints or pairs (rows, columns);
    `groups` divides the channels. Raises ShapeError if shapes do not match or the kernel does not
    fit.
    """
    window = as_window("conv", 1, stride, padding, dilation)
    return apply(Conv(*window[1:], groups), (a, b))


def conv_input(
    a: Tensor,
    b: Tensor,
    size: IntOrPair,
    stride: IntOrPair = 1,
    padding: IntOrPair = 1,
    dilation: IntOrPair = 1,
    groups: int = 1,
) -> Tensor:
    """Return the transposed convolution of `a` (N, rows, columns, O) with `b` (kh, kw, C / groups,
    O): (N, *size, C). `stride`, `padding`, `dilation` and `groups` are those of `conv`, of which
    this is the transpose. Raises ShapeError unless an input of `size` gives an output of a's shape.
    """
    window = as_window("conv_input", size, stride, padding, dilation)
    return apply(ConvInput(*window, groups), (a, b))


def conv_weight(
    a: Tensor,
    b: Tensor,
    kernel: IntOrPair,
    stride: IntOrPair = 1,
    padding: IntOrPair = 1,
    dilation: IntOrPair = 1,
    groups: int = 1,
) -> Tensor:
    """Return the gradient of conv for its weight, (*kernel, C / groups, O): for each weight, the
    sum of a * b over the elements of `a` (N, H, W, C) that it multiplies and their outputs `b` (N,
    rows, columns, O). `kernel`, `stride`, `padding`, `dilation` and `groups` are those of `conv`.
    Raises ShapeError if the shapes do not match."""
    window = as_window("conv_weight", kernel, stride, padding, dilation)
    return apply(ConvWeight(*window, groups), (a, b))
