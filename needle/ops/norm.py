"""Normalization to mean 0 and variance 1 over some axes."""

from __future__ import annotations

import functools
from math import prod
from operator import index as as_int
from types import ModuleType

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.node import Node
from ..autograd.shapes import Axes, Spec, as_axes, common_device, normalize_axes, normalize_axis
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import NDArray, layers, zeros
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, compute_dtype, is_floating, result_type
from ..errors import ShapeError
from ..op import Op, in_float32, register, unbroadcast
from ..op.samples import Arg, error, sample
from ..op.signatures import Array, ArrayGradients, Expr, Gradients, TeNamespace, TeTensor
from . import _te
from .elementwise import rsqrt
from .reduce import mean, summation, var
from .shape import reshape


def _float(x: Array) -> Array:
    return x if is_floating(str(x.dtype)) else x.astype(FLOAT_OF_INTEGER)


@register
class Normalize(Op):
    """y = (x - mean(x)) / sqrt(variance(x) + eps) over `axes`, where the variance is biased."""

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

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = _float(x)
        centred = x - np.mean(x, axis=self.axes, keepdims=True)
        return centred / np.sqrt(np.mean(centred**2, axis=self.axes, keepdims=True) + self.eps)

    @in_float32
    def compute(self, x: NDArray) -> NDArray:
        x = _float(x)
        centred = x - x.mean(self.axes, keepdims=True)
        return centred * (centred.square().mean(self.axes, keepdims=True) + self.eps).rsqrt()

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        scale = rsqrt(var(x, self.axes, keepdims=True) + self.eps)
        along = mean(out_grad * node, self.axes, keepdims=True)
        return (out_grad - mean(out_grad, self.axes, keepdims=True) - node * along) * scale

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        x = _te.as_float(k, x)
        axes = normalize_axes(self.name, self.axes, len(x.shape))
        _, centred, variance = _te.moments(k, x, axes)
        variance = k.topi.add(variance, _te.full_like(k, x, self.eps))
        scale = k.topi.divide(_te.full_like(k, x, 1), k.topi.sqrt(variance))  # one per row
        return k.topi.multiply(centred, scale)


@register
class LayerNorm(Op):
    """y = normalize(x) * weight + bias over the last axis; weight and bias have its extent.

    The only large value that the gradient reads is x; the gradient recomputes the normalized x.
    """

    eps: float = 1e-5

    infer_first = True
    reads = frozenset({"inputs"})
    samples = (
        sample((4, 3), (3,), (3,)),
        sample((2, 3, 4), (4,), (4,), eps=1e-3),
        sample(Arg((2, 5), 900, 1000), (5,), (5,)),
        sample((0, 3), (3,), (3,)),
    )
    error_samples = (
        error(ShapeError, r"weight \(4,\)", (2, 3), (4,), (3,)),
        error(ShapeError, r"bias \(1, 3\)", (2, 3), (3,), (1, 3)),
        error(ShapeError, "no axes", (), (1,), (1,)),
        error(ShapeError, "no elements", (3, 0), (0,), (0,)),
        error(ValueError, "eps", (3, 2), (2,), (2,), eps=-1.0),
    )

    def infer(self, x: Spec, weight: Spec, bias: Spec) -> Spec:
        if not x.ndim:
            raise ShapeError(f"{self.name}: a 0-d input has no axes to normalize")
        for what, spec in (("weight", weight), ("bias", bias)):
            if spec.shape != x.shape[-1:]:
                raise ShapeError(
                    f"{self.name}: {what} {spec.shape} for an input of shape {x.shape}; it must "
                    f"be {x.shape[-1:]}"
                )
        dtype = Normalize(-1, self.eps).infer(x).dtype
        for spec in (weight, bias):
            dtype = result_type(dtype, spec.dtype)
        return Spec(x.shape, dtype, common_device(self.name, x, weight, bias))

    def reduction_length(self, x: Spec, weight: Spec, bias: Spec) -> int:
        return x.shape[-1] ** 2

    def reference(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return Normalize(-1, self.eps).reference(x) * weight + bias

    @in_float32
    def compute(self, x: NDArray, weight: NDArray, bias: NDArray) -> NDArray:
        fused = layers.group_norm(x, weight, bias, x.ndim - 1, 1, self.eps)
        return Normalize(-1, self.eps).compute(x) * weight + bias if fused is None else fused

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, weight, bias = node.inputs
        y = normalize(x, -1, self.eps)
        to_weight = unbroadcast(out_grad * y, weight) if weight.requires_grad else None
        to_bias = unbroadcast(out_grad, bias) if bias.requires_grad else None
        if not x.requires_grad:
            return None, to_weight, to_bias
        grad = out_grad * weight
        along = y * mean(grad * y, -1, keepdims=True) + mean(grad, -1, keepdims=True)
        scale = rsqrt(var(x, -1, keepdims=True) + self.eps)
        return unbroadcast((grad - along) * scale, x), to_weight, to_bias

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        x, weight, bias = node.saved
        if not x.dtype == weight.dtype == bias.dtype or compute_dtype(x.dtype) != x.dtype:
            return NotImplemented
        fused = layers.group_norm_grad(out_grad, x, weight, x.ndim - 1, 1, self.eps)
        if fused is not None:
            return fused
        batch = tuple(range(x.ndim - 1))
        to_x, to_weight, to_bias = [n.requires_grad for n in node.input_nodes]
        centred = x - x.mean(-1, keepdims=True)
        scale = (centred.square().mean(-1, keepdims=True) + self.eps).rsqrt()
        y = centred * scale
        along = out_grad * y
        grads = [
            None,
            along.sum(batch) if to_weight else None,
            out_grad.sum(batch) if to_bias else None,
        ]
        if to_x:
            grad = out_grad * weight
            y = y * (along * weight).mean(-1, keepdims=True)
            grads[0] = (grad - y - grad.mean(-1, keepdims=True)) * scale
        return tuple(grads)

    def emit_te(self, k: TeNamespace, x: TeTensor, weight: TeTensor, bias: TeTensor) -> TeTensor:
        y = Normalize(-1, self.eps).emit_te(k, x)
        return k.topi.add(*_te.promote(k, k.topi.multiply(*_te.promote(k, y, weight)), bias))

    def emit(self, r: ModuleType, x: Expr, weight: Expr, bias: Expr) -> Expr | None:
        dtypes = {str(operand.ty.dtype) for operand in (x, weight, bias)}
        if len(dtypes) != 1 or not is_floating(dtypes.pop()):
            return None
        return r.op.nn.layer_norm(x, weight, bias, axes=[-1], epsilon=self.eps)


def _total(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the sum over `axes`. The last axes of x are summed first: compiled code adds elements
    one after the other, and long sums lose digits."""
    for some in _te.last_axes_first(axes, x.ndim):
        x = summation(x, some)
    return x


@register
class BatchNormTrain(Op):
    """(y, mean, variance) of x over all axes but the channels' `axis`: y = (x - mean) /
    sqrt(variance + eps) * weight + bias, with the biased variance. weight, bias, mean and variance
    have shape (channels,)."""

    axis: int = -1
    eps: float = 1e-5

    infer_first = True
    reads = frozenset({"inputs", 1, 2})
    samples = (
        sample((4, 3), (3,), (3,)),
        sample((3, 4), (3,), (3,), axis=0, eps=1e-3),
        sample((2, 3, 2, 4), (3,), (3,), axis=1),
        sample((2, 2, 2, 3), (3,), (3,), axis=-1),
        sample(Arg((5, 2), 900, 1000), (2,), (2,)),
        sample((3, 0), (0,), (0,)),
        sample(Arg((4, 2), dtype="int32"), (2,), (2,)),
    )
    error_samples = (
        error(ShapeError, "out of range", (2, 3), (3,), (3,), axis=2),
        error(ShapeError, r"weight of shape \(2,\)", (2, 3), (2,), (3,)),
        error(ShapeError, r"bias of shape \(1, 3\)", (2, 3), (3,), (1, 3)),
        error(ShapeError, "no elements", (0, 3), (3,), (3,)),
        error(ShapeError, "two axes", (3,), (3,), (3,)),
        error(ValueError, "eps", (3, 2), (2,), (2,), eps=-1.0),
    )

    def infer(self, x: Spec, weight: Spec, bias: Spec) -> tuple[Spec, ...]:
        if x.ndim < 2:
            raise ShapeError(f"{self.name}: x of shape {x.shape} has fewer than two axes")
        channels = (x.shape[normalize_axis(self.name, self.axis, x.ndim)],)
        for what, given in (("weight", weight), ("bias", bias)):
            if given.shape != channels:
                raise ShapeError(
                    f"{self.name}: {what} of shape {given.shape}; x {x.shape} has {channels[0]} "
                    f"channels along axis {self.axis}"
                )
        if prod(x.shape[a] for a in self.over(x.ndim)) == 0:
            raise ShapeError(f"{self.name}: shape {x.shape} has no elements for a channel")
        if not self.eps >= 0:
            raise ValueError(f"{self.name}: eps {self.eps} is not >= 0")
        device = common_device(self.name, x, weight, bias)
        dtype = x.dtype if is_floating(x.dtype) else FLOAT_OF_INTEGER
        dtype = result_type(result_type(dtype, weight.dtype), bias.dtype)
        return Spec(x.shape, dtype, device), *[Spec(channels, compute_dtype(dtype), device)] * 2

    def over(self, ndim: int) -> tuple[int, ...]:
        """Return the axes that are reduced: all but the channels' axis."""
        return tuple(a for a in range(ndim) if a != self.axis % ndim)

    def column(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which (channels,) broadcasts against x."""
        return tuple(n if a == self.axis % len(shape) else 1 for a, n in enumerate(shape))

    def reduction_length(self, x: Spec, weight: Spec, bias: Spec) -> int:
        return prod(x.shape[a] for a in self.over(x.ndim)) ** 2

    def reference(
        self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        x, over, column = _float(x), self.over(x.ndim), self.column(x.shape)
        average, variance = np.mean(x, axis=over, keepdims=True), np.var(x, axis=over)
        y = (x - average) / np.sqrt(variance.reshape(column) + self.eps)
        y = y * weight.reshape(column) + bias.reshape(column)
        return y, average.reshape(-1), variance

    def compute(self, x: NDArray, weight: NDArray, bias: NDArray) -> tuple[NDArray, ...]:
        dtype = result_type(result_type(_float(x).dtype, weight.dtype), bias.dtype)
        wide = compute_dtype(dtype)
        parts = [part.astype(wide, copy=False) for part in (x, weight, bias)]
        rows = parts[0].permute(_last(self.axis, x.ndim))
        y, *rest = layers.batch_norm(rows, parts[1], parts[2], self.eps)
        return y.permute(_back(self.axis, x.ndim)).astype(dtype, copy=False), *rest

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> tuple[Tensor, ...]:
        grad, of_mean, of_variance = out_grad
        x, weight, bias = node.inputs
        over, column = self.over(x.ndim), self.column(x.shape)
        count = prod(x.shape[a] for a in over)
        centred = x - reshape(node[1], column)
        scale = rsqrt(reshape(node[2], column) + self.eps)
        y = centred * scale
        to_weight, to_bias = _total(grad * y, over), _total(grad, over)
        along, average = (reshape(total, column) / count for total in (to_weight, to_bias))
        to_x = grad - average - y * along
        to_x = to_x * scale * reshape(weight, column)
        to_x = to_x + reshape(of_mean, column) / count
        to_x = to_x + centred * (reshape(of_variance, column) * 2 / count)
        return tuple(
            part if part.dtype == like.dtype else part.astype(like.dtype)
            for part, like in zip((to_x, to_weight, to_bias), (x, weight, bias), strict=True)
        )

    def backward(self, out_grad: tuple[NDArray | None, ...], node: Node) -> ArrayGradients:
        (grad, of_mean, of_variance), (x, weight, bias) = out_grad, node.saved
        _, average, variance = node.output
        dtype, axes = average.dtype, _last(self.axis, x.ndim)
        rows = x.astype(dtype, copy=False).permute(axes)
        if grad is None:
            grad = zeros(x.shape, dtype=dtype, device=x.device)
        to_x, *rest = layers.batch_norm_grad(
            grad.astype(dtype, copy=False).permute(axes),
            rows,
            weight.astype(dtype, copy=False),
            average,
            variance,
            self.eps,
        )
        count = rows.size // rows.shape[-1] if rows.shape[-1] else 1
        if of_mean is not None:
            to_x = to_x + of_mean / count
        if of_variance is not None:
            to_x = to_x + (rows - average) * (of_variance * (2 / count))
        grads = to_x.permute(_back(self.axis, x.ndim)), *rest
        return tuple(
            part.astype(like.dtype, copy=False)
            for part, like in zip(grads, (x, weight, bias), strict=True)
        )

    def emit_te(
        self, k: TeNamespace, x: TeTensor, weight: TeTensor, bias: TeTensor
    ) -> tuple[TeTensor, ...]:
        x = _te.as_float(k, x)
        dtype = result_type(result_type(_te.dtype_of(x), _te.dtype_of(weight)), _te.dtype_of(bias))
        x, weight, bias = (_te.cast(k, part, dtype) for part in (x, weight, bias))
        over = self.over(len(x.shape))
        mean, centred, variance = _te.moments(k, x, over)
        scale = k.topi.sqrt(k.topi.add(variance, _te.full_like(k, x, self.eps)))
        shape = [1 if a in over else n for a, n in enumerate(x.shape)]
        y = k.topi.multiply(k.topi.divide(centred, scale), k.topi.reshape(weight, shape))
        y = k.topi.add(y, k.topi.reshape(bias, shape))
        return y, *(k.topi.reshape(part, weight.shape) for part in (mean, variance))

    def emit(self, r: ModuleType, x: Expr, weight: Expr, bias: Expr) -> Expr | None:
        dtypes = {str(operand.ty.dtype) for operand in (x, weight, bias)}
        extents = list(x.ty.shape.values)
        over = self.over(len(extents))
        if dtypes not in ({"float32"}, {"float64"}) or all(_te.is_one(extents[a]) for a in over):
            return None
        op, groups = r.op, _te.last_axes_first(over, len(extents))
        column = [1 if a in over else n for a, n in enumerate(extents)]

        def mean_of(y: Expr) -> Expr:
            for some in groups:
                y = op.mean(y, list(some), True)
            return y

        mean = mean_of(x)
        centred = op.subtract(x, mean)
        variance = mean_of(op.multiply(centred, centred))
        scale = op.sqrt(op.add(variance, r.const(self.eps, dtypes.pop())))
        y = op.multiply(op.divide(centred, scale), op.reshape(weight, column))
        y = op.add(y, op.reshape(bias, column))
        return r.Tuple([y, *(op.reshape(part, weight.ty.shape) for part in (mean, variance))])


@functools.lru_cache(maxsize=256)
def _last(axis: int, ndim: int) -> tuple[int, ...]:
    """Return the permutation that moves `axis` to the end."""
    return (*(a for a in range(ndim) if a != axis % ndim), axis % ndim)


@functools.lru_cache(maxsize=256)
def _back(axis: int, ndim: int) -> tuple[int, ...]:
    """Return the permutation that undoes `_last`."""
    return tuple(int(a) for a in np.argsort(_last(axis, ndim)))


def normalize(a: Tensor, axes: Axes, eps: float = 1e-5) -> Tensor:
    """Return (a - mean) / sqrt(variance + eps) over `axes`. Raises ShapeError if there are no
    elements.

    >>> ndl.normalize(ndl.Tensor([1.0, 3.0]), 0, eps=0.0).numpy().tolist()
    [-1.0, 1.0]
    """
    over = as_axes("normalize", axes)
    return apply(Normalize(tuple(range(a.ndim)) if over is None else over, float(eps)), (a,))


def layer_norm(a: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Return `a` normalized over its last axis, times `weight` plus `bias`, which have the extent
    of that axis. `eps` is added to the variance. `nn.functional.layer_norm` takes several axes."""
    return apply(LayerNorm(float(eps)), (a, weight, bias))


def batch_norm(
    a: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float = 1e-5
) -> Tensor:
    """Return (a - mean) / sqrt(variance + eps) * weight + bias along the last axis, for a given
    `mean` and `variance`. An element costs one multiplication and one addition; the rest of the
    computation does not depend on `a`."""
    scale = weight * rsqrt(variance + eps)
    return a * scale + (bias - mean * scale)


def batch_norm_train(
    a: Tensor, weight: Tensor, bias: Tensor, axis: int = -1, eps: float = 1e-5
) -> TensorTuple:
    """Return (y, mean, variance). y is `a`, normalized with its mean and biased variance over all
    axes but `axis`, times `weight` plus `bias`. `eps` is added to the variance. Raises ShapeError
    if there are no elements."""
    return apply(BatchNormTrain(as_int(axis), float(eps)), (a, weight, bias))
