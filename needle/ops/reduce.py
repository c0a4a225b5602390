"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from operator import index as as_int
from types import ModuleType

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Axes, Spec, as_axes, normalize_axes, reduced_shape
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, compute_dtype, is_floating
from ..errors import ShapeError
from ..op import Op, Reduce, in_float32, register, remembered
from ..op.samples import Arg, Sample, error, sample
from ..op.signatures import Expr, HasShape, TeNamespace, TeTensor
from ..sizes.dims import Expression
from . import _te
from ._scalars import takes_scalars
from .arithmetic import compare
from .elementwise import cast
from .shape import broadcast_to


def _samples(low: float = -2, high: float = 2, empty: bool = True) -> tuple[Sample, ...]:
    cases: list[tuple[tuple[int, ...], Axes]] = [
        ((), None),
        ((5,), None),
        ((3, 4), None),
        ((3, 4), 0),
        ((3, 4), -1),
        ((3, 4), (0, 1)),
        ((2, 3, 4), (0, 2)),
        ((2, 3, 4), (1,)),
        ((2, 3), ()),
        ((2, 0, 3), 0),
        *([((2, 0, 3), 1), ((0,), None)] if empty else []),
    ]
    return tuple(
        sample(Arg(shape, low, high), axes=axes, keepdims=keepdims)
        for shape, axes in cases
        for keepdims in (False, True)
    )


_ERRORS = (
    error(ShapeError, "out of range", (2, 3), axes=2),
    error(ShapeError, "out of range", (2, 3), axes=-3),
    error(ShapeError, "twice", (2, 3), axes=(0, -2)),
)


class _Reduce(Reduce):
    def over(self, x: HasShape) -> tuple[int, ...]:
        """Return the reduction axes, counted from the front."""
        return normalize_axes(self.name, self.axes, len(x.shape))


@register
class Summation(_Reduce):
    """y = the sum of x over `axes` (None: all); bools and integers are summed in int64."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    samples = _samples()
    error_samples = _ERRORS

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else "int64"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.sum(x, axis=self.axes, keepdims=self.keepdims)

    def compute(self, x: NDArray) -> NDArray:
        return x.sum(self.axes, self.keepdims)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        return broadcast_to(self.expand(out_grad, x), x.shape)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.cast(k, x, self.dtype_of(_te.dtype_of(x)))
        return _te.reduce_over(k, k.te.sum, x, self.over(x), self.keepdims)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        axes = normalize_axes(self.name, self.axes, len(x.ty.shape.values))
        if str(x.ty.dtype) not in ("float32", "float64") or not axes:
            return None
        return r.op.sum(x, list(axes), self.keepdims)


@register
class Mean(_Reduce):
    """y = the mean of x over `axes` (None: all), NaN over no elements; integers give float64."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    samples = _samples(empty=False)
    error_samples = _ERRORS

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.mean(x, axis=self.axes, keepdims=self.keepdims)

    def compute(self, x: NDArray) -> NDArray:
        return x.mean(self.axes, self.keepdims)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        count = prod(x.shape[a] for a in self.over(x))
        return broadcast_to(self.expand(out_grad / count, x), x.shape) if count else out_grad * 0

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        total = _te.reduce_over(k, k.te.sum, x, self.over(x), self.keepdims)
        count = prod((x.shape[a] for a in self.over(x)), start=k.tirx.const(1, "int64"))
        return _te.divided(k, total, count)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        extents = list(x.ty.shape.values)
        axes = normalize_axes(self.name, self.axes, len(extents))
        empty = any(_te.is_zero(extents[axis]) for axis in axes)
        if not is_floating(str(x.ty.dtype)) or not axes or empty:
            return None
        return r.op.mean(x, list(axes), self.keepdims)


@register
class Var(_Reduce):
    """y = the sum of (x - mean(x)) ** 2 over `axes` (None: all), divided by n - correction."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False
    correction: int = 0

    reads = frozenset({"inputs"})
    samples = (
        *_samples(empty=False),
        sample((3, 4), axes=1, correction=1),
        sample((3, 1), axes=1),
        sample((3, 1), axes=1, correction=1),
        sample(Arg((2, 5), 900, 1000), axes=1),
    )
    error_samples = _ERRORS

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def reduction_length(self, x: Spec) -> int:
        return super().reduction_length(x) ** 2

    def count(self, x: HasShape) -> int:
        """Return the divisor of the sum of squares."""
        return prod(x.shape[a] for a in self.over(x)) - self.correction

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = x if is_floating(x.dtype.name) else x.astype("float64")
        centred = x - np.mean(x, axis=self.axes, keepdims=True)
        total = np.sum(centred * centred, axis=self.axes, keepdims=self.keepdims)
        return (total / np.asarray(self.count(x), x.dtype)).astype(x.dtype)

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        x = x.astype(self.dtype_of(x.dtype), copy=False)
        centred = x - x.mean(self.axes, keepdims=True)
        return centred.square().sum(self.axes, self.keepdims) / float(self.count(x))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        wide = cast(x, compute_dtype(x.dtype))  # a mean in half precision would be too inexact
        centred = wide - mean(wide, self.axes, keepdims=True)
        count = self.count(x)
        grad = (
            out_grad * 2 / count
            if isinstance(count, Expression)
            else (out_grad * (2 / count if count else inf))
        )
        grad = self.expand(grad, x) * centred
        return cast(grad, x.dtype)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        axes = self.over(x)
        _, centred, _ = _te.moments(k, x, axes)
        squares = k.topi.multiply(centred, centred)
        total = _te.reduce_over(k, k.te.sum, squares, axes, self.keepdims)
        count = prod((x.shape[a] for a in axes), start=k.tirx.const(1, "int64"))
        return _te.divided(k, total, count - self.correction)


class _Extreme(_Reduce):
    reads = frozenset({"inputs", "output"})
    compares = True
    samples = _samples(empty=False)
    error_samples = (*_ERRORS, error(ShapeError, "no elements", (2, 0), axes=1))

    def infer(self, x: Spec) -> Spec:
        out: Spec = super().infer(x)
        if any(x.shape[a] == 0 for a in self.over(x)):
            raise ShapeError(f"{self.name}: shape {x.shape} has no elements along {self.axes}")
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        chosen = cast(compare("equal", x, self.expand(node, x)), x.dtype)
        count = summation(chosen, self.axes, keepdims=True)
        return self.expand(out_grad, x) * (chosen / count)

    def te(self, k: TeNamespace, x: TeTensor, over: Callable[..., TeTensor]) -> TeTensor:
        """Apply `over`, a reduction from _te; bools are compared as int32."""
        if _te.dtype_of(x) != "bool":
            return over(k, x, self.over(x), self.keepdims)
        wide = _te.cast(k, x, "int32")
        return _te.cast(k, over(k, wide, self.over(x), self.keepdims), "bool")


@register
class Max(_Extreme):
    """y = the largest element of x over `axes` (None: all), NaN if any is NaN. Raises ShapeError if
    there are no elements. Equal largest elements share the gradient equally."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.max(x, axis=self.axes, keepdims=self.keepdims)

    def compute(self, x: NDArray) -> NDArray:
        return x.max(self.axes, self.keepdims)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return self.te(k, x, _te.maximum_over)


@register
class Min(_Extreme):
    """y = the smallest element of x over `axes` (None: all), NaN if any is NaN. Raises ShapeError
    if there are no elements. Equal smallest elements share the gradient equally."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.min(x, axis=self.axes, keepdims=self.keepdims)

    def compute(self, x: NDArray) -> NDArray:
        return x.min(self.axes, self.keepdims)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        return self.te(k, x, _te.minimum_over)


@register
class Argmax(Op):
    """y = the int64 index of the first largest element along `axis` (None: in the flattened x); NaN
    counts as the largest. No gradient flows back."""

    axis: int | None = None
    keepdims: bool = False

    infer_first = True
    samples = tuple(
        Sample((Arg(shape),), {"axis": axis, "keepdims": keepdims})
        for shape, axis in (
            ((), None),
            ((5,), 0),
            ((3, 4), None),
            ((3, 4), 0),
            ((2, 3, 4), -1),
            ((2, 3, 4), 1),
            ((0, 2), 1),
        )
        for keepdims in (False, True)
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), axis=2),
        error(ShapeError, "no elements", (2, 0), axis=1),
        error(ShapeError, "no elements", (0,)),
    )

    def infer(self, x: Spec) -> Spec:
        axes = normalize_axes(self.name, self.axis, x.ndim)
        if any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"{self.name}: shape {x.shape} has no elements along {self.axis}")
        return Spec(reduced_shape(x.shape, axes, self.keepdims), "int64", x.device)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(x, self.axis, keepdims=self.keepdims), "int64")

    def compute(self, x: NDArray) -> NDArray:
        return x.argmax(self.axis, self.keepdims)

    def gradient(self, out_grad: Tensor, node: Tensor) -> None:
        return None

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        axes = normalize_axes(self.name, self.axis, len(x.shape))
        shape = [1 if a in axes else n for a, n in enumerate(x.shape)]
        shape = [n for a, n in enumerate(shape) if self.keepdims or a not in axes]
        if not axes:
            return k.te.compute(shape, lambda *_: k.tirx.const(0, "int64"))
        if _te.dtype_of(x) == "bool":
            x = _te.cast(k, x, "int32")
        floating = is_floating(_te.dtype_of(x))
        top = _te.maximum_over(k, x, axes, True)
        over = {a: k.te.reduce_axis((0, x.shape[a]), name=f"r{a}") for a in axes}
        nowhere = k.tirx.max_value("int64")

        def body(*o: Expr) -> Expr:
            """Return the least index whose element equals the largest; NaN counts as equal."""
            rest = list(o)
            index, place = [], k.tirx.const(0, "int64")
            for a, n in enumerate(x.shape):
                if a not in over:
                    index.append(rest.pop(0))
                    continue
                index.append(over[a].var)
                place = place * k.tirx.Cast("int64", n) + k.tirx.Cast("int64", over[a].var)
                if self.keepdims:
                    rest.pop(0)
            value = x[tuple(index)]
            hit = value == top[tuple(0 if a in over else i for a, i in enumerate(index))]
            if floating:
                hit = k.tirx.any(hit, k.tirx.isnan(value))
            return k.te.min(k.tirx.Select(hit, place, nowhere), axis=list(over.values()))

        return k.te.compute(shape, body, name="argmax")


_SUMMATION = remembered(Summation)
_MEAN = remembered(Mean)
_MAX = remembered(Max)
_MIN = remembered(Min)
_VAR = remembered(Var)
_ARGMAX = remembered(Argmax)


@takes_scalars
def summation(
    a: Tensor, axes: Axes = None, keepdims: bool = False, *, dtype: str | None = None
) -> Tensor:
    """Return the sum of `a` over `axes` (None: all). `a` is first converted to `dtype`, if given.
    Raises ShapeError for axes that are out of range or repeated."""
    a = a if dtype is None else cast(a, dtype)
    return apply(_SUMMATION(as_axes("summation", axes), keepdims), (a,))


@takes_scalars
def mean(
    a: Tensor, axes: Axes = None, keepdims: bool = False, *, dtype: str | None = None
) -> Tensor:
    """Return the mean of `a` over `axes` (None: all). `a` is first converted to `dtype`, if given.
    Raises ShapeError for axes that are out of range or repeated.

    >>> ndl.mean(ndl.Tensor([[1.0, 3.0], [5.0, 7.0]]), axis=0).numpy().tolist()
    [3.0, 5.0]
    """
    a = a if dtype is None else cast(a, dtype)
    return apply(_MEAN(as_axes("mean", axes), keepdims), (a,))


@takes_scalars
def max(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over `axes` (None: all), NaN if any is NaN. Raises ShapeError if
    there are no elements. The positions are not returned: PyTorch's `max(dim)` is
    `x.max(dim), x.argmax(dim)`.

    >>> ndl.max(ndl.Tensor([[1.0, 5.0], [7.0, 2.0]]), axis=0).numpy().tolist()
    [7.0, 5.0]
    """
    return apply(_MAX(as_axes("max", axes), keepdims), (a,))


@takes_scalars
def min(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over `axes` (None: all), NaN if any is NaN. Raises ShapeError if
    there are no elements."""
    return apply(_MIN(as_axes("min", axes), keepdims), (a,))


@takes_scalars
def var(a: Tensor, axes: Axes = None, keepdims: bool = False, correction: int = 0) -> Tensor:
    """Return the variance over `axes` (None: all): the sum of squared distances from the mean,
    divided by n - correction (correction=1: unbiased). PyTorch's default `correction` is 1.

    >>> x = ndl.Tensor([1.0, 3.0])
    >>> x.var().item(), x.var(correction=1).item()
    (1.0, 2.0)
    """
    if not isinstance(correction, (int, float)):
        raise TypeError(f"var: correction is a {type(correction).__name__}, not a number")
    return apply(_VAR(as_axes("var", axes), keepdims, correction), (a,))


@takes_scalars
def argmax(a: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 index of the first largest element along `axis` (None: in the flattened
    tensor); NaN counts as the largest.

    >>> ndl.argmax(ndl.Tensor([[1.0, 5.0], [7.0, 2.0]]), axis=1).numpy().tolist()
    [1, 0]
    """
    return apply(_ARGMAX(None if axis is None else as_int(axis), keepdims), (a,))
