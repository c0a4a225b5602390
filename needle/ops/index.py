"""Ops that choose elements by their position."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import Tensor, apply
from ..backend_ndarray.dtypes import dtype_name
from ..op import Op, register
from ..samples import Arg, error, sample
from ..spec import Spec
from . import _te


@register
class OneHot(Op):
    """y[..., j] = 1 where x (class numbers, of any dtype but bool) equals j, else 0."""

    num_classes: int
    dtype: str = "float32"

    infer_first = True
    samples = tuple(
        sample(Arg(shape, 0, 5, dtype=dtype, special=False), num_classes=5)
        for shape in ((4,), (2, 3), (), (0,))
        for dtype in ("int32", "int64")
    )
    error_samples = (
        error(TypeError, "bool", Arg((2,), dtype="bool"), num_classes=2),
        error(ValueError, "num_classes 0", Arg((2,), dtype="int32"), num_classes=0),
        error(TypeError, "complex64", Arg((2,), dtype="int32"), num_classes=2, dtype="complex64"),
    )

    def infer(self, x: Spec) -> Spec:
        if x.dtype == "bool":
            raise TypeError(f"{self.name}: class numbers cannot be bool")
        if self.num_classes < 1:
            raise ValueError(f"{self.name}: num_classes {self.num_classes} is below 1")
        return Spec((*x.shape, self.num_classes), dtype_name(self.dtype), x.device)

    def reference(self, x: Any) -> Any:
        return (x[..., None] == np.arange(self.num_classes)).astype(self.dtype)

    def compute(self, x: Any) -> Any:
        return x.device.one_hot(self.num_classes, x, dtype=self.dtype)

    def gradient(self, out_grad: Any, node: Any) -> Any:
        return None

    def emit_te(self, k: Any, x: Any) -> Any:
        index = _te.cast(k, x, "int64")

        def body(*i: Any) -> Any:
            hit = index[i[:-1]] == k.tirx.Cast("int64", i[-1])
            return k.tirx.Select(hit, k.tirx.const(1, self.dtype), k.tirx.const(0, self.dtype))

        return k.te.compute([*x.shape, self.num_classes], body)


def one_hot(a: Tensor, num_classes: int, dtype: str = "float32") -> Tensor:
    """Rows of the identity chosen by class numbers: shape a.shape + (num_classes,).

    IndexError for a class number outside 0..num_classes - 1 (not checked in compiled code).
    """
    return apply(OneHot(num_classes, dtype), (a,))
