"""Operators, methods and gradients of Tensors, which call ops. This module binds them to Tensor.

Ops compute with Tensors, so the class is defined before the ops, and these methods after them.
"""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import backend_ndarray as nd
from . import engine, ops
from ._state import call_recording, state
from .apply import apply
from .backend_ndarray import Device, NDArray
from .dims import Expression
from .dtypes import scalar_dtype
from .op import Op
from .spec import Axes
from .tensor import Tensor, TensorTuple, handle, make_const, no_value

_SCALARS = (bool, int, float)


class TensorMethods:
    """Methods of Tensor. needle.ops documents what each does and raises."""

    def __add__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.ADD, (self, other))
        return _with_scalar(ops.AddScalar, ops.ADD, self, other)

    __radd__ = __add__

    def __mul__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.MULTIPLY, (self, other))
        return _with_scalar(ops.MulScalar, ops.MULTIPLY, self, other)

    __rmul__ = __mul__

    def __sub__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.SUBTRACT, (self, other))
        if type(other) in (int, float):
            return ops.add_scalar(self, -other)
        return _binary(ops.SUBTRACT, self, other)

    def __rsub__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.SUBTRACT, self, other, swap=True)

    def __truediv__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.DIVIDE, (self, other))
        return _with_scalar(ops.DivideScalar, ops.DIVIDE, self, other)

    def __rtruediv__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.DIVIDE, self, other, swap=True)

    def __pow__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.POWER, (self, other))
        return _with_scalar(ops.PowerScalar, ops.POWER, self, other)

    def __rpow__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.POWER, self, other, swap=True)

    def __neg__(self: Tensor) -> Tensor:
        return ops.negate(self)

    def __matmul__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.MATMUL, self, other)

    def __rmatmul__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.MATMUL, self, other, swap=True)

    # Comparisons are elementwise and give bool tensors.

    def __eq__(self: Tensor, other: Any) -> Any:
        return _binary(ops.Compare("equal"), self, other)

    def __ne__(self: Tensor, other: Any) -> Any:
        return _binary(ops.Compare("not_equal"), self, other)

    def __lt__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.Compare("less"), self, other)

    def __le__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.Compare("less_equal"), self, other)

    def __gt__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.Compare("greater"), self, other)

    def __ge__(self: Tensor, other: Any) -> Tensor:
        return _binary(ops.Compare("greater_equal"), self, other)

    # Ops as methods; needle.ops documents each.

    def __getitem__(self: Tensor, key: Any) -> Tensor:
        return ops.getitem(self, key)

    def __iter__(self: Tensor) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def matmul(self: Tensor, other: Tensor) -> Tensor:
        return ops.matmul(self, other)

    def sum(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.summation(self, axes, keepdims)

    def mean(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.mean(self, axes, keepdims)

    def max(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.max(self, axes, keepdims)

    def reshape(self: Tensor, *shape: Any) -> Tensor:
        return ops.reshape(self, shape)

    def broadcast_to(self: Tensor, *shape: Any) -> Tensor:
        return ops.broadcast_to(self, shape)

    def transpose(self: Tensor, axes: Sequence[int] | None = None) -> Tensor:
        return ops.transpose(self, axes)

    def permute(self: Tensor, *axes: Any) -> Tensor:
        return ops.permute(self, axes)

    def exp(self: Tensor) -> Tensor:
        return ops.exp(self)

    def log(self: Tensor) -> Tensor:
        return ops.log(self)

    def tanh(self: Tensor) -> Tensor:
        return ops.tanh(self)

    def sqrt(self: Tensor) -> Tensor:
        return ops.sqrt(self)

    def astype(self: Tensor, dtype: Any) -> Tensor:
        return ops.cast(self, dtype)

    def detach(self: Tensor) -> Tensor:
        """The same value without its history; it shares memory."""
        if state.trace is not None:
            return call_recording(False, ops.detach, self)
        if self._data is None:
            raise no_value(self)
        return handle(None, self._data)

    def backward(
        self: Tensor,
        out_grad: Tensor | None = None,
        create_graph: bool = False,
        retain_graph: bool | None = None,
    ) -> None:
        """Add d(self)/d(leaf), weighted by `out_grad` (ones if None), to each leaf's `.grad`.

        With `create_graph` the gradients have a graph of their own. Unless `retain_graph` (None:
        as create_graph), the values saved by the forward pass are freed on the way, and a second
        pass is refused. On an error no leaf changes.

        Raises RuntimeError if nothing here requires a gradient, or if a saved value was freed or
        written in place since; ShapeError, TypeError or ValueError for an out_grad of another
        shape, dtype or device.
        """
        retain = create_graph if retain_graph is None else retain_graph
        engine.backward(self, out_grad, create_graph, retain)


class TupleMethods:
    """Methods of TensorTuple."""

    def __getitem__(self: TensorTuple, index: int) -> Tensor:
        return ops.tuple_get_item(self, index)

    def detach(self: TensorTuple) -> TensorTuple:
        """The parts, cut from the graph."""
        return ops.make_tuple(*(part.detach() for part in self))


def _with_scalar(scalar_op: Any, op: Op, x: Any, other: Any) -> Any:
    if type(other) is float or type(other) is int:
        return apply(scalar_op(other), (x,))
    if isinstance(other, (*_SCALARS, np.generic)):
        return apply(scalar_op(other.item() if isinstance(other, np.generic) else other), (x,))
    return _binary(op, x, other)


@functools.lru_cache(maxsize=256)
def _scalar(text: str, value: bool | int | float, dtype: str, device: Device) -> NDArray:
    """A cached 0-d array (`text` distinguishes 0.0 from -0.0)."""
    return nd.full((), value, dtype, device)


def _binary(op: Op, x: Any, other: Any, swap: bool = False) -> Any:
    """`x op other`, where `other` may be a Python scalar (weak), a NumPy array or an NDArray."""
    if not isinstance(other, Tensor):
        if isinstance(other, np.generic):
            other = other.item()
        if isinstance(other, _SCALARS):
            dtype = scalar_dtype(x.dtype, other)
            other = make_const(_scalar(str(other), other, dtype, x.device))
        elif isinstance(other, (np.ndarray, NDArray)):
            other = make_const(other, x.device)
        elif isinstance(other, Expression):
            other = ops.arange(1, other, scalar_dtype(x.dtype, 1), x.device).reshape(())
        else:
            return NotImplemented
    return apply(op, (other, x) if swap else (x, other))


def _bind(methods: type, target: type) -> None:
    for name, method in vars(methods).items():
        if inspect.isfunction(method):
            setattr(target, name, method)


_bind(TensorMethods, Tensor)
_bind(TupleMethods, TensorTuple)
