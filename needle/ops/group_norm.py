"""Normalization of groups of channels to mean 0 and variance 1."""

from __future__ import annotations

from math import prod
from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.node import Node
from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, layers
from ..backend_ndarray.dtypes import result_type
from ..errors import ShapeError
from ..op import Op, in_float32, register
from ..op.samples import Arg, error, sample
from ..op.signatures import ArrayGradients, Gradients, TeNamespace, TeTensor
from . import _te
from .elementwise import rsqrt
from .norm import Normalize, normalize
from .reduce import mean, summation, var
from .shape import reshape


@register
class GroupNorm(Op):
    """y = x * weight + bias, where each of `groups` groups of adjacent channels of x (N, channels,
    ...) is first normalized to mean 0 and variance 1; weight and bias are (channels,).

    The only large value that the gradient reads is x; the gradient recomputes the normalized x.
    """

    groups: int
    eps: float = 1e-5

    infer_first = True
    reads = frozenset({"inputs"})
    samples = (
        sample((2, 4, 3), (4,), (4,), groups=2),
        sample((2, 3, 2, 2), (3,), (3,), groups=3, eps=1e-3),
        sample((3, 4), (4,), (4,), groups=1),
        sample(Arg((2, 2, 5), 900, 1000), (2,), (2,), groups=1),
        sample((0, 4, 3), (4,), (4,), groups=2),
    )
    error_samples = (
        error(ShapeError, "groups=2", (2, 3, 4), (3,), (3,), groups=2),
        error(ShapeError, r"weight of shape \(4,\)", (2, 3, 4), (4,), (3,), groups=3),
        error(ShapeError, r"bias of shape \(1, 3\)", (2, 3, 4), (3,), (1, 3), groups=3),
        error(ShapeError, "no elements", (2, 3, 0), (3,), (3,), groups=3),
        error(ValueError, "eps", (3, 2), (2,), (2,), groups=1, eps=-1.0),
    )

    def infer(self, x: Spec, weight: Spec, bias: Spec) -> Spec:
        if x.ndim < 2 or self.groups < 1 or x.shape[1] % self.groups:
            raise ShapeError(
                f"{self.name}: x has shape {x.shape}; it must be (N, channels, ...), with a number "
                f"of channels that is a multiple of groups={self.groups}"
            )
        for what, given in (("weight", weight), ("bias", bias)):
            if given.shape != x.shape[1:2]:
                raise ShapeError(
                    f"{self.name}: {what} of shape {given.shape}; x {x.shape} has {x.shape[1]} "
                    "channels along axis 1"
                )
        if not prod(x.shape[1:]):
            raise ShapeError(f"{self.name}: shape {x.shape} has no elements in a group")
        dtype = Normalize(tuple(range(1, x.ndim)), self.eps).infer(x).dtype
        for spec in (weight, bias):
            dtype = result_type(dtype, spec.dtype)
        return Spec(x.shape, dtype, common_device(self.name, x, weight, bias))

    def grouped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of x with the elements of each group merged into a last axis."""
        return (shape[0], self.groups, prod(shape[1:]) // self.groups)

    def column(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which (channels,) broadcasts against x."""
        return (shape[1], *[1] * (len(shape) - 2))

    def reduction_length(self, x: Spec, weight: Spec, bias: Spec) -> int:
        return (x.shape[0] * prod(x.shape[1:])) ** 2

    def reference(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return self._by_parts(Normalize(-1, self.eps).reference, x, weight, bias)

    def _by_parts(self, normalized: Any, x: Any, weight: Any, bias: Any) -> Any:
        column = self.column(x.shape)
        y = normalized(x.reshape(self.grouped(x.shape))).reshape(x.shape)
        return y * weight.reshape(column) + bias.reshape(column)

    @in_float32
    def compute(self, x: NDArray, weight: NDArray, bias: NDArray) -> NDArray:
        fused = layers.group_norm(x, weight, bias, 1, self.groups, self.eps)
        if fused is not None:
            return fused
        out: NDArray = self._by_parts(Normalize(-1, self.eps).compute, x, weight, bias)
        return out

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        x, weight, bias = node.inputs
        shape, column = self.grouped(x.shape), self.column(x.shape)
        y = reshape(normalize(reshape(x, shape), -1, self.eps), x.shape)
        over = (0, *range(2, x.ndim))
        to_weight, to_bias = summation(out_grad * y, over), summation(out_grad, over)
        grad = reshape(out_grad * reshape(weight, column), shape)
        y = reshape(y, shape)
        along = y * mean(grad * y, -1, keepdims=True) + mean(grad, -1, keepdims=True)
        scale = rsqrt(var(reshape(x, shape), -1, keepdims=True) + self.eps)
        grads = reshape((grad - along) * scale, x.shape), to_weight, to_bias
        return tuple(
            part if part.dtype == like.dtype else part.astype(like.dtype)
            for part, like in zip(grads, (x, weight, bias), strict=True)
        )

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        x, weight, bias = node.saved
        if not out_grad.dtype == x.dtype == weight.dtype == bias.dtype:
            return NotImplemented
        fused = layers.group_norm_grad(out_grad, x, weight, 1, self.groups, self.eps)
        return NotImplemented if fused is None else fused

    def emit_te(self, k: TeNamespace, x: TeTensor, weight: TeTensor, bias: TeTensor) -> TeTensor:
        column = self.column(x.shape)
        y = Normalize(-1, self.eps).emit_te(k, k.topi.reshape(x, self.grouped(x.shape)))
        y = k.topi.multiply(
            *_te.promote(k, k.topi.reshape(y, x.shape), k.topi.reshape(weight, column))
        )
        return k.topi.add(*_te.promote(k, y, k.topi.reshape(bias, column)))


def group_norm(a: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float = 1e-5) -> Tensor:
    """Return `a` (N, channels, ...) with each of `groups` groups of adjacent channels normalized,
    times `weight` plus `bias`, both (channels,). `eps` is added to the variance. The CPU computes
    the result in one pass. In `nn.functional.group_norm`, weight and bias may be None."""
    op = GroupNorm(as_int(groups), float(eps))
    return apply(op, (a, weight, bias))
