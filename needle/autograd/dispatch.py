"""Apply an op to tensors: compute it, and record it if a gradient may be needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import is_floating
from ..common.state import state
from . import anomaly
from .node import Node, OpRules, spec_of
from .tensor import Tensor, TensorTuple, Value, handle, no_value


def apply(op: OpRules, inputs: tuple[Any, ...]) -> Any:
    """Run `op` on `inputs`, a tuple of Tensors, and record it if a gradient may be needed. While
    tracing, only record it."""
    if state.autocast is not None:
        inputs = state.autocast.cast(op, inputs)
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


def moved(kernel: str, a: Any, given: Any, op_of: Callable[[Any], OpRules]) -> Any:
    """Return a view of a's elements from a kernel that takes plain arguments, without the checks of
    an op. Return None if the kernel refuses the arguments, while tracing, and if `a` is not a
    Tensor with a value. `op_of` makes the op from `given`, to record it for gradients.

    A small call spends most of its time on arguments, so functions that return views try this
    first.
    """
    if state.trace is not None or not isinstance(a, Tensor):
        return None
    data = a._data
    if data is None:
        return None
    device = data.device
    view = getattr(device.kernels, kernel)(data.view, given)
    if view is None:
        return None
    made: Any = _new(NDArray)
    made.device = device
    made.view = view
    node = a._node
    if node is not None and node.requires_grad and state.grad:
        return _record(op_of(given), (a,), made)
    return of_value(made)


def of_value(value: NDArray) -> Tensor:
    """Return a Tensor with this value and without a history."""
    out: Any = _new(Tensor)
    out._node = None
    out._data = value
    return out


def unrecorded(*tensors: Any) -> tuple[NDArray, ...] | None:
    """Return the values of `tensors` if a function may compute on the values alone: no gradient is
    recorded, no trace is made, nothing is cast, and all values are on the same device. Otherwise
    return None."""
    if state.trace is not None or state.autocast is not None:
        return None
    values = []
    for x in tensors:
        if not isinstance(x, Tensor) or x._data is None:
            return None
        node = x._node
        if node is not None and node.requires_grad and state.grad:
            return None
        values.append(x._data)
    return tuple(values) if all(x.device is values[0].device for x in values) else None


def _record(op: OpRules, inputs: tuple[Any, ...], data: Any) -> Any:
    node = _new(Node)
    node.op = op
    node.input_nodes = tuple([x._node or x.node for x in inputs])
    node.saved = tuple([x._data for x in inputs]) if "inputs" in op.reads else None
    node.output = op.keep(data)
    node.spec = spec_of(data)
    node.scope = node.grad = node.attached = None
    node.requires_grad = any([is_floating(s.dtype) for s in node.specs])
    node.made = 0
    node.freed = False
    if op.reads:
        first = data[0] if type(data) is tuple and data else data
        node.made = first.device.kernels.writes()
    if state.recorded is not None:
        state.recorded.add(node, inputs)
    if anomaly.mode.on:
        anomaly.note_line(node)
    return handle(node, data)


def explain(op: OpRules, inputs: tuple[Any, ...]) -> None:
    """Raise a clear error for a failed `compute`, if the inputs explain the failure."""
    for i, x in enumerate(inputs):
        if not isinstance(x, Value):
            raise TypeError(f"{op.name}: input {i} is a {type(x).__name__}, not a Tensor") from None
        if x._data is None and state.trace is None:
            raise no_value(x) from None
    if op.arity is not None and len(inputs) != op.arity:
        plural = "" if op.arity == 1 else "s"
        raise TypeError(f"{op.name}: takes {op.arity} input{plural}, {len(inputs)} given") from None
    try:
        op.infer(*[x.spec for x in inputs])
    except NotImplementedError:
        return
    except Exception as error:
        raise error from None
