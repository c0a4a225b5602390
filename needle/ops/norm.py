"""Normalization: to mean 0 and variance 1 over some axes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..autograd import Tensor, TensorTuple, apply
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..errors import ShapeError
from ..op import Op, register
from ..samples import Arg, error, sample
from ..spec import Axes, Spec, as_axes, normalize_axes, reduced_shape
from . import _te
from .elementwise import rsqrt
from .reduce import Mean, mean, var
from .shape import reshape


def _float(x: Any) -> Any:
    dtype = getattr(x.dtype, "name", x.dtype)
    return x if is_floating(dtype) else x.astype(FLOAT_OF_INTEGER)


@register
class Normalize(Op):
    """y = (x - mean(x)) / sqrt(variance(x) + eps), both over `axes` and of the biased kind."""

    axes: int | tuple[int, ...]
    eps: float = 1e-5

    infer_first = True
    reads = frozenset({"inputs", "output"})
    samples = (
        sample((4, 3), axes=0),
        sample((3, 4), axes=-1, eps=1e-3),
        sample((2, 3, 2, 4), axes=(0, 2, 3)),
        sample((2, 3), axes=(0, 1)),
        sample(Arg((2, 5), 900, 1000), axes=1),
        sample((0, 3), axes=1),
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), axes=2),
        error(ShapeError, "twice", (2, 3), axes=(1, -1)),
        error(ShapeError, "no elements", (3, 0), axes=1),
        error(ValueError, "eps", (3, 2), axes=1, eps=-1.0),
    )

    def infer(self, x: Spec) -> Spec:
        axes = normalize_axes(self.name, self.axes, x.ndim)
        if any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"{self.name}: shape {x.shape} has no elements along {self.axes}")
        if not self.eps >= 0:
            raise ValueError(f"{self.name}: eps {self.eps} is not >= 0")
        return Spec(x.shape, x.dtype if is_floating(x.dtype) else FLOAT_OF_INTEGER, x.device)

    def reduction_length(self, x: Spec) -> int:
        return prod(x.shape[a] for a in normalize_axes(self.name, self.axes, x.ndim)) ** 2

    def reference(self, x: Any) -> Any:
        x = _float(x)
        centred = x - np.mean(x, axis=self.axes, keepdims=True)
        return centred / np.sqrt(np.mean(centred**2, axis=self.axes, keepdims=True) + self.eps)

    def compute(self, x: Any) -> Any:
        x = _float(x)
        centred = x - x.mean(self.axes, keepdims=True)
        return centred * (centred.square().mean(self.axes, keepdims=True) + self.eps).rsqrt()

    def gradient(self, out_grad: Any, node: Any) -> Any:
        (x,) = node.inputs
        scale = rsqrt(var(x, self.axes, keepdims=True) + self.eps)
        along = mean(out_grad * node, self.axes, keepdims=True)
        return (out_grad - mean(out_grad, self.axes, keepdims=True) - node * along) * scale

    def emit_te(self, k: Any, x: Any) -> Any:
        x = _te.as_float(k, x)
        centred, variance = _te.moments(k, x, normalize_axes(self.name, self.axes, len(x.shape)))
        variance = k.topi.add(variance, _te.full_like(k, x, self.eps))
        return k.topi.divide(centred, k.topi.sqrt(variance))


@register
class Standardize(Op):
    """(y, mean, variance): x normalized as by Normalize, and by what; the last two without `axes`.

    Its gradient needs y and the variance, and not x, which can go.
    """

    axes: int | tuple[int, ...]
    eps: float = 1e-5

    infer_first = True
    reads = frozenset({"output"})
    samples = Normalize.samples
    error_samples = Normalize.error_samples

    @property
    def normalize(self) -> Normalize:
        """The op that gives y alone."""
        return Normalize(self.axes, self.eps)

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        y = self.normalize.infer(x)
        shape = reduced_shape(x.shape, normalize_axes(self.name, self.axes, x.ndim), False)
        return y, Spec(shape, y.dtype, x.device), Spec(shape, y.dtype, x.device)

    def reduction_length(self, x: Spec) -> int:
        return self.normalize.reduction_length(x)

    def reference(self, x: Any) -> Any:
        x = _float(x)
        centred = x - np.mean(x, axis=self.axes, keepdims=True)
        variance = np.mean(centred**2, axis=self.axes)
        return self.normalize.reference(x), np.mean(x, axis=self.axes), variance

    def compute(self, x: Any) -> Any:
        x = _float(x)
        axes = normalize_axes(self.name, self.axes, x.ndim)
        middle = x.mean(axes, keepdims=True)
        centred = x - middle
        variance = centred.square().mean(axes, keepdims=True)
        shape = reduced_shape(x.shape, axes, False)
        y = centred * (variance + self.eps).rsqrt()
        return y, middle.reshape(shape), variance.reshape(shape)

    def gradient(self, out_grad: Any, node: Any) -> Any:
        grad, of_mean, of_variance = out_grad
        y, _, variance = node
        axes = normalize_axes(self.name, self.axes, y.ndim)
        kept = reduced_shape(y.shape, axes, True)
        count = prod(y.shape[a] for a in axes)
        scale = rsqrt(reshape(variance, kept) + self.eps)
        # x - mean = y / scale, so that each element takes two products and two sums.
        along = mean(grad * y, axes, keepdims=True) * scale
        along = along - reshape(of_variance, kept) * (2 / count) / scale
        shift = reshape(of_mean, kept) / count - mean(grad, axes, keepdims=True) * scale
        return grad * scale - y * along + shift

    def emit_te(self, k: Any, x: Any) -> Any:
        x = _te.as_float(k, x)
        axes = normalize_axes(self.name, self.axes, len(x.shape))
        middle = Mean(axes).emit_te(k, x)
        _, variance = _te.moments(k, x, axes)
        y = self.normalize.emit_te(k, x)
        shape = [n for a, n in enumerate(x.shape) if a not in axes]
        return y, middle, k.topi.reshape(variance, shape)


def normalize(a: Tensor, axes: Axes, eps: float = 1e-5) -> Tensor:
    """(a - mean) / sqrt(variance + eps) over `axes`. ShapeError over no elements."""
    over: Any = as_axes("normalize", axes)
    return apply(Normalize(tuple(range(a.ndim)) if over is None else over, eps), (a,))


def layer_norm(a: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`a` normalized over its last axis, times `weight` plus `bias` (of that axis's extent)."""
    return normalize(a, -1, eps) * weight + bias


def batch_norm(
    a: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float = 1e-5
) -> Tensor:
    """(a - mean) / sqrt(variance + eps) * weight + bias along the last axis, for statistics that
    are known: one product and one sum for each element, the rest depends on these four alone."""
    scale = weight * rsqrt(variance + eps)
    return a * scale + (bias - mean * scale)


def standardize(a: Tensor, axes: Axes, eps: float = 1e-5) -> TensorTuple:
    """(normalize(a, axes, eps), mean(a, axes), var(a, axes))."""
    over: Any = as_axes("standardize", axes)
    return apply(Standardize(tuple(range(a.ndim)) if over is None else over, eps), (a,))
