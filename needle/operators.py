"""What Tensors can do in expressions: operators and methods, each one an op of needle.ops."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import backend_ndarray as nd
from .backend_ndarray import Device, NDArray
from .dtypes import scalar_dtype

if TYPE_CHECKING:
    from .autograd import Tensor
    from .op import Op

_SCALARS = (bool, int, float)

# Ops need Tensor, which needs this module: autograd sets these once all are there.
ops: Any = None
apply: Any = None
make_const: Any = None


class Operators:
    """Base of Tensor. needle.ops says what each method does and raises."""

    __slots__ = ()
    __array_ufunc__ = None  # np.ndarray + Tensor is ours to answer
    __hash__ = object.__hash__  # == is elementwise

    def __add__(self, other: Any) -> Tensor:
        if isinstance(other, Operators):
            return apply(ops.ADD, (self, other))
        return _with_scalar(ops.AddScalar, ops.ADD, self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Tensor:
        if isinstance(other, Operators):
            return apply(ops.MULTIPLY, (self, other))
        return _with_scalar(ops.MulScalar, ops.MULTIPLY, self, other)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Tensor:
        if isinstance(other, Operators):
            return apply(ops.SUBTRACT, (self, other))
        if type(other) in (int, float):
            return ops.add_scalar(self, -other)
        return _binary(ops.SUBTRACT, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _binary(ops.SUBTRACT, self, other, swap=True)

    def __truediv__(self, other: Any) -> Tensor:
        if isinstance(other, Operators):
            return apply(ops.DIVIDE, (self, other))
        return _with_scalar(ops.DivideScalar, ops.DIVIDE, self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _binary(ops.DIVIDE, self, other, swap=True)

    def __pow__(self, other: Any) -> Tensor:
        if isinstance(other, Operators):
            return apply(ops.POWER, (self, other))
        return _with_scalar(ops.PowerScalar, ops.POWER, self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _binary(ops.POWER, self, other, swap=True)

    def __neg__(self) -> Tensor:
        return ops.negate(self)

    def __matmul__(self, other: Any) -> Tensor:
        return _binary(ops.MATMUL, self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _binary(ops.MATMUL, self, other, swap=True)

    # Comparisons are elementwise and give bool tensors.

    def __eq__(self, other: Any) -> Any:
        return _binary(ops.Compare("equal"), self, other)

    def __ne__(self, other: Any) -> Any:
        return _binary(ops.Compare("not_equal"), self, other)

    def __lt__(self, other: Any) -> Tensor:
        return _binary(ops.Compare("less"), self, other)

    def __le__(self, other: Any) -> Tensor:
        return _binary(ops.Compare("less_equal"), self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _binary(ops.Compare("greater"), self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _binary(ops.Compare("greater_equal"), self, other)

    # Ops as methods; needle.ops says what each does.

    def __getitem__(self, key: Any) -> Tensor:
        return ops.getitem(self, key)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))  # type: ignore[arg-type]

    def matmul(self, other: Tensor) -> Tensor:
        return ops.matmul(self, other)

    def sum(self, axes: Any = None, keepdims: bool = False) -> Tensor:
        return ops.summation(self, axes, keepdims)

    def mean(self, axes: Any = None, keepdims: bool = False) -> Tensor:
        return ops.mean(self, axes, keepdims)

    def max(self, axes: Any = None, keepdims: bool = False) -> Tensor:
        return ops.max(self, axes, keepdims)

    def reshape(self, *shape: Any) -> Tensor:
        return ops.reshape(self, shape)

    def broadcast_to(self, *shape: Any) -> Tensor:
        return ops.broadcast_to(self, shape)

    def transpose(self, axes: Any = None) -> Tensor:
        return ops.transpose(self, axes)

    def permute(self, *axes: Any) -> Tensor:
        return ops.permute(self, axes)

    def exp(self) -> Tensor:
        return ops.exp(self)

    def log(self) -> Tensor:
        return ops.log(self)

    def tanh(self) -> Tensor:
        return ops.tanh(self)

    def sqrt(self) -> Tensor:
        return ops.sqrt(self)

    def astype(self, dtype: Any) -> Tensor:
        return ops.cast(self, dtype)


def _with_scalar(scalar_op: Any, op: Op, x: Any, other: Any) -> Any:
    if type(other) is float or type(other) is int:
        return apply(scalar_op(other), (x,))
    if isinstance(other, (*_SCALARS, np.generic)):
        return apply(scalar_op(other.item() if isinstance(other, np.generic) else other), (x,))
    return _binary(op, x, other)


@functools.lru_cache(maxsize=256)
def _scalar(text: str, value: bool | int | float, dtype: str, device: Device) -> NDArray:
    """A 0-d array, shared by all that need it (`text` tells 0.0 from -0.0)."""
    return nd.full((), value, dtype, device)


def _binary(op: Op, x: Any, other: Any, swap: bool = False) -> Any:
    """x op other, where `other` may be a Python scalar (weak), a NumPy array or an NDArray."""
    if not isinstance(other, Operators):
        if isinstance(other, np.generic):
            other = other.item()
        if isinstance(other, _SCALARS):
            dtype = scalar_dtype(x.dtype, other)
            other = make_const(_scalar(str(other), other, dtype, x.device))
        elif isinstance(other, (np.ndarray, NDArray)):
            other = make_const(other, x.device)
        else:
            return NotImplemented
    return apply(op, (other, x) if swap else (x, other))
