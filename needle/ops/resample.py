"""Weighted sums of a few elements along one axis, for interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, common_device, normalize_axis
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, scans
from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..errors import ShapeError
from ..op import register
from ..op.samples import Arg, Sample, error
from ..op.signatures import Expr, Gradients, TeNamespace, TeTensor
from . import _te
from ._index import Index, positions


def _drawn(taps: int, m: int, dtype: str | None = None) -> tuple[Arg, Arg]:
    """Return an index and its weights, for an op's samples."""
    return positions(taps, m), Arg((taps, m), dtype=dtype)


@register
class Resample(Index):
    """y[..., j, ...] = the sum over t of weight[t, j] * x[..., index[t, j], ...] along `axis`.

    An element with a weight of 0 counts as 0, even if it is infinite.

    index (int64) and weight (in x's dtype) have the shape (taps, m). No gradient flows to them.
    to_index and to_weight, (taps', n), describe the transposed sums: the gradient for x is the
    gradient for y, resampled by to_index and to_weight.
    """

    axis: int = -1

    reads = frozenset({"inputs"})
    # These random indices have no transposed sums; tests of interpolation check the gradient.
    samples = tuple(
        Sample((Arg(shape), *_drawn(taps, 5), *_drawn(2, shape[axis])), {"axis": axis}, False)
        for shape, axis in (((3,), 0), ((2, 4), -1), ((2, 3, 4), 1), ((0, 3), 1))
        for taps in (1, 2, 4)
    )
    error_samples = (
        error(ShapeError, "out of range", (3,), *_drawn(1, 3) * 2, axis=1),
        error(ShapeError, r"\(2, 3\) and \(1, 3\)", (3,), positions(2, 3), (1, 3), *_drawn(1, 3)),
        error(ShapeError, "extent of 4", (4,), *_drawn(1, 3) * 2),
        error(TypeError, "the index float32", (3,), (1, 3), (1, 3), *_drawn(1, 3)),
        error(TypeError, "the weight float64", (3,), *_drawn(1, 3, "float64") * 2),
    )

    def infer(self, x: Spec, index: Spec, weight: Spec, to_index: Spec, to_weight: Spec) -> Spec:
        axis = normalize_axis(self.name, self.axis, x.ndim)
        for places, factors in ((index, weight), (to_index, to_weight)):
            if places.shape != factors.shape or places.ndim != 2 or places.shape[0] == 0:
                raise ShapeError(
                    f"{self.name}: index and weight of shapes {places.shape} and {factors.shape} "
                    "must both be (taps, m)"
                )
            if places.dtype != "int64" or factors.dtype != x.dtype or not is_floating(x.dtype):
                raise TypeError(
                    f"{self.name}: x is {x.dtype}, the index {places.dtype} and the weight "
                    f"{factors.dtype}; these must be a float dtype, int64, and x's dtype"
                )
        if to_index.shape[1] != x.shape[axis]:
            raise ShapeError(
                f"{self.name}: to_index of shape {to_index.shape} does not fit an extent of "
                f"{x.shape[axis]}"
            )
        shape = (*x.shape[:axis], index.shape[1], *x.shape[axis + 1 :])
        return Spec(shape, x.dtype, common_device(self.name, x, index, weight, to_index, to_weight))

    def index_ranges(
        self, x: Spec, index: Spec, weight: Spec, to_index: Spec, to_weight: Spec
    ) -> dict[int, tuple[int, int]]:
        return {1: (0, x.shape[self.axis] - 1), 3: (0, index.shape[1] - 1)}

    def reduction_length(self, x: Spec, index: Spec, *_: Spec) -> int:
        return index.shape[0]

    def reference(
        self, x: np.ndarray, index: np.ndarray, weight: np.ndarray, *_: np.ndarray
    ) -> np.ndarray:
        return scans.resample(x, index, weight, axis=self.axis % x.ndim)

    def compute(self, x: NDArray, index: NDArray, weight: NDArray, *_: NDArray) -> NDArray:
        wide = compute_dtype(x.dtype)
        given = x.astype(wide, copy=False), index, weight.astype(wide, copy=False)
        out: NDArray = scans.run("resample", *given, axis=self.axis % x.ndim)
        return out.astype(x.dtype, copy=False)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        _, index, weight, to_index, to_weight = node.inputs
        to_x = apply(self, (out_grad, to_index, to_weight, index, weight))
        return to_x, None, None, None, None

    def emit_te(
        self, k: TeNamespace, x: TeTensor, index: TeTensor, weight: TeTensor, *_: TeTensor
    ) -> TeTensor:
        axis = self.axis % len(x.shape)
        taps, m = index.shape
        dtype, last = _te.dtype_of(x), x.shape[axis] - 1
        wide = compute_dtype(dtype)

        def part(t: Any, *o: Expr) -> Expr:
            place = k.tirx.max(k.tirx.min(index[t, o[axis]], last), k.tirx.const(0, "int64"))
            value = x(*o[:axis], place, *o[axis + 1 :])
            factor = k.tirx.Cast(wide, weight[t, o[axis]])
            zero = k.tirx.const(0, wide)
            return k.tirx.Select(factor == zero, zero, factor * k.tirx.Cast(wide, value))

        shape = (*x.shape[:axis], m, *x.shape[axis + 1 :])
        return _te.sum_of_few(k, shape, taps, part, dtype, self.name)
