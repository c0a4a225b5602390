"""Code shared by the three convolution ops: shapes, and lowering to batched matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..autograd.shapes import Shape, Spec, common_device
from ..backend_ndarray import NDArray, convolution
from ..backend_ndarray.dtypes import result_type
from ..errors import ShapeError
from ..op import Op
from ..op.signatures import Extent
from ._windows import Pair, Window, as_window, check_rank, pad, windows

Shape4 = tuple[int, int, int, int]


class ConvOp(Op):
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    infer_first = True
    reads = frozenset({"inputs"})

    def window(self, kernel: Sequence[Extent]) -> Window:
        """Return the window geometry for a weight of shape `kernel`."""
        pair = int(kernel[0]), int(kernel[1])
        return as_window(self.name, pair, self.stride, self.padding, self.dilation)

    @property
    def geometry(self) -> dict[str, Any]:
        """The attributes shared by the three ops."""
        names = ("stride", "padding", "dilation", "groups")
        return {name: getattr(self, name) for name in names}

    def output(self, x: Shape, w: Shape) -> Shape4:
        """Return the shape of conv(x, w) from the shapes of x and w. Raises ShapeError if they do
        not match."""
        if self.groups < 1:
            raise ValueError(f"{self.name}: groups {self.groups} is below 1")
        (n, h, width, c), (_, _, inputs, outputs) = x, w
        if c != inputs * self.groups or outputs % self.groups:
            raise ShapeError(
                f"{self.name}: an input of {c} channels and a weight of shape {tuple(w)} do not "
                f"match with groups={self.groups}: the weight must be (kh, kw, channels / groups, "
                "a multiple of groups)"
            )
        rows, columns = self.window(w).counts(self.name, (h, width))
        return n, rows, columns, outputs

    def target(self, a: Shape, b: Shape) -> Shape4:
        """Return the op's output shape from its input shapes. Raises ShapeError if they do not
        match."""
        raise NotImplementedError(f"{self.name} defines no target")

    def infer(self, a: Spec, b: Spec) -> Spec:
        for what, x in (("first input", a), ("second input", b)):
            check_rank(self.name, f"the {what}", x, 4)
        dtype = result_type(a.dtype, b.dtype)
        if dtype == "bool":
            raise TypeError(f"{self.name}: both inputs are bool; cast one to a number")
        device = common_device(self.name, a, b)
        return Spec(self.target(a.shape, b.shape), dtype, device)


# Convolution on NDArrays. If the device has no kernel for a case, matrices are built from the
# operands and multiplied by a batched matmul, whose batch axis is the G groups.


def direct(a: NDArray, b: NDArray, groups: int) -> bool:
    """Return whether the device has a convolution kernel for these arrays."""
    return groups == 1 and convolution.supported(a, b)


def columns_of(x: NDArray, window: Window, counts: Sequence[int], groups: int) -> NDArray:
    """Return the windows of x as one matrix per group: (G, N * rows * columns, kh * kw * C / G)."""
    n, _, _, c = x.shape
    # Each element is read once per tap, so make the elements contiguous first.
    x = pad(x, window).compact()
    seen = windows(x, window, counts)
    rows, inner = n * prod(counts), prod(window.kernel) * (c // groups)
    if groups == 1:
        return seen.reshape((1, rows, inner))
    seen = seen.reshape((n, *counts, *window.kernel, groups, c // groups))
    return seen.permute((5, 0, 1, 2, 3, 4, 6)).reshape((groups, rows, inner))


def weights_of(w: NDArray, groups: int) -> NDArray:
    """Return the weight as one matrix per group: (G, kh * kw * C / G, O / G)."""
    kh, kw, c, o = w.shape
    if groups == 1:
        return w.reshape((1, kh * kw * c, o))
    grouped = w.reshape((kh * kw * c, groups, o // groups))
    return grouped.permute((1, 0, 2))


def rows_of(g: NDArray, groups: int) -> NDArray:
    """Return outputs (N, rows, columns, O) as one matrix per group: (G, N * rows * columns, O /
    G)."""
    n, h, w, o = g.shape
    if groups == 1:
        return g.reshape((1, n * h * w, o))
    return g.reshape((n * h * w, groups, o // groups)).permute((1, 0, 2))


def convolve(x: NDArray, w: NDArray, window: Window, counts: Pair, groups: int) -> NDArray:
    if direct(x, w, groups):
        return convolution.conv2d(x, w, *window[1:])
    out = columns_of(x, window, counts, groups) @ weights_of(w, groups)
    if groups > 1:
        out = out.permute((1, 0, 2))
    return out.reshape((x.shape[0], *counts, w.shape[3]))


def mirrored(w: NDArray, groups: int) -> NDArray:
    """Return the weight that convolves outputs back to inputs: taps reversed, channels
    exchanged."""
    kh, kw, c, o = w.shape
    w = w.flip((0, 1)).reshape((kh, kw, c, groups, o // groups))
    return w.permute((0, 1, 4, 3, 2)).reshape((kh, kw, o // groups, groups * c))


def reference(
    x: np.ndarray, w: np.ndarray, window: Window, counts: Pair, groups: int
) -> np.ndarray:
    (p, q) = window.padding
    x = np.pad(x, ((0, 0), (p, p), (q, q), (0, 0)))
    n, o = x.shape[0], w.shape[3]
    out = np.zeros((n, *counts, groups, o // groups), np.result_type(x, w))
    for i, j, key in window.keys(counts):
        seen = x[key].reshape((n, *counts, groups, w.shape[2]))
        tap = w[i, j].reshape((w.shape[2], groups, o // groups))
        out += np.einsum("nhwgc,cgo->nhwgo", seen, tap)
    return out.reshape((n, *counts, o))


GEOMETRIES: tuple[tuple[Shape4, Shape4, dict[str, Any]], ...] = (
    ((2, 5, 4, 3), (3, 3, 3, 2), {}),
    ((1, 4, 5, 2), (3, 2, 2, 3), {"padding": (1, 1)}),
    ((2, 5, 5, 2), (3, 3, 2, 2), {"stride": (2, 2), "padding": (1, 1)}),
    ((1, 6, 7, 1), (2, 3, 1, 2), {"stride": (3, 2), "dilation": (2, 2), "padding": (0, 1)}),
    ((1, 4, 4, 4), (3, 3, 2, 6), {"groups": 2, "padding": (1, 1)}),
    ((1, 4, 4, 3), (2, 2, 1, 3), {"groups": 3, "stride": (2, 2)}),
    ((2, 3, 3, 2), (1, 1, 2, 4), {}),
    ((1, 2, 2, 1), (2, 2, 1, 1), {"padding": (3, 3)}),
    ((0, 3, 3, 1), (2, 2, 1, 2), {}),
    ((1, 3, 3, 0), (2, 2, 0, 2), {}),
)
