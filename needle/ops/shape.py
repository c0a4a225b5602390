"""Ops that move or repeat elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from ..autograd.dispatch import apply, moved
from ..autograd.shapes import Spec, as_axes, as_shape, is_one, normalize_axes
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..errors import ShapeError, TraceError
from ..op import Movement, register, unbroadcast
from ..op.samples import error, sample
from ..op.signatures import Expr, Extent, TeNamespace, TeTensor
from ..sizes.dims import Expression
from ..sizes.extents import same


@register
class Permute(Movement):
    """y = x with its axes in the order `axes`."""

    may_share = True

    axes: tuple[int, ...]

    samples = (
        sample((3, 4), axes=(1, 0)),
        sample((2, 3, 4), axes=(2, 0, 1)),
        sample((2, 3, 4), axes=(0, -1, -2)),
        sample((), axes=()),
        sample((0, 3), axes=(1, 0)),
    )
    error_samples = (
        error(ShapeError, "twice", (2, 3), axes=(0, 0)),
        error(ShapeError, "out of range", (2, 3), axes=(0, 2)),
        error(ShapeError, "2 dimensions", (2, 3), axes=(0,)),
    )

    def order(self, ndim: int) -> tuple[int, ...]:
        """Return `axes`, counted from the front."""
        axes = normalize_axes(self.name, self.axes, ndim)
        if len(axes) != ndim:
            raise ShapeError(f"{self.name}: axes {self.axes} do not name all {ndim} dimensions")
        return axes

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape[a] for a in self.order(len(shape)))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, self.axes)

    def compute(self, x: NDArray) -> NDArray:
        return x.permute(self.axes)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return permute(out_grad, np.argsort(self.order(out_grad.ndim)).tolist())

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.transpose(x, self.order(len(x.shape))) if x.shape else k.topi.identity(x)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return r.op.permute_dims(x, list(self.order(len(x.ty.shape))))


@register
class Transpose(Movement):
    """y = x with two axes exchanged (None: the last two)."""

    may_share = True

    axes: tuple[int, ...] | None = None

    samples = (
        sample((3, 4)),
        sample((2, 3, 4)),
        sample((2, 3, 4), axes=(0, 2)),
        sample((2, 3, 4), axes=(-1, 0)),
        sample((0, 3)),
    )
    error_samples = (
        error(ShapeError, "two axes", (2, 3, 4), axes=(0, 1, 2)),
        error(ShapeError, "out of range", (2, 3), axes=(0, 2)),
        error(ShapeError, "transpose", (2,)),
    )

    def order(self, ndim: int) -> tuple[int, ...]:
        """Return the axis of x for each axis of y."""
        pair = normalize_axes(self.name, (-1, -2) if self.axes is None else self.axes, ndim)
        if len(pair) != 2:
            raise ShapeError(f"{self.name}: axes {self.axes} must be two axes (or use permute)")
        out = list(range(ndim))
        out[pair[0]], out[pair[1]] = pair[1], pair[0]
        return tuple(out)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape[a] for a in self.order(len(shape)))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, self.order(x.ndim))

    def compute(self, x: NDArray) -> NDArray:
        return x.permute(self.order(x.ndim))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return apply(self, (out_grad,))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.transpose(x, self.order(len(x.shape)))

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return r.op.permute_dims(x, list(self.order(len(x.ty.shape))))


@register
class Reshape(Movement):
    """y = the elements of x in the same order, in another shape."""

    may_share = True

    shape: tuple[int, ...]

    samples = (
        sample((3, 4), shape=(2, 6)),
        sample((2, 3, 4), shape=(24,)),
        sample((1, 1), shape=()),
        sample((), shape=(1, 1)),
        sample((6,), shape=(-1, 2)),
        sample((0, 3), shape=(3, 0)),
    )
    error_samples = (
        error(ShapeError, r"\(3, 4\).*12.*\(5,\).*5", (3, 4), shape=(5,)),
        error(ShapeError, "two extents", (3, 4), shape=(-1, -1)),
        error(ShapeError, "-1", (3, 4), shape=(-1, 5)),
        error(ShapeError, "negative", (3, 4), shape=(-3, -4)),
    )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        size, new = prod(shape), self.shape
        if -1 in new:
            rest = prod(n for n in new if n != -1)
            if new.count(-1) > 1:
                raise ShapeError(f"{self.name}: shape {new} leaves two extents open")
            if isinstance(size % rest, Expression):
                raise TraceError(
                    f"{self.name}: tracing: whether {size} elements give a whole number for the "
                    f"-1 in {new} is not known at every size; give the Dim a multiple_of"
                )
            if rest <= 0 or size % rest:
                raise ShapeError(
                    f"{self.name}: shape {shape} ({size} elements) gives no whole number for "
                    f"the -1 in {new}"
                )
            new = tuple(size // rest if n == -1 else n for n in new)
        if any(n < 0 for n in new):
            raise ShapeError(f"{self.name}: shape {new} has a negative extent")
        if prod(new) != size:
            raise ShapeError(
                f"{self.name}: shape {shape} has {size} elements, {new} has {prod(new)}"
            )
        return new

    def decided(self, x: Spec) -> Reshape:
        return Reshape(self.shape_of(x.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.reshape(x, self.shape)

    def compute(self, x: NDArray) -> NDArray:
        return x.reshape(self.shape)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return reshape(out_grad, node.inputs[0].shape)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.reshape(x, self.target(x.shape))

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return r.op.reshape(x, list(self.target(x.ty.shape)))

    def target(self, shape: Iterable[Extent]) -> tuple[Extent, ...]:
        """Return the output shape for an input `shape` that may hold symbolic extents."""
        if -1 not in self.shape:
            return self.shape
        rest = prod(n for n in self.shape if n != -1)
        extents = list(shape)
        size = prod(extents[1:], start=extents[0]) if extents else 1
        return tuple(size // rest if n == -1 else n for n in self.shape)


@register
class BroadcastTo(Movement):
    """y = the elements of x, repeated along new axes and along axes of extent 1."""

    may_share = True

    shape: tuple[int, ...]

    samples = (
        sample((3, 1), shape=(3, 4)),
        sample((4,), shape=(2, 3, 4)),
        sample((), shape=(2, 3)),
        sample((2, 3), shape=(2, 3)),
        sample((1, 3), shape=(0, 3)),
    )
    error_samples = (
        error(ShapeError, r"\(3, 4\) does not broadcast to \(3, 5\)", (3, 4), shape=(3, 5)),
        error(ShapeError, "does not broadcast", (2, 3), shape=(3,)),
    )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        tail = self.shape[len(self.shape) - len(shape) :]
        if len(shape) > len(self.shape) or any(
            not is_one(n) and n != m for n, m in zip(shape, tail, strict=True)
        ):
            raise ShapeError(f"{self.name}: shape {shape} does not broadcast to {self.shape}")
        return self.shape

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, self.shape)

    def compute(self, x: NDArray) -> NDArray:
        return x.broadcast_to(self.shape)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return unbroadcast(out_grad, node.inputs[0])

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return k.topi.broadcast_to(x, self.shape)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return r.op.broadcast_to(x, list(self.shape))


def permute(a: Tensor, axes: Sequence[int]) -> Tensor:
    """Return `a` with its axes in the order `axes`. Raises ShapeError unless `axes` names every
    axis exactly once.

    >>> ndl.permute(ndl.zeros(2, 3, 4), (2, 0, 1)).shape
    (4, 2, 3)
    """
    found = moved("permute", a, axes, _permutation)
    return apply(_permutation(axes), (a,)) if found is None else found


def transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Return `a` with two axes exchanged (None: the last two). Raises ShapeError if `axes` are not
    two axes.

    >>> ndl.transpose(ndl.zeros(2, 3, 4)).shape
    (2, 4, 3)
    """
    found = moved("transpose", a, axes, _transposition)
    return apply(_transposition(axes), (a,)) if found is None else found


def reshape(a: Tensor, shape: int | Sequence[int]) -> Tensor:
    """Return the elements of `a` in another `shape`, which may contain one -1. Raises ShapeError if
    the number of elements does not fit.

    >>> ndl.reshape(ndl.arange(6), (2, -1)).numpy().tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    if isinstance(a, Tensor) and type(shape) is tuple and same(shape, a.shape):
        return a
    found = moved("reshape", a, shape, _reshaping)
    return apply(_reshaping(shape), (a,)) if found is None else found


def _permutation(axes: Any) -> Permute:
    flat = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
    order: Any = as_axes("permute", tuple(flat))
    return Permute(order)


def _transposition(axes: Any) -> Transpose:
    pair: Any = as_axes("transpose", axes)
    return Transpose(pair)


def _reshaping(shape: Any) -> Reshape:
    return Reshape(as_shape("reshape", shape, open_extent=True))


def broadcast_to(a: Tensor, shape: int | Sequence[int]) -> Tensor:
    """Return `a` with its elements repeated to fill `shape`. Raises ShapeError if NumPy's rule does
    not allow it.

    >>> ndl.broadcast_to(ndl.arange(2), (3, 2)).numpy().tolist()
    [[0, 1], [0, 1], [0, 1]]
    """
    if isinstance(a, Tensor) and type(shape) is tuple and same(shape, a.shape):
        return a
    return apply(BroadcastTo(as_shape("broadcast_to", shape)), (a,))
