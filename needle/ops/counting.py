"""Numbers that count. While tracing, they may be sizes that are not known."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..apply import apply
from ..backend_ndarray import Device, NDArray, array, full
from ..backend_ndarray.dtypes import INTEGER, is_floating
from ..errors import ShapeError
from ..extents import as_extent
from ..op import Op, register
from ..op_types import Expr, TeNamespace, TeTensor
from ..samples import Arg, error, sample
from ..spec import Spec
from ..tensor import Tensor, make_const
from . import _te
from .reduce import summation


@register
class Arange(Op):
    """y = x + first, x + first + 1, ... (`count` numbers) for a 0-d x."""

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
            raise TypeError(f"{self.name}: {x.dtype} does not count")
        if self.count < 0:
            raise ValueError(f"{self.name}: count {self.count} is negative")
        return Spec((self.count,), x.dtype, x.device)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x + np.arange(self.first, self.first + self.count).astype(x.dtype)

    def compute(self, x: NDArray) -> NDArray:
        numbers = np.arange(self.first, self.first + self.count)
        return x + array(numbers, dtype=x.dtype, device=x.device)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return summation(out_grad)

    def emit_te(self, k: TeNamespace, x: TeTensor) -> TeTensor:
        dtype, first = _te.dtype_of(x), _te.number(k, self.first)

        def body(i: Expr) -> Expr:
            return x() + k.tirx.Cast(dtype, first + k.tirx.Cast("int64", i))

        return k.te.compute((self.count,), body)


def arange(
    count: Any, first: Any = 0, dtype: str = "int64", device: Device | None = None
) -> Tensor:
    """`count` numbers from `first` on: shape (count,). Both are ints; ValueError for a negative
    count."""
    zero = make_const(full((), 0, dtype, device))
    return apply(Arange(as_extent(count), as_extent(first)), (zero,))
