"""Ops that reduce axes away."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..autograd import Tensor, apply
from ..backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from ..errors import ShapeError
from ..op import Reduce, register
from ..samples import Arg, Sample, error, sample
from ..spec import Axes, Spec, as_axes, normalize_axes
from . import _te
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
    def over(self, x: Any) -> tuple[int, ...]:
        """The axes that are reduced, counted from the front."""
        return normalize_axes(self.name, self.axes, len(x.shape))


@register
class Summation(_Reduce):
    """y = sum of x over `axes` (None: all); bools and int32 add up in int64."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    samples = _samples()
    error_samples = _ERRORS

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else "int64"

    def reference(self, x: Any) -> Any:
        return np.sum(x, axis=self.axes, keepdims=self.keepdims)

    def compute(self, x: Any) -> Any:
        return x.sum(self.axes, self.keepdims)

    def gradient(self, out_grad: Any, node: Any) -> Any:
        (x,) = node.inputs
        return broadcast_to(self.expand(out_grad, x), x.shape)

    def emit_te(self, k: Any, x: Any) -> Any:
        x = _te.cast(k, x, self.dtype_of(_te.dtype_of(x)))
        return _te.reduce_over(k, k.te.sum, x, self.over(x), self.keepdims)


@register
class Mean(_Reduce):
    """y = mean of x over `axes` (None: all); of integers in float64, NaN over no elements."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    samples = _samples(empty=False)
    error_samples = _ERRORS

    def dtype_of(self, dtype: str) -> str:
        return dtype if is_floating(dtype) else FLOAT_OF_INTEGER

    def reference(self, x: Any) -> Any:
        return np.mean(x, axis=self.axes, keepdims=self.keepdims)

    def compute(self, x: Any) -> Any:
        return x.mean(self.axes, self.keepdims)

    def gradient(self, out_grad: Any, node: Any) -> Any:
        (x,) = node.inputs
        count = prod(x.shape[a] for a in self.over(x))
        return broadcast_to(self.expand(out_grad / count, x), x.shape) if count else out_grad * 0

    def emit_te(self, k: Any, x: Any) -> Any:
        x = _te.as_float(k, x)
        total = _te.reduce_over(k, k.te.sum, x, self.over(x), self.keepdims)
        count = prod((x.shape[a] for a in self.over(x)), start=k.tirx.const(1, "int64"))
        return k.topi.divide(total, k.tirx.Cast(_te.dtype_of(x), count))


@register
class Max(_Reduce):
    """y = largest element of x over `axes` (None: all); NaN where there is one. ShapeError over no
    elements. The gradient of a tie is shared equally."""

    axes: int | tuple[int, ...] | None = None
    keepdims: bool = False

    reads = frozenset({"inputs", "output"})
    samples = _samples(empty=False)
    error_samples = (*_ERRORS, error(ShapeError, "no elements", (2, 0), axes=1))

    def infer(self, x: Spec) -> Spec:
        out: Spec = super().infer(x)
        if any(x.shape[a] == 0 for a in self.over(x)):
            raise ShapeError(f"{self.name}: shape {x.shape} has no elements along {self.axes}")
        return out

    def reference(self, x: Any) -> Any:
        return np.max(x, axis=self.axes, keepdims=self.keepdims)

    def compute(self, x: Any) -> Any:
        return x.max(self.axes, self.keepdims)

    def gradient(self, out_grad: Any, node: Any) -> Any:
        (x,) = node.inputs
        chosen = cast(compare("equal", x, self.expand(node, x)), x.dtype)
        count = summation(chosen, self.axes, keepdims=True)
        return self.expand(out_grad, x) * (chosen / count)

    def emit_te(self, k: Any, x: Any) -> Any:
        if _te.dtype_of(x) != "bool":
            return _te.maximum_over(k, x, self.over(x), self.keepdims)
        wide = _te.cast(k, x, "int32")
        return _te.cast(k, _te.maximum_over(k, wide, self.over(x), self.keepdims), "bool")


def summation(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Sum over `axes` (None: all). ShapeError for axes out of range or repeated."""
    return apply(Summation(as_axes("summation", axes), keepdims), (a,))


def mean(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Mean over `axes` (None: all). ShapeError for axes out of range or repeated."""
    return apply(Mean(as_axes("mean", axes), keepdims), (a,))


def max(a: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Largest element over `axes` (None: all), NaN where there is one. ShapeError over none."""
    return apply(Max(as_axes("max", axes), keepdims), (a,))
