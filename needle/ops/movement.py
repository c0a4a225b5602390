"""Ops that reverse, spread or pad elements, or add or drop axes of extent 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index as as_int
from types import ModuleType
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.dtypes import value_in
from ..autograd.shapes import Axes, Shape, Spec, as_axes, normalize_axes
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, zeros
from ..errors import ShapeError
from ..op import Movement, register
from ..op.samples import Arg, error, sample
from ..op.signatures import Expr, Extent, TeNamespace, TeTensor
from ..sizes.dims import Expression
from ..sizes.extents import as_extent
from . import _te
from ._keys import Range
from ._scalars import takes_scalars
from .shape import reshape
from .slicing import slice as get_slice


@register
class Flip(Movement):
    """y = x with its elements reversed along `axes` (None: all)."""

    may_share = True

    axes: int | Shape | None = None

    samples = (
        sample((3, 4)),
        sample((3, 4), axes=0),
        sample((2, 3, 4), axes=(0, -1)),
        sample((2, 3), axes=()),
        sample(()),
        sample((0, 3), axes=1),
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), axes=2),
        error(ShapeError, "twice", (2, 3), axes=(1, -1)),
    )

    def shape_of(self, shape: Shape) -> Shape:
        normalize_axes(self.name, self.axes, len(shape))
        return shape

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.flip(x, self.axes)

    def compute(self, x: NDArray) -> NDArray:
        return x.flip(self.axes)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return apply(self, (out_grad,))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        over = normalize_axes(self.name, self.axes, len(x.shape))

        def body(*i: Expr) -> Expr:
            return x(*(x.shape[a] - 1 - at if a in over else at for a, at in enumerate(i)))

        return k.te.compute(x.shape, body)


class _Spread(Movement):
    axes: int | Shape | None
    dilation: int

    def over(self, ndim: int) -> Shape:
        """Return the axes that change, counted from the front."""
        if self.dilation < 0:
            raise ValueError(f"{self.name}: dilation {self.dilation} is negative")
        return normalize_axes(self.name, self.axes, ndim)

    def key(self, ndim: int) -> tuple[slice, ...]:
        """Return the key that selects the original elements from among the zeros."""
        over = self.over(ndim)
        return tuple(slice(None, None, self.dilation + 1 if a in over else 1) for a in range(ndim))


_SPREAD_ERRORS = (
    error(ShapeError, "out of range", (2, 3), axes=(2,), dilation=1),
    error(ValueError, "dilation -1", (2, 3), axes=(0,), dilation=-1),
)


@register
class Dilate(_Spread):
    """y = x with `dilation` zeros after each element along `axes`; these extents are multiplied by
    dilation + 1."""

    axes: int | Shape | None
    dilation: int

    infer_first = True
    samples = (
        sample((3, 4), axes=(0,), dilation=1),
        sample((2, 3, 2), axes=(0, -1), dilation=2),
        sample((3,), axes=0, dilation=0),
        sample((2, 2), axes=None, dilation=1),
        sample((0, 3), axes=1, dilation=1),
    )
    error_samples = _SPREAD_ERRORS

    def shape_of(self, shape: Shape) -> Shape:
        over = self.over(len(shape))
        return tuple(n * (self.dilation + 1) if a in over else n for a, n in enumerate(shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros(self.shape_of(x.shape), x.dtype)
        out[self.key(x.ndim)] = x
        return out

    def compute(self, x: NDArray) -> NDArray:
        out = zeros(self.shape_of(x.shape), x.dtype, x.device)
        out[self.key(x.ndim)] = x
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return apply(Undilate(self.axes, self.dilation), (out_grad,))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        over, step = self.over(len(x.shape)), self.dilation + 1
        if step == 1 or not over:
            return k.topi.identity(x)
        shape = [n * step if a in over else n for a, n in enumerate(x.shape)]

        def body(*i: Expr) -> Expr:
            hits = [k.tirx.floormod(i[a], step) == 0 for a in over]
            source = [k.tirx.floordiv(at, step) if a in over else at for a, at in enumerate(i)]
            return k.tirx.if_then_else(k.tirx.all(*hits), x(*source), _te.full_like(k, x, 0))

        return k.te.compute(shape, body)


@register
class Undilate(_Spread):
    """y = every (dilation + 1)-th element of x along `axes`, starting with the first."""

    may_share = True

    axes: int | Shape | None
    dilation: int

    infer_first = True
    samples = (
        sample((6, 4), axes=(0,), dilation=1),
        sample((6, 3, 4), axes=(0, -1), dilation=2),
        sample((3,), axes=0, dilation=0),
        sample((0, 3), axes=1, dilation=1),
    )
    error_samples = _SPREAD_ERRORS

    def shape_of(self, shape: Shape) -> Shape:
        over, step = self.over(len(shape)), self.dilation + 1
        return tuple(-(-n // step) if a in over else n for a, n in enumerate(shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x[self.key(x.ndim)]

    def compute(self, x: NDArray) -> NDArray:
        return x[self.key(x.ndim)]

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        spread = apply(Dilate(self.axes, self.dilation), (out_grad,))
        shape = node.inputs[0].shape
        return get_slice(spread, tuple(slice(0, n) for n in shape))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        over, step = self.over(len(x.shape)), self.dilation + 1
        shape = [(n + step - 1) // step if a in over else n for a, n in enumerate(x.shape)]

        def body(*i: Expr) -> Expr:
            return x(*(at * step if a in over else at for a, at in enumerate(i)))

        return k.te.compute(shape, body)


@register
class Pad(Movement):
    """y = x with (low, high) elements of `value` before and after it along each axis."""

    padding: tuple[tuple[int, int], ...]
    value: float = 0

    infer_first = True
    samples = (
        sample((3, 4), padding=((1, 2), (0, 1))),
        sample((2, 3), padding=((0, 0), (2, 0)), value=-1.5),
        sample((3,), padding=((0, 0),)),
        sample((), padding=()),
        sample((0, 2), padding=((1, 0), (0, 1)), value=1),
        sample((2,), padding=((1, 2),), value=-2.5),
        sample((2,), padding=((1, 2),), value=True),
    )
    error_samples = (
        error(ShapeError, "each of 2", (2, 3), padding=((1, 1),)),
        error(ValueError, "negative", (2,), padding=((-1, 1),)),
        error(TypeError, "not a Python number", (2,), padding=((1, 1),), value="0"),
        *(
            error(
                ValueError,
                f"range of {dtype}",
                Arg((2,), dtype=dtype),
                padding=((1, 1),),
                value=value,
            )
            for dtype, value in (("int32", 2**31), ("int64", math.nan), ("int64", -math.inf))
        ),
    )

    def shape_of(self, shape: Shape) -> Shape:
        if len(self.padding) != len(shape):
            raise ShapeError(
                f"{self.name}: padding {self.padding} does not give a pair for each of "
                f"{len(shape)} dimensions"
            )
        if any(n < 0 for pair in self.padding for n in pair):
            raise ValueError(f"{self.name}: padding {self.padding} has a negative width")
        pairs = zip(shape, self.padding, strict=True)
        return tuple(n + low + high for n, (low, high) in pairs)

    def infer(self, x: Spec) -> Spec:
        value_in(self.name, self.value, x.dtype)
        return super().infer(x)

    def reference(self, x: np.ndarray) -> np.ndarray:
        value = np.asarray(self.value).astype(x.dtype)
        return np.pad(x, self.padding, constant_values=value) if x.ndim else x

    def compute(self, x: NDArray) -> NDArray:
        return x.pad(self.padding, value_in(self.name, self.value, x.dtype))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        pairs = zip(self.padding, node.inputs[0].shape, strict=True)
        return get_slice(out_grad, tuple(Range(low, low + n) for (low, _), n in pairs))

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        around = _te.full_like(k, x, value_in(self.name, self.value, _te.dtype_of(x)))
        shape = [n + low + high for n, (low, high) in zip(x.shape, self.padding, strict=True)]

        def body(*i: Expr) -> Expr:
            inside, source = [], []
            for at, n, (low, high) in zip(i, x.shape, self.padding, strict=True):
                inside += [at >= low] * (not _te.is_zero(low))
                inside += [at < n + low] * (not _te.is_zero(high))
                source.append(at - low)
            if not inside:
                return x(*source)
            return k.tirx.if_then_else(k.tirx.all(*inside), x(*source), around)

        return k.te.compute(shape, body)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        widths = [n for pair in self.padding for n in pair]
        images = len(self.padding) == 4 and not any(widths[:4])
        floats = str(x.ty.dtype) in ("float32", "float64")
        zero = self.value == 0 and math.copysign(1, self.value) == 1  # -0.0 is another number
        if not (images and floats and zero and all(isinstance(n, int) for n in widths)):
            return None
        return r.op.nn.pad(x, widths)  # fold_pad may merge it into a convolution


@register
class Squeeze(Movement):
    """y = x without `axes`, which have extent 1 (None: all axes of extent 1)."""

    may_share = True

    axes: int | Shape | None = None

    samples = (
        sample((1, 3, 1)),
        sample((1, 3, 1), axes=0),
        sample((1, 3, 1), axes=(0, -1)),
        sample((3, 1, 0), axes=1),
        sample((2, 3), axes=()),
    )
    error_samples = (
        error(ShapeError, "axis 1 .* extent 3", (1, 3), axes=1),
        error(ShapeError, "out of range", (1, 3), axes=2),
    )

    def is_one(self, n: Extent) -> bool:
        """Return whether an extent is 1. Raises TraceError for one that is 1 at some sizes only."""
        return n == 1 if isinstance(n, Expression) else _te.is_one(n)

    def gone(self, shape: Sequence[Extent]) -> Shape:
        """Return the axes that are dropped."""
        if self.axes is None:
            return tuple(a for a, n in enumerate(shape) if self.is_one(n))
        axes = normalize_axes(self.name, self.axes, len(shape))
        for a in axes:
            if not self.is_one(shape[a]):
                raise ShapeError(
                    f"{self.name}: axis {a} of shape {shape} has extent {shape[a]}, not 1"
                )
        return axes

    def shape_of(self, shape: Shape) -> Shape:
        gone = self.gone(shape)
        return tuple(n for a, n in enumerate(shape) if a not in gone)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.squeeze(x, self.axes)

    def compute(self, x: NDArray) -> NDArray:
        return x.reshape(self.shape_of(x.shape))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return reshape(out_grad, node.inputs[0].shape)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        gone = self.gone(x.shape)
        kept = [a for a in range(len(x.shape)) if a not in gone]

        def body(*i: Expr) -> Expr:
            return x(*(0 if a in gone else i[kept.index(a)] for a in range(len(x.shape))))

        return k.te.compute([x.shape[a] for a in kept], body)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return _reshaped(r, x, self.shape_of(tuple(x.ty.shape.values)))


@register
class Unsqueeze(Movement):
    """y = x with new axes of extent 1 at the positions `axes` of y."""

    may_share = True

    axes: int | Shape

    samples = (
        sample((3, 4), axes=0),
        sample((3, 4), axes=-1),
        sample((3,), axes=(0, 2)),
        sample((), axes=(0, 1)),
        sample((0, 2), axes=1),
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), axes=3),
        error(ShapeError, "twice", (2, 3), axes=(0, 0)),
        error(TypeError, "axes None", (2, 3), axes=None),
    )

    def new(self, ndim: int) -> Shape:
        """Return the new axes of the output for an input of `ndim` axes."""
        if self.axes is None:
            raise TypeError(
                f"{self.name}: axes None must be an int or ints: the positions of the new axes"
            )
        count = len(self.axes) if isinstance(self.axes, tuple) else 1
        return normalize_axes(self.name, self.axes, ndim + count)

    def shape_of(self, shape: Shape) -> Shape:
        new, rest = self.new(len(shape)), iter(shape)
        return tuple(1 if a in new else next(rest) for a in range(len(shape) + len(new)))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.expand_dims(x, self.axes)

    def compute(self, x: NDArray) -> NDArray:
        return x.reshape(self.shape_of(x.shape))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return reshape(out_grad, node.inputs[0].shape)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        new = self.new(len(x.shape))
        return k.te.compute(
            self.shape_of(x.shape), lambda *i: x(*(at for a, at in enumerate(i) if a not in new))
        )

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return _reshaped(r, x, self.shape_of(tuple(x.ty.shape.values)))


def _reshaped(r: ModuleType, x: Expr, shape: Shape) -> Expr | None:
    """Return x in another shape, for `emit`; TVM's reshape reads an extent of 0 as x's extent."""
    return None if any(map(_te.is_zero, shape)) else r.op.reshape(x, list(shape))


@takes_scalars
def flip(a: Tensor, axes: Axes = None) -> Tensor:
    """Return `a` with its elements reversed along `axes` (None: all). Raises ShapeError for axes
    out of range.

    >>> ndl.flip(ndl.arange(3)).numpy().tolist()
    [2, 1, 0]
    """
    return apply(Flip(as_axes("flip", axes)), (a,))


def dilate(a: Tensor, axes: Axes, dilation: int) -> Tensor:
    """Return `a` with `dilation` zeros after each element along `axes`; these extents are
    multiplied by dilation + 1."""
    return apply(Dilate(as_axes("dilate", axes), as_int(dilation)), (a,))


def undilate(a: Tensor, axes: Axes, dilation: int) -> Tensor:
    """Return every (dilation + 1)-th element along `axes`: the inverse of `dilate`."""
    return apply(Undilate(as_axes("undilate", axes), as_int(dilation)), (a,))


def pad(a: Tensor, padding: Sequence[Sequence[int]], value: float = 0) -> Tensor:
    """Return `a` with elements of `value` around it. `padding` has a pair (before, after) for each
    axis, as in NumPy. (PyTorch takes flat numbers, the last axis first.) Raises ShapeError unless
    there is a pair for each axis, ValueError for a negative width.

    >>> ndl.pad(ndl.ones(2, 3), ((0, 0), (1, 2))).shape
    (2, 6)
    """
    try:
        pairs = tuple((as_extent(low), as_extent(high)) for low, high in padding)
    except (TypeError, ValueError):
        raise TypeError(f"pad: padding {padding!r} must be pairs of integers") from None
    return apply(Pad(pairs, value), (a,))


def squeeze(a: Tensor, axes: Axes = None) -> Tensor:
    """Return `a` without the `axes`, which must have extent 1 (None: without all axes of extent 1).
    Raises ShapeError for an axis of another extent.

    >>> ndl.squeeze(ndl.zeros(1, 3, 1), axis=0).shape
    (3, 1)
    """
    return apply(Squeeze(as_axes("squeeze", axes)), (a,))


def unsqueeze(a: Tensor, axes: int | Sequence[int]) -> Tensor:
    """Return `a` with new axes of extent 1 at `axes` of the result. Raises ShapeError for axes that
    are out of range or repeated.

    >>> ndl.unsqueeze(ndl.zeros(3), 0).shape
    (1, 3)
    """
    new: Any = as_axes("unsqueeze", axes)
    return apply(Unsqueeze(new), (a,))
