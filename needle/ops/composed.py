"""Elementwise functions that limit, mix or replace values."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.dtypes import checked_scalar, scalar_dtype
from ..autograd.shapes import Axes
from ..autograd.tensor import Operand, Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import finfo, is_floating
from ..op import Elementwise, register
from ..op.samples import Arg, Sample, error
from ..op.signatures import Expr, TeNamespace, TeTensor
from . import _te
from ._arguments import check_tensors
from ._operands import SCALARS, applied
from .arithmetic import DIVIDE, maximum, minimum, where
from .elementwise import abs, exp, log
from .exponential import log1p
from .logical import isnan, logical_and, logical_or
from .reduce import summation
from .rounding import trunc
from .scalar import power_scalar


@register
class Clip(Elementwise):
    """y = min(max(x, `min`), `max`), without a bound that is None; NaN stays NaN. If `max` is below
    `min`, y is `max`. The gradient is 0 where x is outside the bounds, and also where x equals a
    bound unless they are `inclusive`."""

    may_share = True

    min: float | None = None
    max: float | None = None
    inclusive: bool = True

    reads = frozenset({"inputs"})
    samples = tuple(
        Sample(
            (Arg(shape),),
            {"min": low, "max": high, "inclusive": not shape},
            low is None or high is None or low < high,
        )
        for low, high in ((-1, 1), (-0.5, None), (None, 0.5), (1, -1), (None, None))
        for shape in ((), (3, 4), (0, 3))
    )
    error_samples = (
        error(TypeError, "min is a str", (2,), min="a"),
        error(TypeError, "takes 1 input", (2,), (2,), max=1),
    )

    def dtype_of(self, dtype: str) -> str:
        for what, bound in (("min", self.min), ("max", self.max)):
            if bound is not None:
                if not isinstance(bound, SCALARS):
                    kind = type(bound).__name__
                    raise TypeError(f"{self.name}: {what} is a {kind}, not a Python number")
                dtype = scalar_dtype(dtype, bound)
        self._bounds(dtype)
        return dtype

    def _bounds(self, dtype: str) -> tuple[float | None, float | None]:
        """Return the bounds that can change an element. Raises OverflowError if no value of the
        dtype is within them."""
        if is_floating(dtype) or dtype == "bool":
            return self.min, self.max
        info = np.iinfo(dtype)
        if self.min is not None and self.min > info.max:
            checked_scalar(self.name, self.min, dtype)
        if self.max is not None and self.max < info.min:
            checked_scalar(self.name, self.max, dtype)
        low = None if self.min is None or self.min < info.min else self.min
        return low, None if self.max is None or self.max > info.max else self.max

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x if self.min is self.max is None else np.clip(x, self.min, self.max)

    def compute(self, x: NDArray) -> NDArray:
        dtype = self.dtype_of(x.dtype)
        low, high = self._bounds(dtype)
        x = x.astype(dtype, copy=False)
        x = x if low is None else x.maximum(low)
        return x if high is None else x.minimum(high)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        (x,) = node.inputs
        if self.min is not None:
            below = x < self.min if self.inclusive else x <= self.min
            out_grad = where(below, 0, out_grad)
        if self.max is None:
            return out_grad
        return where(x > self.max if self.inclusive else x >= self.max, 0, out_grad)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        dtype = self.dtype_of(_te.dtype_of(x))
        y = _te.cast(k, x, "int32" if dtype == "bool" else dtype)
        wide = _te.dtype_of(y)
        low, high = (None if b is None else _te.full_like(k, y, b) for b in self._bounds(dtype))

        def fn(v: Expr) -> Expr:
            v = v if low is None else _te.greater_or_nan(k, v, low, wide)
            return v if high is None else _te.less_or_nan(k, v, high, wide)

        return _te.cast(k, _te.elementwise(k, fn, y), dtype)

    def emit(self, r: ModuleType, x: Expr) -> Expr | None:
        dtype = str(x.ty.dtype)
        if not is_floating(dtype):
            return None
        # In this order of operands, NaN survives.
        y = x if self.min is None else r.op.maximum(r.const(self.min, dtype), x)
        return y if self.max is None else r.op.minimum(r.const(self.max, dtype), y)


def clip(a: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Return `a` limited to [min, max], elementwise. A bound that is None has no effect; NaN stays
    NaN.

    Bounds are numbers or Tensors that broadcast. Where `max` is below `min`, the result is `max`.
    The gradient flows to the chosen operand; at a bound it flows to `a`.

    >>> ndl.clip(ndl.Tensor([-2.0, 0.5, 2.0]), -1.0, 1.0).numpy().tolist()
    [-1.0, 0.5, 1.0]
    """
    bounds: list[Any] = [b.item() if isinstance(b, np.generic) else b for b in (min, max)]
    if all(b is None or isinstance(b, SCALARS) for b in bounds):
        return apply(Clip(*bounds), (a,))
    check_tensors("clip", a=a)
    kept = a != a
    a = a if min is None else where(logical_or(a >= min, kept), a, min)
    return a if max is None else where(logical_or(a <= max, kept), a, max)


def square(a: Tensor) -> Tensor:
    """Return a * a, elementwise. Raises TypeError for bool."""
    return power_scalar(a, 2)


def reciprocal(a: Tensor) -> Tensor:
    """Return 1 / a, elementwise; integers give float64."""
    return applied(DIVIDE, 1, a)


def frac(a: Tensor) -> Tensor:
    """Return the fraction a - trunc(a), elementwise, with the sign of `a`. Raises TypeError for
    bool."""
    return a - trunc(a)


def lerp(a: Tensor, b: Tensor, weight: Operand) -> Tensor:
    """Return a + weight * (b - a), with broadcasting: `a` for a weight of 0, `b` for 1. Raises
    TypeError for two bools."""
    check_tensors("lerp", a=a, b=b)
    return a + (b - a) * weight


def addcmul(a: Tensor, b: Tensor, c: Tensor, value: float = 1) -> Tensor:
    """Return a + value * b * c, with broadcasting."""
    check_tensors("addcmul", a=a, b=b, c=c)
    return a + b * c * value


def addcdiv(a: Tensor, b: Tensor, c: Tensor, value: float = 1) -> Tensor:
    """Return a + value * b / c, with broadcasting."""
    check_tensors("addcdiv", a=a, b=b, c=c)
    return a + b / c * value


def logit(a: Tensor, eps: float | None = None) -> Tensor:
    """Return log(a / (1 - a)), elementwise. With an `eps`, `a` is first limited to [eps, 1 - eps].
    Integers give float64."""
    check_tensors("logit", a=a)
    a = a if eps is None else clip(a, eps, 1 - eps)
    return log(a / (1 - a))


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """Return log(exp(a) + exp(b)) without overflow, with broadcasting; integers give float64."""
    check_tensors("logaddexp", a=a, b=b)
    top = maximum(a, b)
    apart = where(top == minimum(a, b), 0, abs(a - b))  # 0 for equal infinities too
    return top + log1p(exp(-apart))


def nan_to_num(
    a: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Return `a` with `nan` in place of NaN, and `posinf` and `neginf` in place of the infinities
    (None: the largest and the least finite number of the dtype). The gradient is 0 where a number
    was replaced."""
    check_tensors("nan_to_num", a=a)
    if not is_floating(a.dtype):
        return a
    limits = finfo(a.dtype)
    most = float(limits.max) if posinf is None else posinf
    least = float(limits.min) if neginf is None else neginf
    a = where(isnan(a), nan, a)
    infinite = abs(a) == float("inf")
    return where(logical_and(infinite, a > 0), most, where(logical_and(infinite, a < 0), least, a))


def sum(
    a: Tensor, axes: Axes = None, keepdims: bool = False, *, dtype: str | None = None
) -> Tensor:
    """Return the sum over `axes` (None: all), as `summation` does.

    >>> ndl.sum(ndl.ones(2, 3), axis=1, keepdims=True).shape
    (2, 1)
    """
    return summation(a, axes, keepdims, dtype=dtype)
