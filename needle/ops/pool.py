"""Pooling over the rows and columns of (N, H, W, C)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Shape, Spec
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..errors import ShapeError
from ..op import Op, in_float32, register
from ..op.samples import Arg, ErrorSample, Sample, error, sample
from ..op.signatures import Array, Expr, TeNamespace, TeTensor
from . import _te
from ._windows import IntOrPair, Pair, Window, as_window, check_rank, counts_te, lowest, pad, pad_te
from .index import one_hot
from .reduce import argmax
from .shape import broadcast_to, reshape, transpose
from .window import overlap_add, sliding_windows

_CASES: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 4, 5, 3), {"kernel": (2, 3)}),
    ((1, 5, 4, 2), {"kernel": (3, 3), "stride": (2, 1), "padding": (1, 1)}),
    ((1, 6, 5, 2), {"kernel": (2, 2), "stride": (3, 2)}),
    ((1, 3, 3, 1), {"kernel": (1, 1)}),
    ((0, 3, 3, 2), {"kernel": (2, 2)}),
)


class _Pool(Op):
    kernel: Pair
    stride: Pair
    padding: Pair

    infer_first = True
    error_samples: ClassVar[Sequence[ErrorSample]] = (
        error(ShapeError, r"\(3, 3\), not 4 axes", (3, 3), kernel=2),
        error(ShapeError, "smaller than a window of 4", (1, 3, 3, 1), kernel=4),
        error(ValueError, "stride", (1, 3, 3, 1), kernel=1, stride=0),
        error(ValueError, "padding .* half", (1, 3, 3, 1), kernel=2, padding=2),
    )

    @property
    def window(self) -> Window:
        dilation = getattr(self, "dilation", 1)
        return as_window(self.name, self.kernel, self.stride, self.padding, dilation)

    def infer(self, x: Spec) -> Spec:
        check_rank(self.name, "the input", x, 4)
        window = self.window
        if any(2 * p > k for p, k in zip(window.padding, window.kernel, strict=True)):
            # Otherwise, a window could lie entirely in the padding.
            raise ValueError(
                f"{self.name}: padding {self.padding} is more than half of kernel {self.kernel}"
            )
        n, h, w, c = x.shape
        return Spec((n, *window.counts(self.name, (h, w)), c), self.dtype_of(x.dtype), x.device)

    def dtype_of(self, dtype: str) -> str:
        return dtype

    def taps(self, x: Array) -> list[Array]:
        """Return, for each tap, the elements of a padded array that the windows read at it."""
        window = self.window
        (p, q) = window.padding
        counts = window.counts(self.name, (x.shape[1] - 2 * p, x.shape[2] - 2 * q))
        return [x[key] for _, _, key in window.keys(counts)]

    def padded(self, x: np.ndarray, value: float) -> np.ndarray:
        """Return x with `value` around its rows and columns."""
        (p, q) = self.window.padding
        return np.pad(x, ((0, 0), (p, p), (q, q), (0, 0)), constant_values=value)

    def reduced(
        self, k: TeNamespace, x: TeTensor, reducer: _te.Reducer, around: Expr | None
    ) -> TeTensor:
        """Apply `reducer` to the windows of x, which is padded with `around`."""
        window = self.window
        n, h, w, c = x.shape
        (s, t), (d, e) = window.stride, window.dilation
        x = pad_te(k, x, window, around)
        i = k.te.reduce_axis((0, window.kernel[0]), name="i")
        j = k.te.reduce_axis((0, window.kernel[1]), name="j")
        return k.te.compute(
            (n, *counts_te(window, h, w), c),
            lambda b, y, z, f: reducer(x[b, y * s + i * d, z * t + j * e, f], axis=[i, j]),
            name=self.name,
        )


@register
class MaxPool(_Pool):
    """y (N, rows, columns, C) = the largest element of each window of x (N, H, W, C), or NaN if the
    window contains NaN. The gradient flows to the first of several largest elements."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    reads = frozenset({"inputs"})
    samples = (
        *(sample(shape, **attributes) for shape, attributes in _CASES),
        sample((1, 6, 6, 2), kernel=(2, 2), dilation=(2, 3), padding=(1, 0)),
        # Difference quotients cannot test ties.
        Sample((Arg((2, 4, 4, 2), 0, 2, dtype="int32"),), {"kernel": (2, 2)}),
    )
    error_samples = (
        *_Pool.error_samples,
        error(TypeError, "bool", Arg((1, 3, 3, 1), dtype="bool"), kernel=2),
    )

    def dtype_of(self, dtype: str) -> str:
        if dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool; cast it to a number first")
        return dtype

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.maximum.reduce(self.taps(self.padded(x, lowest(x.dtype.name))))

    def compute(self, x: NDArray) -> NDArray:
        first, *rest = self.taps(pad(x, self.window, lowest(x.dtype)))
        if not rest:
            return first.copy()
        for tap in rest:
            first = first.maximum(tap)
        return first

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        window = self.window
        _, h, w, c = x.shape
        seen = sliding_windows(x, *window, value=lowest(x.dtype))
        shape, taps = seen.shape, prod(window.kernel)
        place = argmax(reshape(seen, (*shape[:3], taps, c)), 3)
        chosen = transpose(one_hot(place, taps, x.dtype))
        share = chosen * reshape(out_grad, (*shape[:3], 1, c))
        return overlap_add(reshape(share, shape), (h, w), *window[1:])

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return self.reduced(k, x, *_te.largest(k, _te.dtype_of(x)))


@register
class AvgPool(_Pool):
    """y (N, rows, columns, C) = the mean of each window of x (N, H, W, C). Padding counts as zeros;
    integers are averaged in float64."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)

    samples = tuple(sample(shape, **attributes) for shape, attributes in _CASES)

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def reduction_length(self, x: Spec) -> int:
        return prod(self.window.kernel)

    def reference(self, x: np.ndarray) -> np.ndarray:
        taps = self.taps(self.padded(x.astype(self.dtype_of(x.dtype.name)), 0))
        return np.add.reduce(taps) / np.asarray(len(taps), taps[0].dtype)

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        x = x.astype(self.dtype_of(x.dtype), copy=False)
        total, *rest = taps = self.taps(pad(x, self.window))
        for tap in rest:
            total = total + tap
        return total / float(len(taps))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        _, h, w, _ = node.inputs[0].shape
        window = self.window
        n, rows, columns, c = out_grad.shape
        share = reshape(out_grad / prod(window.kernel), (n, rows, columns, 1, 1, c))
        share = broadcast_to(share, (n, rows, columns, *window.kernel, c))
        return overlap_add(share, (h, w), *window[1:])

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        total = self.reduced(k, x, k.te.sum, None)
        return k.topi.divide(total, _te.full_like(k, x, prod(self.window.kernel)))


def max_pool(
    a: Tensor,
    kernel: IntOrPair,
    stride: IntOrPair | None = None,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
) -> Tensor:
    """Return the largest element of each window of `a` (N, H, W, C): (N, rows, columns, C).

    `kernel`, `stride` (None: the same as `kernel`), `padding` and `dilation` are ints or pairs
    (rows, columns). Raises ShapeError if no window fits, ValueError for padding of more than half a
    window.
    """
    window = as_window("max_pool", kernel, kernel if stride is None else stride, padding, dilation)
    return apply(MaxPool(*window), (a,))


def avg_pool(
    a: Tensor, kernel: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0
) -> Tensor:
    """Return the mean of each window of `a` (N, H, W, C): (N, rows, columns, C). Padding counts as
    zeros. The arguments `kernel`, `stride` and `padding` and the errors are as in `max_pool`."""
    window = as_window("avg_pool", kernel, kernel if stride is None else stride, padding, 1)
    return apply(AvgPool(*window[:3]), (a,))
