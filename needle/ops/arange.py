"""Evenly spaced numbers. While tracing, they may depend on unknown sizes."""

from __future__ import annotations

from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import DeviceLike, NDArray, array, full
from ..backend_ndarray.dtypes import INTEGER, is_floating
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import Arg, error, sample
from ..op.signatures import Expr, TeNamespace, TeTensor
from ..sizes.dims import Expression
from ..sizes.extents import as_extent
from . import _te


@register
class Arange(Op):
    """y = x + first, x + first + 1, ... (`count` numbers), for a 0-d x."""

    count: int
    first: int = 0

    infer_first = True
    samples = (
        sample(Arg((), -3, 3, dtype="int64", special=False), count=5),
        sample(Arg((), -3, 3, dtype="int32", special=False), count=1, first=7),
        sample(Arg((), 0, 1, special=False), count=3, first=-2),
    )
    error_samples = (
        error(ShapeError, r"shape \(2,\)", (2,), count=3),
        error(ValueError, "count -1", (), count=-1),
        error(TypeError, "bool", Arg((), dtype="bool"), count=3),
    )

    def infer(self, x: Spec) -> Spec:
        if x.shape:
            raise ShapeError(f"{self.name}: the first number has shape {x.shape}, not ()")
        if x.dtype not in INTEGER and not is_floating(x.dtype):
            raise TypeError(
                f"{self.name}: the first number is {x.dtype}; it must be an integer or a float"
            )
        if self.count < 0:
            raise ValueError(f"{self.name}: count {self.count} is negative")
        return Spec((self.count,), x.dtype, x.device)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x + np.arange(self.first, self.first + self.count).astype(x.dtype)

    def compute(self, x: NDArray) -> NDArray:
        numbers = np.arange(self.first, self.first + self.count)
        return x + array(numbers, dtype=x.dtype, device=x.device)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return out_grad.sum()

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        dtype, first = _te.dtype_of(x), _te.number(k, self.first)

        def body(i: Expr) -> Expr:
            return x() + k.tirx.Cast(dtype, first + k.tirx.Cast("int64", i))

        return k.te.compute((self.count,), body)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = 1,
    dtype: str | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """Return the numbers from `start` up to but not including `stop`, in steps of `step`. With one
    argument, they start at 0, as in NumPy and PyTorch. Without a `dtype`, ints give int64 and
    floats float32.

    Raises TypeError for arguments that are not numbers, ValueError for a step of 0 or an infinite
    range.

    >>> ndl.arange(3).dtype, ndl.arange(0, 1, 0.25).numpy().tolist()
    ('int64', [0.0, 0.25, 0.5, 0.75])
    """
    if stop is None:
        start, stop = 0, start
    if any(isinstance(n, (float, np.floating)) for n in (start, stop, step)):
        if not step or not np.isfinite([start, stop, step]).all():
            raise ValueError(
                f"arange: start {start}, stop {stop} and step {step} must be finite, "
                "and step must not be 0"
            )
        return make_const(array(np.arange(start, stop, step), dtype or "float32", device))
    try:
        start, stop, step = as_extent(start), as_extent(stop), as_int(step)
    except TypeError:
        raise TypeError(f"arange: {start!r}, {stop!r} and {step!r} must be numbers") from None
    if step == 0:
        raise ValueError("arange: the step must not be 0")
    distance = stop - start if step > 0 else start - stop
    count = -(-distance // abs(step))
    if not isinstance(count, Expression):
        count = max(count, 0)
    zero = make_const(full((), 0, dtype or "int64", device))
    if step == 1:
        return apply(Arange(count, start), (zero,))
    return apply(Arange(count), (zero,)) * step + start
