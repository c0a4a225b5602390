"""Ops that choose elements by their position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import (
    Spec,
    broadcast_shapes,
    common_device,
    normalize_axis,
)
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, array, zeros
from ..backend_ndarray.dtypes import dtype_name
from ..backend_ndarray.indexing import linear_index
from ..backend_ndarray.ndarray import wrap
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import Arg, error, sample
from ..op.signatures import Expr, Extent, Gradients, TeNamespace, TeTensor
from ..sizes.extents import as_extent
from . import _te
from ._arguments import check_tensors
from ._index import Index, check_index, positions, put_te
from ._values import whole_numbers
from .shape import reshape


@register
class OneHot(Op):
    """y[..., j] = 1 where x equals j, else 0. x holds class numbers of any dtype but bool."""

    num_classes: int
    dtype: str = "float32"

    infer_first = True
    samples = tuple(
        sample(Arg(shape, 0, 5, dtype=dtype, special=False), num_classes=5)
        for shape in ((4,), (2, 3), (), (0,))
        for dtype in ("int32", "int64")
    )
    error_samples = (
        error(TypeError, "bool", Arg((2,), dtype="bool"), num_classes=2),
        error(ValueError, "num_classes 0", Arg((2,), dtype="int32"), num_classes=0),
        error(TypeError, "complex64", Arg((2,), dtype="int32"), num_classes=2, dtype="complex64"),
    )

    def infer(self, x: Spec) -> Spec:
        if x.dtype == "bool":
            raise TypeError(f"{self.name}: class numbers are bool; cast them to an integer dtype")
        if self.num_classes < 1:
            raise ValueError(f"{self.name}: num_classes {self.num_classes} is below 1")
        return Spec((*x.shape, self.num_classes), dtype_name(self.dtype), x.device)

    def index_ranges(self, x: Spec) -> dict[int, tuple[int, int]]:
        return {0: (0, self.num_classes - 1)}

    def reference(self, x: np.ndarray) -> np.ndarray:
        return (x[..., None] == np.arange(self.num_classes)).astype(self.dtype)

    def compute(self, x: NDArray) -> NDArray:
        return x.device.one_hot(self.num_classes, x, dtype=self.dtype)

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        index = _te.cast(k, x, "int64")

        def body(*i: Expr) -> Expr:
            hit = index[i[:-1]] == k.tirx.Cast("int64", i[-1])
            return k.tirx.Select(hit, k.tirx.const(1, self.dtype), k.tirx.const(0, self.dtype))

        return k.te.compute([*x.shape, self.num_classes], body)


@register
class Take(Index):
    """y = the slices of x along `axis` at the positions of an integer index. y.shape is
    x.shape[:axis] + index.shape + x.shape[axis + 1:]. Negative indices count from the end."""

    axis: int = 0

    moves = True
    samples = (
        sample((3, 4), positions(5)),
        sample((3, 4), positions(2, 3, dtype="int32"), axis=1),
        sample((2, 3, 2), positions(2, low=-3), axis=-2),
        sample((3,), positions()),
        sample((3, 2), positions(0)),
        sample((3, 0), positions(2)),
    )
    error_samples = (
        error(TypeError, "float32", (3, 4), (2,)),
        error(TypeError, "bool", (3, 4), Arg((3,), dtype="bool")),
        error(ShapeError, "out of range", (3, 4), positions(2), axis=2),
        error(ShapeError, "out of range", (), positions(2)),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        check_index(self.name, index)
        axis = normalize_axis(self.name, self.axis, x.ndim)
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        return Spec(shape, x.dtype, common_device(self.name, x, index))

    def index_ranges(self, x: Spec, index: Spec) -> dict[int, tuple[int, int]]:
        extent = x.shape[self.axis]
        return {1: (-extent, extent - 1)}

    def reference(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        return np.take(x, index, self.axis)

    def compute(self, x: NDArray, index: NDArray) -> NDArray:
        axis = self.axis % x.ndim
        return wrap(x.device, x.device.kernels.gather(x.view, index.view, axis))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, index = node.inputs
        axis = self.axis % x.ndim
        return apply(SegmentSum(x.shape[axis], axis), (out_grad, index)), None

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor) -> TeTensor:
        axis = self.axis % len(x.shape)
        end = axis + len(index.shape)
        n = x.shape[axis]

        def body(*o: Expr) -> Expr:
            return x(*o[:axis], self.at(k, index, o[axis:end], n), *o[end:])

        return k.te.compute((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), body)


@register
class RavelIndex(Op):
    """y = one row-major index over all axes from one integer index per axis, like NumPy's
    `ravel_multi_index`. Negative indices count from the end. The indices broadcast."""

    extents: tuple[int, ...]
    infer_first = True
    samples = (
        sample(positions(4), positions(4, low=-2, high=2), extents=(3, 2)),
        sample(positions(3, 1, dtype="int32"), positions(2), positions(high=5), extents=(3, 4, 5)),
        sample(positions(2, low=-3), extents=(3,)),
        sample(positions(0), positions(0), extents=(3, 0)),
    )
    error_samples = (
        error(TypeError, "float32", (3,), positions(3), extents=(3, 4)),
        error(ValueError, "2 indices for 3 axes", positions(3), positions(3), extents=(3, 4, 5)),
        error(ShapeError, "do not broadcast", positions(3), positions(2), extents=(3, 4)),
        error(ValueError, "at least one", extents=()),
    )

    def infer(self, *indices: Spec) -> Spec:
        if not indices:
            raise ValueError(f"{self.name}: needs at least one index")
        if len(indices) != len(self.extents):
            raise ValueError(f"{self.name}: {len(indices)} indices for {len(self.extents)} axes")
        for index in indices:
            check_index(self.name, index)
        shape = broadcast_shapes(self.name, *[index.shape for index in indices])
        return Spec(shape, "int64", common_device(self.name, *indices))

    def index_ranges(self, *indices: Spec) -> dict[int, tuple[int, int]]:
        if 0 in broadcast_shapes(self.name, *[index.shape for index in indices]):
            return {}
        return {number: (-n, n - 1) for number, n in enumerate(self.extents)}

    def reference(self, *indices: np.ndarray) -> np.ndarray:
        both = zip(indices, self.extents, strict=True)
        places = np.broadcast_arrays(*[np.mod(i, max(n, 1)) for i, n in both])
        return np.ravel_multi_index(places, self.extents) if places[0].size else places[0] * 1

    def compute(self, *indices: NDArray) -> NDArray:
        shape = broadcast_shapes(self.name, *[index.shape for index in indices])
        linear = linear_index([index.numpy() for index in indices], self.extents, shape)
        return array(linear, device=indices[0].device)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        return (None,) * len(node.inputs)

    def emit_te(self, k: TeNamespace, *indices: TeTensor) -> TeTensor:
        def valid(n: Extent) -> Callable[[Expr], Expr]:
            zero, last = k.tirx.const(0, "int64"), _te.number(k, n - 1)

            def rule(i: Expr) -> Expr:
                i = k.tirx.Cast("int64", i)
                # Clamp: an index along one axis must not reach into the next axis.
                return k.tirx.max(k.tirx.min(k.tirx.Select(i < 0, i + n, i), last), zero)

            return rule

        both = zip(indices, self.extents, strict=True)
        linear, *others = [_te.elementwise(k, valid(n), index) for index, n in both]
        for position, n in zip(others, self.extents[1:], strict=True):
            scaled = k.topi.multiply(linear, _te.number(k, n))
            linear = k.topi.add(scaled, position)
        return linear


@register
class SegmentSum(Index):
    """y = zeros with `extent` along `axis`, to which the slices of x are added at the positions of
    an integer index: the gradient of take. x.shape is y.shape[:axis] + index.shape +
    y.shape[axis + 1:]."""

    extent: int
    axis: int = 0

    samples = (
        sample((5, 4), positions(5), extent=3),
        sample((3, 2, 3), positions(2, 3, dtype="int32"), extent=4, axis=1),
        sample((2, 2, 2), positions(2, low=-3), extent=3, axis=1),
        sample((), positions(), extent=3),
        sample((0, 2), positions(0), extent=3),
        sample((2, 0), positions(2), extent=3),
    )
    error_samples = (
        error(TypeError, "float32", (3, 4), (3,), extent=3),
        error(ShapeError, r"\(3, 4\).*\(2,\)", (3, 4), positions(2), extent=3),
        error(ShapeError, "axis 2", (3, 4), positions(4), extent=3, axis=2),
        error(ValueError, "extent -1", (3, 4), positions(3), extent=-1),
        error(TypeError, "bool", Arg((3,), dtype="bool"), positions(3), extent=3),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        check_index(self.name, index)
        if x.dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool; cast it to a number first")
        if self.extent < 0:
            raise ValueError(f"{self.name}: extent {self.extent} is negative")
        if not 0 <= self.axis <= x.ndim - len(index.shape):
            raise ShapeError(
                f"{self.name}: axis {self.axis} is out of range for x {x.shape} and an index of "
                f"shape {index.shape}"
            )
        end = self.axis + index.ndim
        if x.shape[self.axis : end] != index.shape:
            raise ShapeError(
                f"{self.name}: x {x.shape} must have, from axis {self.axis} on, the index's "
                f"shape {index.shape}"
            )
        shape = (*x.shape[: self.axis], self.extent, *x.shape[end:])
        return Spec(shape, x.dtype, common_device(self.name, x, index))

    def reduction_length(self, x: Spec, index: Spec) -> int:
        return prod(index.shape)

    def index_ranges(self, x: Spec, index: Spec) -> dict[int, tuple[int, int]]:
        return {1: (-self.extent, self.extent - 1)}

    def reference(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        shape = (*x.shape[: self.axis], self.extent, *x.shape[self.axis + index.ndim :])
        out = np.zeros(shape, x.dtype)
        key: Any = (*[slice(None)] * self.axis, index)
        np.add.at(out, key, x)
        return out

    def compute(self, x: NDArray, index: NDArray) -> NDArray:
        shape = (*x.shape[: self.axis], self.extent, *x.shape[self.axis + index.ndim :])
        out = zeros(shape, x.dtype, x.device)
        x.device.kernels.scatter_add(out.view, index.view, x.view, self.axis)
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        return apply(Take(self.axis), (out_grad, node.inputs[1])), None

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor) -> TeTensor:
        shape = (*x.shape[: self.axis], self.extent, *x.shape[self.axis + len(index.shape) :])
        return put_te(k, None, index, x, shape, self.axis, "add", "segment_sum")


def one_hot(a: Tensor, num_classes: int, dtype: str = "float32") -> Tensor:
    """Return rows of the identity matrix selected by the class numbers `a`: the shape is
    a.shape + (num_classes,).

    Raises IndexError for a class number outside 0..num_classes - 1, ValueError for one that is not
    whole. A compiled function checks the class numbers it is called with; for an invalid one that
    it computes itself, the row is zeros.

    >>> ndl.one_hot(ndl.Tensor([0, 2]), 3).numpy().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    check_tensors("one_hot", a=a)
    return apply(OneHot(num_classes, dtype), (whole_numbers("one_hot", "a", a),))


def take(a: Tensor, index: Tensor, axis: int | None = None) -> Tensor:
    """Return the slices of `a` along `axis` at the positions of an int32 or int64 `index` of any
    shape, like np.take. Without an `axis`, take elements of the flattened tensor.

    Negative indices count from the end. Raises IndexError for an index out of range. A compiled
    function checks the indices it is called with, and clamps those that it computes itself.

    >>> ndl.take(ndl.Tensor([5.0, 6.0, 7.0]), ndl.Tensor([2, 0]), axis=0).numpy().tolist()
    [7.0, 5.0]
    """
    check_tensors("take", a=a, index=index)
    if axis is None:
        return apply(Take(0), (reshape(a, (a.size,)), index))
    return apply(Take(axis), (a, index))


def ravel_index(indices: Sequence[Tensor], extents: Sequence[int]) -> Tensor:
    """Return one row-major int64 index over all axes from `indices`: integer Tensors that
    broadcast, one for each axis of `extents`. Negative indices count from the end. Raises
    IndexError for an index out of range."""
    return apply(RavelIndex(tuple(map(as_extent, extents))), tuple(indices))


def segment_sum(a: Tensor, index: Tensor, extent: int, axis: int = 0) -> Tensor:
    """Return zeros with `extent` along `axis`, to which the slices of `a` are added at `index`. `a`
    has the axes of `index` in place of `axis`. Raises IndexError for an index out of range. A
    compiled function checks the indices it is called with, and skips invalid ones that it computes
    itself.
    """
    return apply(SegmentSum(extent, axis), (a, index))


def embedding(index: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of `weight` (count, dim) at an integer `index`: index.shape + (dim,).

    >>> ndl.ops.embedding(ndl.Tensor([[0, 1]]), ndl.zeros(5, 8)).shape
    (1, 2, 8)
    """
    return take(weight, index, 0)
