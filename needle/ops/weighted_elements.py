"""Weighted sums of each channel's elements, at positions that all channels share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, array
from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..errors import ShapeError
from ..op import register
from ..op.samples import Arg, error, sample
from ..op.signatures import Expr, Gradients, TeNamespace, TeTensor
from ..sizes.extents import same
from . import _te
from ._index import Index, check_index, positions
from .along_axis import PutAlongAxis, TakeAlongAxis, _filled
from .arithmetic import where
from .reduce import summation
from .shape import broadcast_to, reshape


@register
class WeightedElements(Index):
    """y[n, c, j] = the sum over t of weight[n, t, j] * x[n, c, index[n, t, j]]; an index of -1
    stands for an element of 0.

    x is (batch, channels, size), the integer index is (batch, taps, m), weight has index's shape
    and x's dtype, and y is (batch, channels, m).
    """

    axis = 2

    samples = (
        sample((2, 3, 4), positions(2, 2, 5, low=-1, high=4), (2, 2, 5)),
        sample((1, 1, 3), positions(1, 4, 2, low=-1, dtype="int32"), (1, 4, 2)),
        sample((1, 20, 3), positions(1, 1, 6), (1, 1, 6)),
        sample((2, 0, 3), positions(2, 2, 2), (2, 2, 2)),
        sample((1, 2, 3), positions(1, 2, 0), (1, 2, 0)),
        sample((2, 1, 1), positions(2, 2, 9, low=-1, high=0, dtype="int32"), (2, 2, 9)),
        sample((1, 1, 300), positions(1, 2, 3, low=-1, high=100, dtype="int8"), (1, 2, 3)),
    )
    error_samples = (
        error(ShapeError, r"x has shape \(3, 2\)", (3, 2), positions(3, 1, 2), (3, 1, 2)),
        error(ShapeError, r"\(1, 2, 3\) and \(1, 1, 3\)", (1, 1, 3), positions(1, 2, 3), (1, 1, 3)),
        error(ShapeError, "the batch", (2, 1, 3), positions(1, 2, 3), (1, 2, 3)),
        error(TypeError, "the index is float32", (1, 1, 3), (1, 1, 3), (1, 1, 3)),
        error(
            TypeError,
            "the weight float64",
            (1, 1, 3),
            positions(1, 1, 3),
            Arg((1, 1, 3), dtype="float64"),
        ),
    )

    def infer(self, x: Spec, index: Spec, weight: Spec) -> Spec:
        if x.ndim != 3:
            raise ShapeError(f"{self.name}: x has shape {x.shape}, not (batch, channels, size)")
        fits = index.ndim == 3 and same(index.shape, weight.shape) and not same(index.shape[1], 0)
        if not fits:
            raise ShapeError(
                f"{self.name}: index and weight of shapes {index.shape} and {weight.shape} must "
                "both be (batch, taps, m)"
            )
        if not same(index.shape[0], x.shape[0]):
            raise ShapeError(f"{self.name}: the batch of x {x.shape} is not index's {index.shape}")
        check_index(self.name, index)
        if weight.dtype != x.dtype or not is_floating(x.dtype):
            raise TypeError(
                f"{self.name}: x is {x.dtype}, the weight {weight.dtype}; both need one float dtype"
            )
        device = common_device(self.name, x, index, weight)
        return Spec((*x.shape[:2], index.shape[2]), x.dtype, device)

    def index_ranges(self, x: Spec, index: Spec, weight: Spec) -> dict[int, tuple[int, int]]:
        return {1: (-1, x.shape[2] - 1)}

    def reduction_length(self, x: Spec, index: Spec, weight: Spec) -> int:
        return index.shape[1]

    def reference(self, x: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
        if index.size and not (-1 <= index.min() and index.max() < x.shape[2]):
            raise IndexError(f"{self.name}: an index is out of bounds for extent {x.shape[2]}")
        out = np.zeros((*x.shape[:2], index.shape[2]), x.dtype)
        for places, factors in zip(index.swapaxes(0, 1), weight.swapaxes(0, 1), strict=True):
            places = np.broadcast_to(places[:, None], out.shape)
            found = np.take_along_axis(x, np.maximum(places, 0), 2)
            out += factors[:, None] * np.where(places < 0, 0, found)
        return out

    def compute(self, x: NDArray, index: NDArray, weight: NDArray) -> NDArray:
        wide = compute_dtype(x.dtype)
        given = x.astype(wide, copy=False), index, weight.astype(wide, copy=False)
        with np.errstate(all="ignore"):
            out = self.reference(*[part.numpy() for part in given])
        return array(out, device=x.device).astype(x.dtype, copy=False)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, index, weight = node.inputs
        (batch, channels, size), (_, taps, m) = x.shape, index.shape
        is_inside = index >= 0
        place = reshape(where(is_inside, index, 0), (batch, 1, taps * m))
        place = broadcast_to(place, (batch, channels, taps * m))
        grad = reshape(out_grad, (batch, channels, 1, m))
        to_x = to_weight = None
        if x.requires_grad:
            factor = reshape(where(is_inside, weight, 0), (batch, 1, taps, m))
            parts = reshape(factor * grad, (batch, channels, taps * m))
            zeros = _filled(parts, 0, x.dtype, (batch, channels, size))
            to_x = apply(PutAlongAxis("add", 2), (zeros, place, parts))
        if weight.requires_grad:
            taken = apply(TakeAlongAxis(2), (x, place))
            products = reshape(taken, (batch, channels, taps, m)) * grad
            to_weight = where(is_inside, summation(products, 1), 0)
        return to_x, None, to_weight

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor, weight: TeTensor) -> TeTensor:
        (batch, channels, size), (_, taps, m) = x.shape, index.shape
        dtype = _te.dtype_of(x)
        wide = compute_dtype(dtype)
        kind = "int32" if _te.dtype_of(index) == "int32" else "int64"  # a dtype that holds the size
        last, zero = k.tirx.Cast(kind, size - 1), k.tirx.const(0, kind)

        def part(t: Any, n: Expr, c: Expr, j: Expr) -> Expr:
            place = k.tirx.Cast(kind, index[n, t, j])
            # Vector code computes both values of a Select, but TVM simplifies each as if only the
            # matching case of the condition occurred. If the condition bounds `place` (such as
            # `place < 0`, or `at == place` when x has a single element to clamp to), TVM drops
            # `max` and `min`, and the code reads memory around x.
            at = zero if _te.is_one(size) else k.tirx.max(k.tirx.min(place, last), zero)
            value = k.tirx.Cast(wide, x[n, c, at])
            value = k.tirx.Select(at == place, value, k.tirx.const(0, wide))
            return k.tirx.Cast(wide, weight[n, t, j]) * value

        return _te.sum_of_few(k, (batch, channels, m), taps, part, dtype, self.name)
