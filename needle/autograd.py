"""Tensors, the graph behind them, and how an op is applied.

A `Tensor` is a light handle: a value and the `Node` it came from. A `Node` records the op, the
nodes of its inputs, and of their values only what the op's gradient declares to read, so the rest
is released during the forward pass. Leaves keep their gradient on the node, so that every handle
to one leaf sees the same `.grad`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import backend_ndarray as nd
from ._state import state
from .backend_ndarray import Device, NDArray
from .backend_ndarray.dtypes import is_floating
from .errors import ShapeError, TraceError
from .spec import Spec

if TYPE_CHECKING:
    from .op import Op

_SCALARS = (bool, int, float)


class Node:
    """What made a value. Leaves have `op` None; tuple-valued nodes have a tuple as `spec`."""

    __slots__ = (
        "changed",
        "grad",
        "input_nodes",
        "made",
        "op",
        "output",
        "requires_grad",
        "saved",
        "scope",
        "spec",
    )

    op: Op | None
    input_nodes: tuple[Node, ...]
    saved: tuple[Any, ...] | None  # values of the inputs, when the gradient reads them
    output: Any  # the value itself, when the gradient reads it
    spec: Any
    scope: str | None  # module path; only known when traced
    requires_grad: bool
    grad: Tensor | None
    made: int  # `clock` when the op ran, and when a leaf's memory was last written in place
    changed: int

    def __init__(self, spec: Any, requires_grad: bool, scope: str | None = None) -> None:
        self.op = None
        self.input_nodes = ()
        self.saved = self.output = self.grad = None
        self.spec = spec
        self.scope = scope
        self.requires_grad = requires_grad
        self.made = self.changed = 0

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Always a tuple: one Spec, or one for each part of a tuple-valued node."""
        return self.spec if type(self.spec) is tuple else (self.spec,)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The inputs as Tensors; those whose values were released know only shape and dtype."""
        nodes, saved = self.input_nodes, self.saved
        if saved is None:
            return tuple([handle(node, None) for node in nodes])
        return tuple([handle(node, data) for node, data in zip(nodes, saved, strict=True)])

    def value(self) -> Any:
        """A Tensor (or TensorTuple) for this node, with its value if that was kept."""
        return handle(self, self.output)

    def __repr__(self) -> str:
        what = "leaf" if self.op is None else repr(self.op)
        return f"Node({what}, {', '.join(map(str, self.specs))})"


class _Clock:
    """Counts writes in place to leaves, to tell a stale saved value from a good one."""

    now = 1


def mark_changed(tensor: Tensor) -> None:
    """Says that the memory of a leaf was written in place: graphs recorded before cannot be
    differentiated where they read it."""
    _Clock.now += 1
    tensor.node.changed = _Clock.now


class Value:
    """What Tensor and TensorTuple share."""

    __slots__ = ("__weakref__", "_data", "_node")

    _data: Any
    _node: Node | None

    @property
    def node(self) -> Node:
        """The graph node. While tracing, a concrete tensor stands for a leaf of the trace."""
        if state.trace is not None and self._data is not None:
            return state.trace.leaf(self)
        node = self._node
        if node is None:
            node = self._node = Node(_spec_of(self._data), False)
        return node

    @property
    def spec(self) -> Any:
        """Spec (a tuple of them for a TensorTuple)."""
        data = self._data
        if data is None:
            assert self._node is not None
            return self._node.spec
        return _spec_of(data)

    @property
    def op(self) -> Op | None:
        """The op that made this, None for a leaf."""
        return None if self._node is None else self._node.op

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Inputs of the op that made this (see Node.inputs)."""
        return () if self._node is None else self._node.inputs

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to this tensor."""
        return self._node is not None and self._node.requires_grad

    @property
    def is_leaf(self) -> bool:
        """True when no recorded op made this."""
        return self._node is None or self._node.op is None

    def realize_cached_data(self) -> Any:
        """The NDArray (a tuple of them for a TensorTuple). TraceError where there is no value."""
        if state.trace is not None:
            state.trace.check_read(self)
        if self._data is None:
            raise _no_value(self)
        return self._data

    @property
    def cached_data(self) -> Any:
        """The NDArray behind this tensor."""
        return self.realize_cached_data()


class TensorTuple(Value):
    """The value of an op with several outputs. Indexing gives Tensors."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.spec)

    def __getitem__(self, index: int) -> Tensor:
        return _ops.tuple_get_item(self, index)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def tuple(self) -> tuple[Tensor, ...]:
        """The parts as a Python tuple."""
        return tuple(self)

    def detach(self) -> TensorTuple:
        """The parts, cut from the graph."""
        return _ops.make_tuple(*(part.detach() for part in self))

    def __repr__(self) -> str:
        return f"TensorTuple({', '.join(map(str, self.spec))})"


def _spec_of(data: Any) -> Any:
    if type(data) is tuple:
        return tuple([Spec(d.shape, d.dtype, d.device) for d in data])
    return Spec(data.shape, data.dtype, data.device)


def handle(node: Node | None, data: Any) -> Any:
    """A Tensor or TensorTuple over `node` and `data` (either may be None, not both)."""
    parts = data if node is None else node.spec
    out: Any = object.__new__(TensorTuple if type(parts) is tuple else Tensor)
    out._node = node
    out._data = data
    return out


def _no_value(x: Value) -> Exception:
    node = x._node
    made = "" if node is None or node.op is None else f" (made by {node.op.name})"
    if node is not None and node.scope is not None:
        where = f" in module {node.scope!r}" if node.scope else ""
        return TraceError(f"{x!r}{made}{where} was made while tracing and has no value")
    return RuntimeError(
        f"the value of {x!r}{made} was released after the forward pass: no gradient declared that "
        "it reads it (Op.reads)"
    )


def apply(op: Op, inputs: tuple[Any, ...]) -> Any:
    """Runs `op`, and records it when a gradient may be asked for. While tracing, only records."""
    if state.trace is not None:
        return state.trace.apply(op, inputs)
    try:
        if op.infer_first:
            op.infer(*[x.spec for x in inputs])
        if len(inputs) == 2:
            a, b = inputs
            data = op.compute(a._data, b._data)
        else:
            data = op.compute(*[x._data for x in inputs])
    except (ValueError, TypeError, IndexError, AttributeError):
        explain(op, inputs)
        raise
    if state.grad:
        for x in inputs:
            node = x._node
            if node is not None and node.requires_grad:
                return _record(op, inputs, data)
    out: Any = _new(Tensor if type(data) is not tuple else TensorTuple)
    out._node = None
    out._data = data
    return out


_new = object.__new__


def _record(op: Op, inputs: tuple[Any, ...], data: Any) -> Any:
    node = _new(Node)
    node.op = op
    node.input_nodes = tuple([x._node or x.node for x in inputs])
    node.saved = tuple([x._data for x in inputs]) if "inputs" in op.reads else None
    node.output = data if "output" in op.reads else None
    node.spec = _spec_of(data)
    node.scope = node.grad = None
    node.requires_grad = any([is_floating(s.dtype) for s in node.specs])
    node.made = _Clock.now
    node.changed = 0
    return handle(node, data)


def explain(op: Op, inputs: tuple[Any, ...]) -> None:
    """Raises the clear error behind a failed `compute`, if there is one to be found."""
    for i, x in enumerate(inputs):
        if not isinstance(x, Value):
            raise TypeError(f"{op.name}: input {i} is a {type(x).__name__}, not a Tensor") from None
        if x._data is None and state.trace is None:
            raise _no_value(x) from None
    if op.arity is not None and len(inputs) != op.arity:
        plural = "" if op.arity == 1 else "s"
        raise TypeError(
            f"{op.name}: takes {op.arity} input{plural}, {len(inputs)} given"
        ) from None
    try:
        op.infer(*[x.spec for x in inputs])
    except NotImplementedError:
        return
    except Exception as error:
        raise error from None


class Tensor(Value):
    """An n-dimensional array that remembers how it was made.

    `array`: nested sequences or Python scalars (floats become float32, ints int64), a NumPy array
    (copied; keeps its dtype, small integers become int32), an NDArray (shared), a Tensor (its
    value is shared) or any object with `__dlpack__`. `requires_grad` holds for floating dtypes
    only. Raises TypeError for a dtype that needle does not store.
    """

    __slots__ = ()
    __array_ufunc__ = None  # np.ndarray + Tensor is ours to answer

    def __init__(
        self,
        array: Any,
        *,
        device: Device | None = None,
        dtype: Any = None,
        requires_grad: bool = True,
    ) -> None:
        data = _as_ndarray(array, device, dtype)
        self._data = data
        self._node = Node(_spec_of(data), True) if requires_grad and is_floating(data.dtype) else None

    @staticmethod
    def make_const(data: Any, requires_grad: bool = False) -> Tensor:
        """A leaf over an NDArray (shared)."""
        return Tensor(data, requires_grad=requires_grad)

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        data = self._data
        return data.shape if data is not None else self._node.spec.shape  # type: ignore

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        data = self._data
        return data.dtype if data is not None else self._node.spec.dtype  # type: ignore

    @property
    def device(self) -> Device:
        """Where the values are."""
        data = self._data
        return data.device if data is not None else self._node.spec.device  # type: ignore

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
        return self.realize_cached_data().numpy()  # type: ignore[no-any-return]

    def item(self) -> bool | int | float:
        """The only element as a Python scalar. ValueError when there is not exactly one."""
        return self.realize_cached_data().item()  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.realize_cached_data().__array__(dtype, copy)  # type: ignore[no-any-return]

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.realize_cached_data().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.realize_cached_data().__dlpack_device__()  # type: ignore[no-any-return]

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
            self._node.spec = _spec_of(data)

    def detach(self) -> Tensor:
        """The same value without its history; shares memory."""
        if state.trace is not None:
            return _ops.detach(self)
        if self._data is None:
            raise _no_value(self)
        return handle(None, self._data)  # type: ignore[no-any-return]

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
        self.node.grad = value

    def backward(self, out_grad: Tensor | None = None, create_graph: bool = False) -> None:
        """Adds d(self)/d(leaf), weighted by `out_grad` (ones if None), to each leaf's `.grad`.

        With `create_graph` the gradients have a graph of their own. RuntimeError when nothing
        here requires a gradient, ShapeError for an out_grad of another shape.
        """
        _engine.backward(self, out_grad, create_graph)

    # Arithmetic

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(_ops.ADD, (self, other))  # type: ignore[no-any-return]
        return _with_scalar(_ops.AddScalar, _ops.ADD, self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(_ops.MULTIPLY, (self, other))  # type: ignore[no-any-return]
        return _with_scalar(_ops.MulScalar, _ops.MULTIPLY, self, other)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(_ops.SUBTRACT, (self, other))  # type: ignore[no-any-return]
        if type(other) in (int, float):
            return _ops.add_scalar(self, -other)
        return _binary(_ops.SUBTRACT, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _binary(_ops.SUBTRACT, self, other, swap=True)

    def __truediv__(self, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(_ops.DIVIDE, (self, other))  # type: ignore[no-any-return]
        return _with_scalar(_ops.DivideScalar, _ops.DIVIDE, self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _binary(_ops.DIVIDE, self, other, swap=True)

    def __pow__(self, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return apply(_ops.POWER, (self, other))  # type: ignore[no-any-return]
        return _with_scalar(_ops.PowerScalar, _ops.POWER, self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _binary(_ops.POWER, self, other, swap=True)

    def __neg__(self) -> Tensor:
        return _ops.negate(self)

    def __matmul__(self, other: Any) -> Tensor:
        return _binary(_ops.MATMUL, self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _binary(_ops.MATMUL, self, other, swap=True)

    # Comparisons are elementwise and give bool tensors.

    def __eq__(self, other: Any) -> Any:
        return _binary(_ops.Compare("equal"), self, other)

    def __ne__(self, other: Any) -> Any:
        return _binary(_ops.Compare("not_equal"), self, other)

    def __lt__(self, other: Any) -> Tensor:
        return _binary(_ops.Compare("less"), self, other)

    def __le__(self, other: Any) -> Tensor:
        return _binary(_ops.Compare("less_equal"), self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _binary(_ops.Compare("greater"), self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _binary(_ops.Compare("greater_equal"), self, other)

    # Ops as methods; needle.ops says what each does.

    def __getitem__(self, key: Any) -> Tensor:
        return _ops.getitem(self, key)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def matmul(self, other: Tensor) -> Tensor:
        return _ops.matmul(self, other)

    def sum(self, axes: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.summation(self, axes, keepdims)

    def mean(self, axes: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.mean(self, axes, keepdims)

    def max(self, axes: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.max(self, axes, keepdims)

    def reshape(self, *shape: Any) -> Tensor:
        return _ops.reshape(self, shape)

    def broadcast_to(self, *shape: Any) -> Tensor:
        return _ops.broadcast_to(self, shape)

    def transpose(self, axes: Any = None) -> Tensor:
        return _ops.transpose(self, axes)

    def permute(self, *axes: Any) -> Tensor:
        return _ops.permute(self, axes)

    def exp(self) -> Tensor:
        return _ops.exp(self)

    def log(self) -> Tensor:
        return _ops.log(self)

    def tanh(self) -> Tensor:
        return _ops.tanh(self)

    def sqrt(self) -> Tensor:
        return _ops.sqrt(self)

    def astype(self, dtype: Any) -> Tensor:
        return _ops.cast(self, dtype)

    def to(self, device: Device) -> Tensor:
        """A copy on `device`, cut from the graph (self when already there)."""
        if device is self.device:
            return self
        return Tensor(self.realize_cached_data().to(device), requires_grad=self.requires_grad)


def _rebuild(kind: type[Tensor], data: NDArray, requires_grad: bool) -> Tensor:
    out = _new(kind)
    Tensor.__init__(out, data, requires_grad=requires_grad)
    return out


def _with_scalar(scalar_op: Any, op: Op, x: Tensor, other: Any) -> Any:
    if type(other) is float or type(other) is int:
        return apply(scalar_op(other), (x,))
    if isinstance(other, (*_SCALARS, np.generic)):
        return apply(scalar_op(other.item() if isinstance(other, np.generic) else other), (x,))
    return _binary(op, x, other)


def _binary(op: Op, x: Tensor, other: Any, swap: bool = False) -> Any:
    """x op other, where `other` may be a Python scalar (weak), a NumPy array or an NDArray."""
    if not isinstance(other, Tensor):
        if isinstance(other, np.generic):
            other = other.item()
        if isinstance(other, _SCALARS):
            dtype = scalar_dtype(x.dtype, other)
            other = Tensor(nd.full((), other, dtype, x.device), requires_grad=False)
        elif isinstance(other, (np.ndarray, NDArray)):
            other = Tensor(other, device=x.device, requires_grad=False)
        else:
            return NotImplemented
    return apply(op, (other, x) if swap else (x, other))


def scalar_dtype(dtype: str, scalar: bool | int | float) -> str:
    """The dtype of an array of `dtype` with a Python scalar: changed only by a higher kind."""
    if isinstance(scalar, float) and not is_floating(dtype):
        return "float64"
    if isinstance(scalar, int) and not isinstance(scalar, bool) and dtype == "bool":
        return "int64"
    return dtype


def _as_ndarray(array: Any, device: Device | None, dtype: Any) -> NDArray:
    if isinstance(array, Tensor):
        array = array.realize_cached_data()
    if isinstance(array, NDArray):
        array = array if device is None else array.to(device)
        return array if dtype is None else array.astype(dtype, copy=False)
    if not isinstance(array, (np.ndarray, np.generic)) and hasattr(array, "__dlpack__"):
        return _as_ndarray(nd.from_dlpack(array), device, dtype)
    kept = isinstance(array, (np.ndarray, np.generic))
    values = np.asarray(array)
    if dtype is None:
        if values.dtype.kind in "iu" and np.can_cast(values.dtype, np.int32):
            dtype = "int32"
        elif values.dtype == np.float16 or (values.dtype == np.float64 and not kept):
            dtype = "float32"
        else:
            dtype = values.dtype
    return nd.array(values, dtype=dtype, device=device)


def from_dlpack(x: Any, requires_grad: bool = False) -> Tensor:
    """A Tensor over the memory of any object with `__dlpack__` (copied where it cannot be shared).

    Raises TypeError for a dtype that needle does not store, BufferError for unknown devices.
    """
    return Tensor(nd.from_dlpack(x), requires_grad=requires_grad)


# Operators need the ops, which need Tensor: hence at the end.
from . import engine as _engine  # noqa: E402
from . import ops as _ops  # noqa: E402
