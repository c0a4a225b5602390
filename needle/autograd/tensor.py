"""Tensor: an n-dimensional array that remembers how it was made.

A Tensor is a light handle to a value and to the `Node` (see node.py) that made it. The methods that
call ops are in needle.methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backend_ndarray as nd
from ..backend_ndarray import Device, DeviceLike, NDArray
from ..backend_ndarray.dtypes import is_floating
from ..common.framework_names import missing
from ..common.state import note_gradient, note_replaced, state
from ..errors import ShapeError, TraceError
from ..sizes.elements import Elements, elements
from .destination import destination
from .dtypes import as_ndarray
from .hooks import Hooked
from .node import Node, OpRules, spec_of
from .tensor_methods import TensorMethods, TupleMethods


class Value:
    """Base of Tensor and TensorTuple."""

    __slots__ = ("__weakref__", "_data", "_node")

    _data: Any
    _node: Node | None

    @property
    def node(self) -> Node:
        """The graph node. While tracing, the node of a concrete tensor is a leaf of the trace."""
        if state.trace is not None and self._data is not None:
            return state.trace.leaf(self)
        node = self._node
        if node is None:
            node = self._node = Node(spec_of(self._data), False)
        return node

    @property
    def spec(self) -> Any:
        """The Spec (a tuple of Specs for a TensorTuple)."""
        data = self._data
        if data is None:
            assert self._node is not None
            return self._node.spec
        return spec_of(data)

    @property
    def op(self) -> OpRules | None:
        """The op that made this value; None for a leaf."""
        return None if self._node is None else self._node.op

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The inputs of the op that made this value; inputs with freed values have only a shape and
        a dtype."""
        made_by = self._node
        if made_by is None:
            return ()
        nodes, saved = made_by.input_nodes, made_by.saved
        if type(saved) is not tuple:
            return tuple([handle(node, None) for node in nodes])
        return tuple([handle(node, data) for node, data in zip(nodes, saved, strict=True)])

    @property
    def requires_grad(self) -> bool:
        """Whether this tensor takes part in gradients."""
        return self._node is not None and self._node.requires_grad

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded op made this value."""
        return self._node is None or self._node.op is None

    def realize_cached_data(self) -> Any:
        """Return the NDArray (for a TensorTuple a tuple of NDArrays). Raises TraceError if there is
        no value."""
        if state.trace is not None:
            state.trace.check_read(self)
        if self._data is None:
            raise no_value(self)
        return self._data

    @property
    def cached_data(self) -> Any:
        """The NDArray behind this tensor."""
        return self.realize_cached_data()


class _TensorExchange:
    """`Tensor.__dlpack_c_exchange_api__`, like NDArray's; it raises TraceError for a value that
    must not be read while tracing."""

    _table: Any = None

    def __get__(self, instance: Any, owner: Any) -> Any:
        if self._table is None:
            _ = NDArray.__dlpack_c_exchange_api__
            self._table = nd.cpu().kernels.tensor_exchange(Tensor, state)
        return self._table


class Tensor(Value, Hooked, TensorMethods):
    """An n-dimensional array that remembers how it was made.

    `array` is nested sequences or Python scalars (floats become float32, ints int64), a NumPy array
    (copied; keeps its dtype), an NDArray (shared), a Tensor (its value is shared) or any object
    with `__dlpack__`. `device` (None: the array's device, or the CPU) and `dtype` convert the
    array. `requires_grad` applies to floating dtypes only. Raises TypeError for a dtype that needle
    does not store.

    >>> x = ndl.Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x * x).sum().backward()
    >>> x.grad.numpy().tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """

    __slots__ = ()
    _is_variable = False  # whether augmented assignment always writes into the tensor
    __array_ufunc__ = None  # so that np.ndarray + Tensor calls Tensor.__radd__
    __dlpack_c_exchange_api__ = _TensorExchange()

    def __init__(
        self,
        array: Any,
        *,
        device: DeviceLike | None = None,
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

    if not TYPE_CHECKING:  # with it, mypy would accept every attribute

        def __getattr__(self, name):
            raise missing(self, f"{type(self).__name__!r} object", name)

    # Properties

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        data: Any = self._data
        return data.shape if data is not None else self.spec.shape

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        data: Any = self._data
        return data.dtype if data is not None else self.spec.dtype

    @property
    def device(self) -> Device:
        """The device that holds the values."""
        data: Any = self._data
        return data.device if data is not None else self.spec.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Elements:
        """The number of elements. Calling it returns extents, as in PyTorch: `x.size()` is the
        shape and `x.size(0)` the first extent."""
        counted: Elements = elements(self.shape)
        return counted

    def dim(self) -> int:
        """Return `ndim`, under PyTorch's name."""
        return self.ndim

    def numel(self) -> int:
        """Return `size` as an int, under PyTorch's name."""
        return self.size + 0

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-d tensor has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        kind, op = type(self).__name__, self.op
        made = "" if op is None else f", op={op.name}"
        if self._data is None or state.trace is not None:
            return f"{kind}({self.spec}{made})"
        leaf = ", requires_grad=True" if op is None and self.requires_grad else ""
        values = np.array2string(self._data.numpy(), separator=", ", prefix=f"{kind}(")
        about = f"shape={self.shape}, dtype={self.dtype}, device={self.device}"
        return f"{kind}({values}, {about}{made}{leaf})"

    def __format__(self, spec: str) -> str:
        """Return the element of a 0-d tensor in the format `spec`, as in f"{loss:.4f}". For any
        other tensor, return its `repr`, and raise TypeError if there is a `spec`."""
        if not self.shape and (spec or (self._data is not None and state.trace is None)):
            return format(self.item(), spec)
        if spec:
            raise TypeError(
                f"format {spec!r} is for one number, but this tensor has shape {self.shape}; write "
                "x.item() if it has one element, or format its elements one by one"
            )
        return repr(self)

    # The value

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a NumPy copy of the values."""
        return self.realize_cached_data().numpy()

    def item(self) -> bool | int | float:
        """Return the only element as a Python scalar. Raises ValueError unless there is exactly
        one."""
        return self.realize_cached_data().item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if is_floating(self.dtype) or self.dtype == "bool":
            raise TypeError(
                f"a {self.dtype} tensor is not an index; an index must be an integer tensor with "
                "one element"
            )
        return int(self.item())

    def tolist(self) -> Any:
        """Return the values as nested lists of Python scalars; a scalar for a 0-d tensor."""
        return self.realize_cached_data().numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.realize_cached_data().__array__(dtype, copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.realize_cached_data().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.realize_cached_data().__dlpack_device__()

    @property
    def data(self) -> Tensor:
        """This value without its history. Assigning replaces the value (same shape and dtype)."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"data must be set to a Tensor, not a {type(value).__name__}")
        if value.dtype != self.dtype or value.shape != self.shape:
            raise ShapeError(f"data of {self.spec} cannot be set to {value.spec}")
        if state.trace is None or not state.trace.write(self, value, replaces=True):
            self._replace(value.realize_cached_data())

    def _replace(self, data: NDArray) -> None:
        self._data = data
        if self._node is not None and self._node.op is None:
            self._node.spec = spec_of(data)
        note_replaced()

    def __reduce__(self) -> Any:
        # Copies and pickles are leaves, without the history.
        data = self.realize_cached_data()
        return _rebuild, (type(self), data, self.requires_grad)

    # Gradients

    @property
    def requires_grad(self) -> bool:
        """Whether this tensor takes part in gradients; may be set on leaves."""
        return self._node is not None and self._node.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not is_floating(self.dtype):
            raise TypeError(
                f"a {self.dtype} tensor cannot require a gradient; only floating dtypes can"
            )
        if state.trace is not None and bool(value) != self.requires_grad:
            state.trace.set_requires_grad(self, bool(value))
            return
        if not self.is_leaf:
            raise RuntimeError("requires_grad can only be set on leaves; use detach()")
        self.node.requires_grad = bool(value)
        note_replaced()

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` accumulated for this leaf (it has the leaf's shape), or
        None."""
        if state.trace is None and self._node is None:
            return None
        return self.node.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"grad must be a Tensor or None, not a {type(value).__name__}")
            if value.shape != self.shape:
                raise ShapeError(
                    f"grad has shape {value.shape}, but the tensor has shape {self.shape}"
                )
            if value.device is not self.device:
                raise ValueError(
                    f"grad and tensor are on different devices: {value.device} and {self.device}"
                )
        self.node.grad = value
        if value is not None and state.trace is None:
            note_gradient()

    def to(
        self, *to: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False
    ) -> Tensor:
        """Return this tensor on another device or in another dtype, or both: `x.to("cuda")`,
        `x.to("float16")`, `x.to(needle.cuda(1), "float16")`. `x.to(y)` uses the device and the
        dtype of the tensor y. Returns self if nothing changes. `non_blocking` is accepted and has
        no effect.

        A change of the dtype is an op in the graph; a change of the device makes a leaf. Raises
        TypeError for a value that is neither a device nor a dtype.
        """
        if len(to) == 1 and isinstance(to[0], Tensor):
            to = (to[0].device, to[0].dtype)
        place, name = destination("to", to, device, dtype)
        out: Tensor = self if name is None or name == self.dtype else self.astype(name)
        if place is None or place is out.device:
            return out
        return Tensor(out.realize_cached_data().to(place), requires_grad=out.requires_grad)


class TensorTuple(Value, TupleMethods):
    """The value of an op with several outputs. An index returns a Tensor."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.spec)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def tuple(self) -> tuple[Tensor, ...]:
        """Return the parts as a Python tuple."""
        return tuple(self)

    def __repr__(self) -> str:
        return f"TensorTuple({', '.join(map(str, self.spec))})"


# The values that an op of tensors accepts as an operand.
Operand = Tensor | bool | int | float | np.ndarray | NDArray


def handle(node: Node | None, data: Any) -> Any:
    """Return a Tensor or TensorTuple for `node` and `data` (one of them may be None)."""
    parts = data if node is None else node.spec
    out: Any = object.__new__(TensorTuple if type(parts) is tuple else Tensor)
    out._node = node
    out._data = data
    return out


def overwrite(target: Tensor, value: Tensor) -> None:
    """Set the elements of `target`, in its memory, to the elements of `value`, rounded to target's
    dtype. Both have the same shape."""
    if state.trace is None or not state.trace.write(target, value.astype(target.dtype)):
        target.realize_cached_data()[...] = value.realize_cached_data()


def no_value(x: Value) -> Exception:
    node = x._node
    made = "" if node is None or node.op is None else f" (made by {node.op.name})"
    if node is not None and node.scope is not None:
        where = f" in module {node.scope!r}" if node.scope else ""
        return TraceError(f"{x!r}{made}{where} was made while tracing and has no value")
    return RuntimeError(
        f"the value of {x!r}{made} was released: no gradient rule reads it (Op.reads), or a "
        "backward pass without retain_graph has freed it"
    )


def _rebuild(kind: type[Tensor], data: NDArray, requires_grad: bool) -> Tensor:
    out = object.__new__(kind)
    Tensor.__init__(out, data, requires_grad=requires_grad)
    return out


def make_const(value: Any, device: DeviceLike | None = None) -> Tensor:
    """Return a Tensor on `device` that requires no gradient, made from `value`: anything that
    `Tensor` accepts (an NDArray is shared)."""
    return Tensor(value, device=device, requires_grad=False)


def from_dlpack(x: Any, requires_grad: bool = False) -> Tensor:
    """Return a Tensor that shares the memory of `x`, any object with `__dlpack__`, or copies it if
    sharing is impossible. With `requires_grad` the Tensor is a leaf that gets a gradient.

    Raises TypeError for a dtype that needle does not store, BufferError for unknown devices.

    >>> array = np.zeros(2, "float32")
    >>> x = ndl.from_dlpack(array)
    >>> array[0] = 5.0
    >>> x.numpy().tolist()
    [5.0, 0.0]
    """
    return Tensor(nd.from_dlpack(x), requires_grad=requires_grad)
