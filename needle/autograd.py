"""Tensor: an n-dimensional array that remembers how it was made.

A Tensor is a light handle, a value and the `Node` (see node.py) it came from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import backend_ndarray as nd
from . import node as _node
from . import operators
from ._state import note_replaced, state
from .backend_ndarray import Device, NDArray
from .backend_ndarray.dtypes import is_floating
from .dtypes import as_ndarray
from .errors import ShapeError
from .node import (
    Node,
    TensorTuple,
    Value,
    apply,
    explain,
    handle,
    no_value,
    spec_of,
)
from .operators import Operators

__all__ = [
    "Node",
    "Tensor",
    "TensorTuple",
    "Value",
    "apply",
    "explain",
    "from_dlpack",
    "handle",
    "make_const",
    "topological_order",
]


class Tensor(Operators, Value):
    """An n-dimensional array that remembers how it was made.

    `array`: nested sequences or Python scalars (floats become float32, ints int64), a NumPy array
    (copied; keeps its dtype, small integers become int32), an NDArray (shared), a Tensor (its
    value is shared) or any object with `__dlpack__`. `requires_grad` holds for floating dtypes
    only. Raises TypeError for a dtype that needle does not store.
    """

    __slots__ = ()

    def __init__(
        self,
        array: Any,
        *,
        device: Device | None = None,
        dtype: Any = None,
        requires_grad: bool = True,
    ) -> None:
        if isinstance(array, Tensor):
            array = array.realize_cached_data()
        data = as_ndarray(array, device, dtype)
        self._data = data
        self._node = (
            Node(spec_of(data), True) if requires_grad and is_floating(data.dtype) else None
        )

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        data: Any = self._data
        return data.shape if data is not None else self.spec.shape

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        data: Any = self._data
        return data.dtype if data is not None else self.spec.dtype

    @property
    def device(self) -> Device:
        """Where the values are."""
        data: Any = self._data
        return data.device if data is not None else self.spec.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        out = 1
        for n in self.shape:
            out *= n
        return out

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-d tensor has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        kind = type(self).__name__
        if self._data is None or state.trace is not None:
            return f"{kind}({self.spec})"
        tail = ", requires_grad=True" if self.requires_grad else ""
        values = np.array2string(self._data.numpy(), separator=", ", prefix=f"{kind}(")
        return f"{kind}({values}, dtype={self.dtype}, device={self.device}{tail})"

    # Its value

    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy copy."""
        return self.realize_cached_data().numpy()

    def item(self) -> bool | int | float:
        """The only element as a Python scalar. ValueError when there is not exactly one."""
        return self.realize_cached_data().item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.realize_cached_data().__array__(dtype, copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.realize_cached_data().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.realize_cached_data().__dlpack_device__()

    @property
    def data(self) -> Tensor:
        """This value, cut from the graph; assigning replaces the value (same shape and dtype)."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        if state.trace is not None:
            state.trace.refuse_write(self)
        if not isinstance(value, Tensor):
            raise TypeError(f"data must be set to a Tensor, not a {type(value).__name__}")
        if value.dtype != self.dtype or value.shape != self.shape:
            raise ShapeError(f"data of {self.spec} cannot be set to {value.spec}")
        self._replace(value.realize_cached_data())

    def _replace(self, data: NDArray) -> None:
        self._data = data
        if self._node is not None and self._node.op is None:
            self._node.spec = spec_of(data)
        note_replaced()

    def detach(self) -> Tensor:
        """The same value without its history; shares memory."""
        if state.trace is not None:
            return _ops.detach(self)
        if self._data is None:
            raise no_value(self)
        return handle(None, self._data)

    def __reduce__(self) -> Any:
        # Copies and pickles are leaves: history is not carried along.
        data = self.realize_cached_data()
        return _rebuild, (type(self), data, self.requires_grad)

    # Gradients

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to this tensor; may be set on leaves."""
        return self._node is not None and self._node.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not self.is_leaf:
            raise RuntimeError("requires_grad can only be set on leaves; use detach()")
        if value and not is_floating(self.dtype):
            raise TypeError(f"a {self.dtype} tensor cannot require a gradient")
        if state.trace is not None:
            state.trace.refuse_write(self)
        self.node.requires_grad = bool(value)

    @property
    def grad(self) -> Tensor | None:
        """What `backward` accumulated for this leaf, a Tensor of its shape, or None."""
        if state.trace is None and self._node is None:
            return None
        return self.node.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"grad must be a Tensor or None, not a {type(value).__name__}")
            if value.shape != self.shape:
                raise ShapeError(f"grad of shape {value.shape} for a tensor of shape {self.shape}")
            if value.device is not self.device:
                raise ValueError(
                    f"grad and tensor are on different devices: {value.device} and {self.device}"
                )
        self.node.grad = value

    def backward(
        self,
        out_grad: Tensor | None = None,
        create_graph: bool = False,
        retain_graph: bool | None = None,
    ) -> None:
        """Adds d(self)/d(leaf), weighted by `out_grad` (ones if None), to each leaf's `.grad`.

        With `create_graph` the gradients have a graph of their own. What the forward pass kept is
        let go on the way unless `retain_graph` (if None: create_graph), so that a second pass is
        refused. All leaves change or, on an error, none.

        RuntimeError when nothing here requires a gradient, when what is needed was let go or has
        been written in place since; ShapeError, TypeError or ValueError for an out_grad of another
        shape, dtype or device.
        """
        retain = create_graph if retain_graph is None else retain_graph
        _engine.backward(self, out_grad, create_graph, retain)

    def to(self, device: Device) -> Tensor:
        """A copy on `device`, cut from the graph (self when already there)."""
        if device is self.device:
            return self
        return Tensor(self.realize_cached_data().to(device), requires_grad=self.requires_grad)


def _rebuild(kind: type[Tensor], data: NDArray, requires_grad: bool) -> Tensor:
    out = object.__new__(kind)
    Tensor.__init__(out, data, requires_grad=requires_grad)
    return out


def make_const(value: Any, device: Device | None = None) -> Tensor:
    """A Tensor without gradient over `value` (an NDArray is shared)."""
    return Tensor(value, device=device, requires_grad=False)


def from_dlpack(x: Any, requires_grad: bool = False) -> Tensor:
    """A Tensor over the memory of any object with `__dlpack__` (copied where it cannot be shared).

    Raises TypeError for a dtype that needle does not store, BufferError for unknown devices.
    """
    return Tensor(nd.from_dlpack(x), requires_grad=requires_grad)


_node.tensor_type = Tensor

# Operators need the ops, which need Tensor: hence at the end.
from . import engine as _engine  # noqa: E402
from . import ops as _ops  # noqa: E402

operators.ops = _ops
operators.apply = apply
operators.make_const = make_const
topological_order = _engine.topological_order
