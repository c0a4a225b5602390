"""The operators and methods of Tensor, including `backward`; this module binds them to the class.

Ops compute with Tensors, so the class is defined before the ops, and these methods, which call ops,
are defined after them.
"""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..autograd import engine
from ..autograd.dispatch import apply
from ..autograd.dtypes import holds
from ..autograd.shapes import Axes
from ..autograd.tensor import Tensor, TensorTuple, handle, no_value
from ..backend_ndarray import full
from ..backend_ndarray.dtypes import is_floating
from ..common import keywords
from ..common.state import call_recording, state
from ..op import Op
from ..ops._operands import SCALARS, binary
from ..ops.arithmetic import COMPARE
from . import augmented
from . import unchecked_ops as ops
from .copying import CopyingMethods
from .elementwise import ElementwiseMethods
from .in_place import InPlaceMethods
from .indexing import IndexingMethods
from .linalg import LinalgMethods
from .pytorch import PyTorchMethods


class TensorMethods(
    CopyingMethods,
    ElementwiseMethods,
    InPlaceMethods,
    IndexingMethods,
    LinalgMethods,
    PyTorchMethods,
):
    """Methods of Tensor. needle.ops documents their results and errors."""

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
        if type(other) in (int, float) and is_floating(self.dtype):
            return ops.add_scalar(self, -other)
        return binary(ops.SUBTRACT, self, other)

    def __rsub__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.SUBTRACT, self, other, swap=True)

    def __truediv__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.DIVIDE, (self, other))
        return _with_scalar(ops.DivideScalar, ops.DIVIDE, self, other)

    def __rtruediv__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.DIVIDE, self, other, swap=True)

    def __pow__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.POWER, (self, other))
        return _with_scalar(ops.PowerScalar, ops.POWER, self, other)

    def __rpow__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.POWER, self, other, swap=True)

    def __neg__(self: Tensor) -> Tensor:
        return ops.negate(self)

    def __matmul__(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(ops.MATMUL, (self, other))
        return binary(ops.MATMUL, self, other)

    def __rmatmul__(self: Tensor, other: Any) -> Tensor:
        return binary(ops.MATMUL, self, other, swap=True)

    # Comparisons are elementwise and return bool tensors.

    def __eq__(self: Tensor, other: Any) -> Any:
        return _compare("equal", self, other)

    def __ne__(self: Tensor, other: Any) -> Any:
        return _compare("not_equal", self, other)

    def __lt__(self: Tensor, other: Any) -> Tensor:
        return _compare("less", self, other)

    def __le__(self: Tensor, other: Any) -> Tensor:
        return _compare("less_equal", self, other)

    def __gt__(self: Tensor, other: Any) -> Tensor:
        return _compare("greater", self, other)

    def __ge__(self: Tensor, other: Any) -> Tensor:
        return _compare("greater_equal", self, other)

    # Ops as methods; needle.ops documents them.

    def __getitem__(self: Tensor, key: Any) -> Tensor:
        return ops.getitem(self, key)

    def __iter__(self: Tensor) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def matmul(self: Tensor, other: Tensor) -> Tensor:
        return ops.matmul(self, other)

    def sum(
        self: Tensor, axes: Axes = None, keepdims: bool = False, *, dtype: Any = None
    ) -> Tensor:
        return ops.summation(self, axes, keepdims, dtype=dtype)

    def mean(
        self: Tensor, axes: Axes = None, keepdims: bool = False, *, dtype: Any = None
    ) -> Tensor:
        return ops.mean(self, axes, keepdims, dtype=dtype)

    def max(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.max(self, axes, keepdims)

    def min(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.min(self, axes, keepdims)

    def prod(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.prod(self, axes, keepdims)

    def var(self: Tensor, axes: Axes = None, keepdims: bool = False, correction: int = 0) -> Tensor:
        return ops.var(self, axes, keepdims, correction)

    def std(self: Tensor, axes: Axes = None, keepdims: bool = False, correction: int = 0) -> Tensor:
        return ops.std(self, axes, keepdims, correction)

    def any(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.any(self, axes, keepdims)

    def all(self: Tensor, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.all(self, axes, keepdims)

    def argmax(self: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return ops.argmax(self, axis, keepdims)

    amax = ops.amax
    amin = ops.amin
    argmin = ops.argmin
    bincount = ops.bincount
    count_nonzero = ops.count_nonzero
    cummax = ops.cummax
    cummin = ops.cummin
    cumprod = ops.cumprod
    cumsum = ops.cumsum
    logcumsumexp = ops.logcumsumexp
    logsumexp = ops.logsumexp
    median = ops.median
    quantile = ops.quantile
    softmax = ops.softmax
    log_softmax = ops.logsoftmax

    argsort = ops.argsort
    kthvalue = ops.kthvalue
    sort = ops.sort
    topk = ops.topk

    def reshape(self: Tensor, *shape: Any) -> Tensor:
        return ops.reshape(self, shape)

    def broadcast_to(self: Tensor, *shape: Any) -> Tensor:
        return ops.broadcast_to(self, shape)

    def transpose(self: Tensor, *axes: Any) -> Tensor:
        """Return the tensor with two axes exchanged. `axes` is two numbers or one pair; by default,
        the last two."""
        return ops.transpose(self, (axes[0] if len(axes) == 1 else axes) or None)

    def permute(self: Tensor, *axes: Any) -> Tensor:
        return ops.permute(self, axes)

    def astype(self: Tensor, dtype: Any) -> Tensor:
        """Return the elements as `dtype`, as `needle.ops.cast` does."""
        return ops.cast(self, dtype)

    def detach(self: Tensor) -> Tensor:
        """Return the same value, detached from the graph. The result shares memory with this
        tensor."""
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

        With `create_graph`, the gradients have a graph of their own. Unless `retain_graph` is true
        (it defaults to `create_graph`), the pass frees the values that the forward pass saved, and
        a second pass raises an error. If `backward` raises an error, no leaf has changed.

        Raises RuntimeError if this tensor does not depend on anything that requires a gradient, or
        if a saved value has been freed or written in place. Raises ShapeError, TypeError or
        ValueError for an `out_grad` of another shape, dtype or device.

        >>> x = ndl.Tensor([2.0, 3.0])
        >>> (x**2).sum().backward()
        >>> (x * 10).sum().backward()  # adds
        >>> x.grad.numpy().tolist()
        [14.0, 16.0]
        """
        retain = create_graph if retain_graph is None else retain_graph
        engine.backward(self, out_grad, create_graph, retain)


class TupleMethods:
    """Methods of TensorTuple."""

    def __getitem__(self: TensorTuple, index: int) -> Tensor:
        return ops.tuple_get_item(self, index)

    def detach(self: TensorTuple) -> TensorTuple:
        """Return a tuple of the same parts, detached from the graph."""
        return ops.make_tuple(*(part.detach() for part in self))


def _with_scalar(scalar_op: Any, op: Op, x: Any, other: Any) -> Any:
    if type(other) is float or type(other) is int:
        return apply(scalar_op(other), (x,))
    if isinstance(other, (*SCALARS, np.generic)):
        return apply(scalar_op(other.item() if isinstance(other, np.generic) else other), (x,))
    return binary(op, x, other)


def _compare(kind: str, x: Tensor, other: Any) -> Any:
    if isinstance(other, Tensor):
        return apply(COMPARE[kind], (x, other))
    if type(other) is int and not holds(x.dtype, other):
        other = full(
            (), other, "int64", x.device
        )  # the dtype cannot hold the number, but the comparison has an answer
    return binary(COMPARE[kind], x, other)


def _bind(methods: type, target: type) -> None:
    for name, method in vars(methods).items():
        if inspect.isfunction(method):
            public = not name.startswith("_")
            owner = f"{target.__name__}.{name}"
            setattr(target, name, keywords.named(method, owner, True) if public else method)
        elif isinstance(method, property):
            setattr(target, name, method)


for _base in TensorMethods.__bases__:
    _bind(_base, Tensor)
_bind(TensorMethods, Tensor)
_bind(TupleMethods, TensorTuple)
for _name, _method in augmented.METHODS.items():
    setattr(Tensor, _name, _method)
