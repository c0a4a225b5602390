"""Softmax and related ops. Each subtracts the maximum, so that no exponential overflows."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Axes, Spec, as_axes, normalize_axes, normalize_axis
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray import where as nd_where
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating, is_half
from ..errors import ShapeError
from ..op import Op, Reduce, in_float32, register, remembered
from ..op.samples import Arg, error, sample
from ..op.signatures import Array, Expr, TeNamespace, TeTensor
from . import _te
from ._scalars import takes_scalars
from .elementwise import cast, exp
from .reduce import _ERRORS, _samples, summation


def _float_dtype(dtype: str) -> str:
    return dtype if is_floating(dtype) else FLOAT_OF_INTEGER


def _float(x: Array) -> Array:
    return x.astype(_float_dtype(str(x.dtype)), copy=False)


@register
class LogSumExp(Reduce):
    """y = log(sum(exp(x))) over `axes` (None: all), without overflow for large or infinite x."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    name = "logsumexp"
    reads = frozenset({"inputs", "output"})
    samples = (
        *_samples(-3, 3, empty=False),
        sample(Arg((2, 3), 900, 1000), axes=1, keepdims=False),
        sample(Arg((2, 3), -1000, -900), axes=1, keepdims=False),
    )
    error_samples = (*_ERRORS, error(ShapeError, "no elements", (2, 0), axes=1))

    def infer(self, x: Spec) -> Spec:
        out: Spec = super().infer(x)
        if any(x.shape[a] == 0 for a in normalize_axes(self.name, self.axes, x.ndim)):
            raise ShapeError(f"{self.name}: shape {x.shape} has no elements along {self.axes}")
        return out

    def dtype_of(self, dtype: str) -> str:
        return _float_dtype(dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = _float(x)
        top = np.max(x, axis=self.axes, keepdims=True)
        top = np.where(np.isfinite(top), top, 0).astype(x.dtype)
        out = np.log(np.sum(np.exp(x - top), axis=self.axes, keepdims=True)) + top
        return out.reshape(np.sum(x, axis=self.axes, keepdims=self.keepdims).shape)

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        x = _float(x)
        top = x.max(self.axes, keepdims=True)
        top = nd_where(top.isfinite(), top, 0.0)  # inf - inf is NaN
        out = (x - top).exp().sum(self.axes, keepdims=True).log() + top
        if self.keepdims:
            return out
        gone = normalize_axes(self.name, self.axes, x.ndim)
        return out.reshape(tuple(n for i, n in enumerate(out.shape) if i not in gone))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        dtype, y = x.dtype, node
        if is_half(dtype):
            # The exponential would magnify the rounding of the output to half precision.
            x, out_grad = cast(x, "float32"), cast(out_grad, "float32")
            y = apply(self, (x,))
        return cast(self.expand(out_grad, x) * exp(x - self.expand(y, x)), dtype)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        axes = normalize_axes(self.name, self.axes, len(x.shape))
        top = _te.maximum_over(k, x, axes, True)
        zero = _te.full_like(k, x, 0)
        top = _te.elementwise(k, lambda v: k.tirx.Select(k.tirx.isfinite(v), v, zero), top)
        total = _te.reduce_over(k, k.te.sum, k.topi.exp(k.topi.subtract(x, top)), axes, True)
        out = k.topi.add(k.topi.log(total), top)
        if self.keepdims or not axes:
            return out
        return k.topi.squeeze(out, list(axes))


class _AlongAxis(Op):
    axis: int

    def infer(self, x: Spec) -> Spec:
        normalize_axis(self.name, self.axis, x.ndim)
        return Spec(x.shape, _float_dtype(x.dtype), x.device)

    def reduction_length(self, x: Spec) -> int:
        return x.shape[self.axis]

    def shifted(self, k: TeNamespace, x: TeTensor) -> tuple[TeTensor, tuple[int, ...]]:
        """Return x - max(x) and the axis, for `emit_te`."""
        x = _te.as_float(k, x)
        axes = (normalize_axis(self.name, self.axis, len(x.shape)),)
        return k.topi.subtract(x, _te.maximum_over(k, x, axes, True)), axes


_AXIS_SAMPLES = (
    sample((5,)),
    sample((3, 4)),
    sample((3, 4), axis=0),
    sample((2, 3, 4), axis=1),
    sample(Arg((2, 3), 900, 1000)),
    sample((0, 3)),
    sample((3, 0)),
)
_AXIS_ERRORS = (
    error(ShapeError, "out of range", (2, 3), axis=2),
    error(ShapeError, "out of range", ()),
)


@register
class Softmax(_AlongAxis):
    """y = exp(x) / sum(exp(x)) along `axis`."""

    axis: int = -1

    reads = frozenset({"output"})
    samples = _AXIS_SAMPLES
    error_samples = _AXIS_ERRORS

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = _float(x)
        if not x.size:
            return x
        e = np.exp(x - np.max(x, axis=self.axis, keepdims=True))
        return e / np.sum(e, axis=self.axis, keepdims=True)

    def compute(self, x: NDArray) -> NDArray:
        return x.softmax(self.axis)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        weighted = out_grad * node
        return weighted - node * summation(weighted, self.axis, keepdims=True)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        shifted, axes = self.shifted(k, x)
        e = k.topi.exp(shifted)
        # The loop that computes the exponentials also sums them, and float64 sums would halve its
        # vector length. The terms are at most 1, so float32 sums are accurate enough.
        total = _te.reduce_over(k, k.te.sum, e, axes, True, wide=False)
        return k.topi.divide(e, total)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return r.op.nn.softmax(x, self.axis) if is_floating(str(x.ty.dtype)) else None


@register
class LogSoftmax(_AlongAxis):
    """y = x - log(sum(exp(x))) along `axis`."""

    axis: int = -1

    name = "logsoftmax"
    reads = frozenset({"output"})
    samples = _AXIS_SAMPLES
    error_samples = _AXIS_ERRORS

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = _float(x)
        if not x.size:
            return x
        shifted = x - np.max(x, axis=self.axis, keepdims=True)
        return shifted - np.log(np.sum(np.exp(shifted), axis=self.axis, keepdims=True))

    def compute(self, x: NDArray) -> NDArray:
        return x.softmax(self.axis, log=True)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return out_grad - exp(node) * summation(out_grad, self.axis, keepdims=True)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        shifted, axes = self.shifted(k, x)
        total = _te.reduce_over(k, k.te.sum, k.topi.exp(shifted), axes, True, wide=False)
        return k.topi.subtract(shifted, k.topi.log(total))

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        return r.op.nn.log_softmax(x, self.axis) if is_floating(str(x.ty.dtype)) else None


_SOFTMAX, _LOGSOFTMAX = remembered(Softmax), remembered(LogSoftmax)


@takes_scalars
def logsumexp(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(a))) over `axes` (None: all), without overflow. Raises ShapeError if there
    are no elements."""
    return apply(LogSumExp(as_axes("logsumexp", axes), keepdims), (a,))


@takes_scalars
def softmax(a: Tensor, axis: int = -1) -> Tensor:
    """Return exp(a) / sum(exp(a)) along `axis`, without overflow.

    >>> ndl.softmax(ndl.zeros(4)).numpy().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return apply(_SOFTMAX(axis), (a,))


@takes_scalars
def logsoftmax(a: Tensor, axis: int = -1) -> Tensor:
    """Return log(softmax(a)) along `axis`, without overflow."""
    return apply(_LOGSOFTMAX(axis), (a,))
