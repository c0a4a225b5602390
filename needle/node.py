"""The graph behind tensors, and how an op is applied.

A `Node` records an op, the nodes of its inputs, and of their values only what the op's gradient
declares to read, so the rest is released during the forward pass. Leaves keep their gradient on the
node, so that every handle to one leaf sees the same `.grad`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import operators
from ._state import state
from .backend_ndarray.dtypes import is_floating
from .errors import TraceError
from .spec import Spec

if TYPE_CHECKING:
    from .autograd import Tensor
    from .op import Op

# autograd.Tensor, set there: what single values are handed out as.
tensor_type: Any = None


class Node:
    """What made a value. Leaves have `op` None; tuple-valued nodes have a tuple as `spec`."""

    __slots__ = (
        "freed",
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
    made: int  # writes in place that the device had seen when the op had run
    freed: bool  # a backward pass has let go what was kept for it

    def __init__(self, spec: Any, requires_grad: bool, scope: str | None = None) -> None:
        self.op = None
        self.input_nodes = ()
        self.saved = self.output = self.grad = None
        self.spec = spec
        self.scope = scope
        self.requires_grad = requires_grad
        self.made = 0
        self.freed = False

    if sys.version_info[:2] == (3, 13):
        # Only this Python frees a chain of objects with thousands of nested C calls, more than a
        # small thread's stack holds. Here the nodes of a graph are let go one after the other.
        def __del__(self) -> None:
            inputs, self.input_nodes = self.input_nodes, ()
            waiting = state.freeing
            if waiting is not None:
                waiting.append(inputs)
                return
            waiting = state.freeing = [inputs]
            del inputs
            while waiting:
                waiting.pop()
            state.freeing = None

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

    def free(self) -> None:
        """Lets go the values that were kept for the gradient."""
        if self.saved is not None or self.output is not None:
            self.saved = self.output = None
            self.freed = True

    def stale(self) -> Any:
        """The first of the kept values whose memory was written in place since, or None.

        Writes are counted with the memory, so those through any view or handle of it show.
        """
        made = self.made
        for data in (*(self.saved or ()), self.output):
            for part in data if type(data) is tuple else (data,):
                if part is not None and part.view.written > made:
                    return part
        return None

    def value(self) -> Any:
        """A Tensor (or TensorTuple) for this node, with its value if that was kept."""
        return handle(self, self.output)

    def __repr__(self) -> str:
        what = "leaf" if self.op is None else repr(self.op)
        return f"Node({what}, {', '.join(map(str, self.specs))})"


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
            node = self._node = Node(spec_of(self._data), False)
        return node

    @property
    def spec(self) -> Any:
        """Spec (a tuple of them for a TensorTuple)."""
        data = self._data
        if data is None:
            assert self._node is not None
            return self._node.spec
        return spec_of(data)

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
            raise no_value(self)
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
        return operators.ops.tuple_get_item(self, index)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def tuple(self) -> tuple[Tensor, ...]:
        """The parts as a Python tuple."""
        return tuple(self)

    def detach(self) -> TensorTuple:
        """The parts, cut from the graph."""
        return operators.ops.make_tuple(*(part.detach() for part in self))

    def __repr__(self) -> str:
        return f"TensorTuple({', '.join(map(str, self.spec))})"


def spec_of(data: Any) -> Any:
    if type(data) is tuple:
        return tuple([Spec(d.shape, d.dtype, d.device) for d in data])
    return Spec(data.shape, data.dtype, data.device)


def handle(node: Node | None, data: Any) -> Any:
    """A Tensor or TensorTuple over `node` and `data` (either may be None, not both)."""
    parts = data if node is None else node.spec
    out: Any = object.__new__(TensorTuple if type(parts) is tuple else tensor_type)
    out._node = node
    out._data = data
    return out


def no_value(x: Value) -> Exception:
    node = x._node
    made = "" if node is None or node.op is None else f" (made by {node.op.name})"
    if node is not None and node.scope is not None:
        where = f" in module {node.scope!r}" if node.scope else ""
        return TraceError(f"{x!r}{made}{where} was made while tracing and has no value")
    return RuntimeError(
        f"the value of {x!r}{made} was released: no gradient declared that it reads it (Op.reads), "
        "or a backward pass without retain_graph has been here"
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
    out: Any = _new(tensor_type if type(data) is not tuple else TensorTuple)
    out._node = None
    out._data = data
    return out


_new = object.__new__


def _record(op: Op, inputs: tuple[Any, ...], data: Any) -> Any:
    node = _new(Node)
    node.op = op
    node.input_nodes = tuple([x._node or x.node for x in inputs])
    node.saved = tuple([x._data for x in inputs]) if "inputs" in op.reads else None
    node.output = op.keep(data)
    node.spec = spec_of(data)
    node.scope = node.grad = None
    node.requires_grad = any([is_floating(s.dtype) for s in node.specs])
    node.made = 0
    node.freed = False
    if op.reads:
        first = data[0] if type(data) is tuple and data else data
        node.made = first.device.kernels.writes()
    return handle(node, data)


def explain(op: Op, inputs: tuple[Any, ...]) -> None:
    """Raises the clear error behind a failed `compute`, if there is one to be found."""
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
