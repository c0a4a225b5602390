"""Sums of rows with weights, each of rows of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..apply import apply
from ..backend_ndarray import NDArray, scans
from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..errors import ShapeError
from ..op import register
from ..op_types import Expr, Gradients, TeNamespace, TeTensor
from ..samples import Arg, error, sample
from ..spec import Spec, common_device
from ..tensor import Tensor
from . import _te
from ._index import Index, positions
from .arithmetic import where
from .index import SegmentSum, take
from .reduce import summation
from .shape import reshape


@register
class WeightedRows(Index):
    """y[j] = the sum over t of weight[t, j] * x[index[t, j]]; an index of -1 is a row of zeros.

    x is (n, width), index (taps, m) of int64, weight (taps, m) of x's dtype, y (m, width).
    """

    axis = 0

    samples = (
        sample((4, 3), positions(2, 5, low=-1, high=4), (2, 5)),
        sample((3, 1), positions(4, 2, low=-1), (4, 2)),
        sample((3, 20), positions(1, 6), (1, 6)),
        sample((3, 0), positions(2, 2), (2, 2)),
        sample((3, 2), positions(2, 0), (2, 0)),
    )
    error_samples = (
        error(ShapeError, r"x has shape \(3,\)", (3,), positions(1, 2), (1, 2)),
        error(ShapeError, r"\(2, 3\) and \(1, 3\)", (3, 1), positions(2, 3), (1, 3)),
        error(TypeError, "the index float32", (3, 1), (1, 3), (1, 3)),
        error(
            TypeError, "the weight float64", (3, 1), positions(1, 3), Arg((1, 3), dtype="float64")
        ),
    )

    def infer(self, x: Spec, index: Spec, weight: Spec) -> Spec:
        if x.ndim != 2:
            raise ShapeError(f"{self.name}: x has shape {x.shape}, not (n, width)")
        if index.ndim != 2 or index.shape != weight.shape or index.shape[0] == 0:
            raise ShapeError(
                f"{self.name}: index and weight of shapes {index.shape} and {weight.shape} must "
                "both be (taps, m)"
            )
        if index.dtype != "int64" or weight.dtype != x.dtype or not is_floating(x.dtype):
            raise TypeError(
                f"{self.name}: x is {x.dtype}, the index {index.dtype} and the weight "
                f"{weight.dtype}; these must be floats, int64, and what x is"
            )
        device = common_device(self.name, x, index, weight)
        return Spec((index.shape[1], x.shape[1]), x.dtype, device)

    def index_ranges(self, x: Spec, index: Spec, weight: Spec) -> dict[int, tuple[int, int]]:
        return {1: (-1, x.shape[0] - 1)}

    def reduction_length(self, x: Spec, index: Spec, weight: Spec) -> int:
        return index.shape[0]

    def reference(self, x: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return scans.weighted_rows(x, index, weight)

    def compute(self, x: NDArray, index: NDArray, weight: NDArray) -> NDArray:
        wide = compute_dtype(x.dtype)
        given = x.astype(wide, copy=False), index, weight.astype(wide, copy=False)
        out: NDArray = scans.run("weighted_rows", *given)
        return out.astype(x.dtype, copy=False)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, index, weight = node.inputs
        (taps, m), (n, width) = index.shape, x.shape
        is_row = index >= 0
        place = where(is_row, index, 0)
        to_x = to_weight = None
        if x.requires_grad:
            factor = reshape(where(is_row, weight, 0), (taps, m, 1))
            parts = reshape(factor * reshape(out_grad, (1, m, width)), (taps * m, width))
            to_x = apply(SegmentSum(n, 0), (parts, reshape(place, (taps * m,))))
        if weight.requires_grad:
            products = take(x, place, 0) * reshape(out_grad, (1, m, width))
            to_weight = where(is_row, summation(products, 2), 0)
        return to_x, None, to_weight

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor, weight: TeTensor) -> TeTensor:
        (taps, m), (n, width) = index.shape, x.shape
        dtype = _te.dtype_of(x)
        wide = compute_dtype(dtype)

        def part(t: Any, j: Expr, c: Expr) -> Expr:
            place = k.tirx.max(k.tirx.min(index[t, j], n - 1), k.tirx.const(0, "int64"))
            value = k.tirx.Cast(wide, x[place, c])
            value = k.tirx.Select(index[t, j] < 0, k.tirx.const(0, wide), value)
            return k.tirx.Cast(wide, weight[t, j]) * value

        return _te.sum_of_few(k, (m, width), taps, part, dtype, self.name)
