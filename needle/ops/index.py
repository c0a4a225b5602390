"""Ops that choose elements by their position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..apply import apply
from ..backend_ndarray import NDArray, array, zeros
from ..backend_ndarray.dtypes import INTEGER, dtype_name
from ..backend_ndarray.indexing import linear_index
from ..backend_ndarray.ndarray import wrap
from ..errors import ShapeError
from ..extents import as_extent
from ..op import Op, register
from ..op_types import Expr, Extent, Gradients, Stmt, TeNamespace, TeTensor
from ..samples import Arg, error, sample
from ..spec import (
    Spec,
    broadcast_shapes,
    common_device,
    normalize_axis,
)
from ..tensor import Tensor
from . import _te


@register
class OneHot(Op):
    """y[..., j] = 1 where x (class numbers of any dtype but bool) equals j, else 0."""

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
            raise TypeError(f"{self.name}: class numbers cannot be bool")
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


class _Index(Op):
    """Base of ops that move elements along `axis` by an index of any shape."""

    axis: int

    infer_first = True
    reads = frozenset({"inputs"})  # the index

    def at(self, k: TeNamespace, index: TeTensor, i: Sequence[Expr], n: Extent) -> Expr:
        """For emit_te: the position along an axis of extent n that index[i] names."""
        value = k.tirx.Cast("int64", index(*i))
        return k.tirx.Select(value < 0, value + n, value)


def _check_index(name: str, index: Spec) -> None:
    if index.dtype not in INTEGER:
        raise TypeError(f"{name}: the index is {index.dtype}, not int32 or int64")


def _indices(*shape: int, low: int = 0, high: int = 3, dtype: str = "int64") -> Arg:
    return Arg(shape, low, high, dtype=dtype, special=False)


@register
class Gather(_Index):
    """y = the slices of x along `axis` that an integer index names; y.shape is x.shape[:axis] +
    index.shape + x.shape[axis + 1:]. Negative indices count from the end."""

    axis: int = 0

    moves = True
    samples = (
        sample((3, 4), _indices(5)),
        sample((3, 4), _indices(2, 3, dtype="int32"), axis=1),
        sample((2, 3, 2), _indices(2, low=-3), axis=-2),
        sample((3,), _indices()),
        sample((3, 2), _indices(0)),
        sample((3, 0), _indices(2)),
    )
    error_samples = (
        error(TypeError, "float32", (3, 4), (2,)),
        error(TypeError, "bool", (3, 4), Arg((3,), dtype="bool")),
        error(ShapeError, "out of range", (3, 4), _indices(2), axis=2),
        error(ShapeError, "out of range", (), _indices(2)),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        _check_index(self.name, index)
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
        return apply(ScatterAdd(x.shape[axis], axis), (out_grad, index)), None

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor) -> TeTensor:
        axis = self.axis % len(x.shape)
        end = axis + len(index.shape)
        n = x.shape[axis]

        def body(*o: Expr) -> Expr:
            place = self.at(k, index, o[axis:end], n)
            # Clamped, so that memory beyond the tensor is never read.
            place = k.tirx.max(k.tirx.min(place, n - 1), k.tirx.const(0, "int64"))
            return x(*o[:axis], place, *o[end:])

        return k.te.compute((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), body)


@register
class RavelIndex(Op):
    """Integer indices, one per axis, as one row-major index over all of these axes: NumPy's
    `ravel_multi_index`, except that negative indices count from the end. They broadcast."""

    extents: tuple[int, ...]
    infer_first = True
    samples = (
        sample(_indices(4), _indices(4, low=-2, high=2), extents=(3, 2)),
        sample(_indices(3, 1, dtype="int32"), _indices(2), _indices(high=5), extents=(3, 4, 5)),
        sample(_indices(2, low=-3), extents=(3,)),
        sample(_indices(0), _indices(0), extents=(3, 0)),
    )
    error_samples = (
        error(TypeError, "float32", (3,), _indices(3), extents=(3, 4)),
        error(ValueError, "2 indices for 3 axes", _indices(3), _indices(3), extents=(3, 4, 5)),
        error(ShapeError, "do not broadcast", _indices(3), _indices(2), extents=(3, 4)),
        error(ValueError, "at least one", extents=()),
    )

    def infer(self, *indices: Spec) -> Spec:
        if not indices:
            raise ValueError(f"{self.name}: needs at least one index")
        if len(indices) != len(self.extents):
            raise ValueError(f"{self.name}: {len(indices)} indices for {len(self.extents)} axes")
        for index in indices:
            _check_index(self.name, index)
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
                # Clamped, so that one axis does not reach into the next.
                return k.tirx.max(k.tirx.min(k.tirx.Select(i < 0, i + n, i), last), zero)

            return rule

        both = zip(indices, self.extents, strict=True)
        linear, *others = [_te.elementwise(k, valid(n), index) for index, n in both]
        for position, n in zip(others, self.extents[1:], strict=True):
            scaled = k.topi.multiply(linear, _te.number(k, n))
            linear = k.topi.add(scaled, position)
        return linear


# Adjacent elements that one task adds at once: enough for vectors, few enough to share the work.
_COLUMNS = 256


@register
class ScatterAdd(_Index):
    """y = zeros with `extent` along `axis`, plus the slices of x at the positions of an integer
    index: gather's gradient. x.shape is y.shape[:axis] + index.shape + y.shape[axis + 1:]."""

    extent: int
    axis: int = 0

    samples = (
        sample((5, 4), _indices(5), extent=3),
        sample((3, 2, 3), _indices(2, 3, dtype="int32"), extent=4, axis=1),
        sample((2, 2, 2), _indices(2, low=-3), extent=3, axis=1),
        sample((), _indices(), extent=3),
        sample((0, 2), _indices(0), extent=3),
        sample((2, 0), _indices(2), extent=3),
    )
    error_samples = (
        error(TypeError, "float32", (3, 4), (3,), extent=3),
        error(ShapeError, r"\(3, 4\).*\(2,\)", (3, 4), _indices(2), extent=3),
        error(ShapeError, "axis 2", (3, 4), _indices(4), extent=3, axis=2),
        error(ValueError, "extent -1", (3, 4), _indices(3), extent=-1),
        error(TypeError, "bool", Arg((3,), dtype="bool"), _indices(3), extent=3),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        _check_index(self.name, index)
        if x.dtype == "bool":
            raise TypeError(f"{self.name}: the input is bool, which does not add up")
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
                f"{self.name}: x {x.shape} has at axis {self.axis} not the index's shape "
                f"{index.shape}"
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
        return apply(Gather(self.axis), (out_grad, node.inputs[1])), None

    def emit_te(self, k: TeNamespace, x: TeTensor, index: TeTensor) -> TeTensor:
        """One pass over x in index order; threads divide the axes that are not indexed."""
        end = self.axis + len(index.shape)
        shape = (*x.shape[: self.axis], self.extent, *x.shape[end:])
        if any(_te.is_zero(n) for n in (*x.shape, self.extent)):
            return k.te.compute(shape, lambda *_: _te.full_like(k, x, 0))
        outer, count, row = (
            prod(x.shape[part], start=k.tirx.const(1, "int64"))
            for part in (slice(self.axis), slice(self.axis, end), slice(end, None))
        )
        columns = k.te.min(row, _COLUMNS)
        blocks = k.tirx.floordiv(row + columns - 1, columns)

        def write(s: Any, source: Any, where: Any, out: Any) -> None:
            with s.parallel(0, outer * blocks) as task:
                at, first = k.tirx.floordiv(task, blocks), k.tirx.floormod(task, blocks) * columns
                width = k.te.min(columns, row - first)
                with s.serial(0, self.extent) as i, s.serial(0, width) as j:
                    out[(at * self.extent + i) * row + first + j] = _te.full_like(k, x, 0)
                with s.serial(0, count) as i:
                    place = k.tirx.Cast("int64", where[i])
                    place = k.tirx.Select(place < 0, place + self.extent, place)
                    with s.If(k.tirx.all(place >= 0, place < self.extent)), s.Then():
                        with s.serial(0, width) as j:
                            to = (at * self.extent + place) * row + first + j
                            out[to] = out[to] + source[(at * count + i) * row + first + j]

        def body(ins: Sequence[Any], outs: Sequence[Any]) -> Stmt:
            def flat(s: Any) -> None:
                write(s, *(s.buffer_proxy(buffer) for buffer in (*ins, *outs)))

            return k.statements(flat)

        return k.te.extern([shape], [x, index], body, dtype=_te.dtype_of(x), name="scatter_add")


def one_hot(a: Tensor, num_classes: int, dtype: str = "float32") -> Tensor:
    """Rows of the identity matrix selected by class numbers: shape a.shape + (num_classes,).

    Raises IndexError for a class number outside 0..num_classes - 1. A compiled function checks the
    class numbers it is called with; for one that it computes itself the row is zeros.
    """
    return apply(OneHot(num_classes, dtype), (a,))


def gather(a: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """The slices of `a` along `axis` that an int32 or int64 `index` of any shape names (np.take).

    Negative indices count from the end. Raises IndexError for one out of range. A compiled function
    checks the indices it is called with, and clamps those that it computes itself.
    """
    return apply(Gather(axis), (a, index))


def ravel_index(indices: Sequence[Tensor], extents: Sequence[int]) -> Tensor:
    """Integer Tensors, one per axis of `extents`, as one row-major int64 index over all of these
    axes. They broadcast; negative ones count from the end. IndexError if one is out of range."""
    return apply(RavelIndex(tuple(map(as_extent, extents))), tuple(indices))


def scatter_add(a: Tensor, index: Tensor, extent: int, axis: int = 0) -> Tensor:
    """Zeros with `extent` along `axis`, plus the slices of `a` at `index`; the axes of `index` are
    those of `a` from `axis` on. Raises IndexError for an index out of range. A compiled function
    checks the indices it is called with, and skips invalid ones that it computes itself."""
    return apply(ScatterAdd(extent, axis), (a, index))


def embedding(index: Tensor, weight: Tensor) -> Tensor:
    """Rows of `weight` (count, dim) selected by an integer index: index.shape + (dim,)."""
    return gather(weight, index)
