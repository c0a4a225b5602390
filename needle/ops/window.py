"""Windows that slide over the rows and columns of (N, H, W, C) tensors.

`SlidingWindows` copies every window, and `OverlapAdd` sums windows where they overlap. Each of them
is the gradient of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.dtypes import value_in
from ..autograd.shapes import Shape, Spec
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..errors import ShapeError
from ..op import Op, in_float32, register
from ..op.samples import Arg, error, sample
from ..op.signatures import Expr, Extent, TeNamespace, TeTensor
from . import _te
from ._windows import (
    IntOrPair,
    Pair,
    Window,
    as_window,
    check_rank,
    counts_te,
    overlap,
    pad,
    pad_te,
    pair,
    windows,
    windows_at,
)

_CASES: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 4, 5, 3), {"kernel": (2, 3)}),
    ((1, 5, 4, 2), {"kernel": (3, 3), "stride": (2, 1), "padding": (1, 1)}),
    ((1, 6, 5, 2), {"kernel": (2, 2), "stride": (3, 2), "dilation": (2, 3)}),
    ((1, 3, 3, 1), {"kernel": (1, 1), "stride": (2, 2)}),
    ((0, 3, 3, 2), {"kernel": (2, 2)}),
)


class _Sliding(Op):
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def window(self) -> Window:
        return as_window(self.name, self.kernel, self.stride, self.padding, self.dilation)


@register
class SlidingWindows(_Sliding):
    """y (N, rows, columns, kh, kw, C) = every window of x (N, H, W, C), padded with `value`."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    value: float = 0

    infer_first = True
    moves = True
    samples = (
        *(sample(Arg(shape), **attributes) for shape, attributes in _CASES),
        *(
            sample((1, 3, 3, 1), kernel=(2, 2), padding=(1, 0), value=value)
            for value in (1, -2.5, True)
        ),
    )
    error_samples = (
        error(ShapeError, r"\(3, 3\), not 4 axes", (3, 3), kernel=(1, 1)),
        error(ShapeError, "smaller than a window of 4", (1, 3, 3, 1), kernel=(4, 4)),
        error(ValueError, "stride", (1, 3, 3, 1), kernel=(1, 1), stride=(0, 1)),
        error(TypeError, "a pair of ints", (1, 3, 3, 1), kernel=(1, 1, 1)),
        error(TypeError, "not a Python number", (1, 3, 3, 1), kernel=(1, 1), value="0"),
        error(
            ValueError,
            "range of int32",
            Arg((1, 1, 1, 1), dtype="int32"),
            kernel=(1, 1),
            value=-(2**33),
        ),
    )

    def infer(self, x: Spec) -> Spec:
        check_rank(self.name, "the input", x, 4)
        value_in(self.name, self.value, x.dtype)
        n, h, w, c = x.shape
        counts = self.window.counts(self.name, (h, w))
        return Spec((n, *counts, *self.window.kernel, c), x.dtype, x.device)

    def reference(self, x: np.ndarray) -> np.ndarray:
        window = self.window
        counts = window.counts(self.name, x.shape[1:3])
        (p, q) = window.padding
        x = np.pad(
            x,
            ((0, 0), (p, p), (q, q), (0, 0)),
            constant_values=np.asarray(self.value).astype(x.dtype),
        )
        taps = [x[key] for _, _, key in window.keys(counts)]
        return np.stack(taps, 3).reshape(*x.shape[:1], *counts, *window.kernel, x.shape[3])

    def compute(self, x: NDArray) -> NDArray:
        window = self.window
        counts = window.counts(self.name, x.shape[1:3])
        value = value_in(self.name, self.value, x.dtype)
        return windows(pad(x, window, value), window, counts).compact()

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        _, h, w, _ = node.inputs[0].shape
        return apply(OverlapAdd((h, w), *self.window[1:]), (out_grad,))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        window = self.window
        n, h, w, c = x.shape
        (s, t), (d, e) = window.stride, window.dilation
        value = value_in(self.name, self.value, _te.dtype_of(x))
        x = pad_te(k, x, window, _te.full_like(k, x, value))
        shape = (n, *counts_te(window, h, w), *window.kernel, c)
        return k.te.compute(
            shape,
            lambda b, y, z, i, j, f: x[b, y * s + i * d, z * t + j * e, f],
            name="sliding_windows",
        )


@register
class OverlapAdd(Op):
    """y (N, *size, C) = windows (N, rows, columns, kh, kw, C), summed where they overlap."""

    size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    infer_first = True
    samples = tuple(
        sample(
            SlidingWindows(**attributes).infer(Spec(shape, "float32")).shape,
            size=shape[1:3],
            **{name: value for name, value in attributes.items() if name != "kernel"},
        )
        for shape, attributes in _CASES
    )
    error_samples = (
        error(ShapeError, r"\(3, 3\), not 6 axes", (3, 3), size=(3, 3)),
        error(ShapeError, r"\(3, 3\) windows.*\(2, 2\)", (1, 3, 3, 2, 2, 1), size=(3, 3)),
        error(TypeError, "bool", Arg((1, 2, 2, 2, 2, 1), dtype="bool"), size=(3, 3)),
    )

    def window_of(self, shape: Sequence[Extent]) -> Window:
        return as_window(self.name, tuple(shape[3:5]), self.stride, self.padding, self.dilation)

    def infer(self, x: Spec) -> Spec:
        check_rank(self.name, "the input", x, 6)
        if x.dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool; cast it to a number first")
        counts = self.window_of(x.shape).counts(self.name, self.size)
        if counts != x.shape[1:3]:
            raise ShapeError(
                f"{self.name}: the input has {x.shape[1:3]} windows, but size {self.size} has "
                f"{counts}"
            )
        return Spec((x.shape[0], *self.size, x.shape[5]), x.dtype, x.device)

    def reduction_length(self, x: Spec) -> int:
        return prod(x.shape[3:5])

    def reference(self, x: np.ndarray) -> np.ndarray:
        window = self.window_of(x.shape)
        (p, q) = window.padding
        out = np.zeros((x.shape[0], *window.padded(self.size), x.shape[5]), x.dtype)
        for i, j, key in window.keys(x.shape[1:3]):
            out[key] += x[:, :, :, i, j]
        return out[:, p : p + self.size[0], q : q + self.size[1]]

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        return overlap(x, self.window_of(x.shape), self.size)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return apply(SlidingWindows(*self.window_of(node.inputs[0].shape)), (out_grad,))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        window = self.window_of([int(n) if a in (3, 4) else n for a, n in enumerate(x.shape)])
        n, rows, columns, kh, kw, c = x.shape
        i = k.te.reduce_axis((0, kh), name="i")
        j = k.te.reduce_axis((0, kw), name="j")
        zero = _te.full_like(k, x, 0)

        def body(b: Expr, y: Expr, z: Expr, f: Expr) -> Expr:
            row, column, hits = windows_at(k, window, y, z, i, j)
            hit = k.tirx.all(*hits, row < rows, column < columns)
            return k.te.sum(k.tirx.if_then_else(hit, x[b, row, column, i, j, f], zero), axis=[i, j])

        return k.te.compute((n, *self.size, c), body, name="overlap_add")


def sliding_windows(
    a: Tensor,
    kernel: IntOrPair,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    value: float = 0,
) -> Tensor:
    """Return every window of `a` (N, H, W, C), padded with `value`: (N, rows, columns, kh, kw, C).

    `kernel` (kh, kw), `stride`, `padding` and `dilation` are ints or pairs (rows, columns). Raises
    ShapeError if no window fits.
    """
    window = as_window("sliding_windows", kernel, stride, padding, dilation)
    return apply(SlidingWindows(*window, value), (a,))


def overlap_add(
    a: Tensor,
    size: IntOrPair,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
) -> Tensor:
    """Return the windows `a` (N, rows, columns, kh, kw, C), summed where they overlap:
    (N, *size, C). `stride`, `padding` and `dilation` are as in `sliding_windows`."""
    window = as_window("overlap_add", 1, stride, padding, dilation)
    return apply(OverlapAdd(pair("overlap_add", "size", size, 0), *window[1:]), (a,))
