"""Trace a function that a loop runs, within another trace or in eager code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..autograd.engine import topological_order
from ..autograd.node import Node
from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor, TensorTuple, Value, handle
from ..backend_ndarray import Device
from ..backend_ndarray.dtypes import is_floating
from ..common import tree
from ..common.state import state
from ..op import Op
from ..op.subgraph import Body, body_of
from ..ops.elementwise import DETACH
from ..ops.tuples import MakeTuple
from ..trace.graph import is_tensor
from ..trace.tracer import Trace, as_tensor


class InnerTrace(Trace):
    """A trace of a function within eager code or another trace. `captured` lists the outer tensors
    that the function reads, in order; each becomes an input."""

    def __init__(self, outer: Trace | None) -> None:
        super().__init__(outer is not None and outer.has_dims)
        self._outer = outer
        self._own: set[Node] = set()
        self._local: dict[Any, Node] = {}  # by outer node, or by the id of a tensor with a value
        self.captured: list[tuple[Node, Tensor]] = []
        if outer is not None:
            self._paths = outer._paths
            self._stack = [outer.where]

    @classmethod
    def inside(cls) -> InnerTrace:
        """Start a trace inside the trace that this thread records, if there is one."""
        outer = state.trace
        assert outer is None or isinstance(outer, Trace)
        return cls(outer)

    def _name(self, tensor: Value) -> str | None:
        return super()._name(tensor) if self._outer is None else self._outer._name(tensor)

    def assign(self, module: Any, name: str, value: Any) -> None:
        if self._outer is not None:
            super().assign(module, name, value)  # refused, because every step would assign

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        state.trace = self
        try:
            yield
        finally:
            state.trace = self._outer

    def own(self, node: Node) -> Node:
        """Mark `node` as belonging to this trace, and return it."""
        self._own.add(node)
        return node

    def apply(self, op: Any, inputs: tuple[Any, ...]) -> Any:
        made = super().apply(op, tuple([self.local(x) for x in inputs]))
        self.own(made._node)
        return made

    def leaf(self, tensor: Value) -> Node:
        """Return the input node that represents a `tensor` with a value."""
        node: Node = self.local(tensor)._node
        return node

    def local(self, x: Any) -> Any:
        """Return this trace's value that represents `x`. An outer value is captured."""
        if not isinstance(x, Value) or (x._data is None and x._node in self._own):
            return x
        key = id(x) if x._data is not None else x._node
        if key not in self._local:
            if isinstance(x, TensorTuple):
                parts = self._outside(x)
                made = super().apply(MakeTuple(), tuple([self.local(part) for part in parts]))
                self.own(made._node)
                return made
            requires = x.requires_grad
            self._local[key] = node = self.own(Node(x.spec, requires, ""))
            self.captured.append((node, x))  # type: ignore[arg-type]
        return handle(self._local[key], None)

    def _outside(self, parts: TensorTuple) -> tuple[Tensor, ...]:
        """Return the parts of a tuple, selected outside this trace."""
        state.trace = self._outer
        try:
            return tuple(parts)
        finally:
            state.trace = self


def traced(
    call: Callable[..., Any], specs: Sequence[Spec], requires: Sequence[bool] | None = None
) -> tuple[Any, Body, list[Tensor]]:
    """Trace a function `call` of Tensors with these `specs`. Return (tree of the results, body,
    captured tensors). The body's inputs are the function's inputs, then the captured tensors.
    `requires` says which inputs take part in gradients that the function computes; by default, all
    inputs of floating dtype do."""
    run = InnerTrace.inside()
    if requires is None:
        requires = [is_floating(spec.dtype) for spec in specs]
    nodes = [run.own(Node(s, r, "")) for s, r in zip(specs, requires, strict=True)]
    with run.running():
        results, leaves = flattened(call(*[handle(node, None) for node in nodes]), "result")
        ends = [run.local(each)._node for _, each in leaves]
    return results, *recorded(run, nodes, ends, {}, DETACH if state.grad else None)


def recorded(
    run: InnerTrace,
    inputs: Sequence[Node],
    ends: Sequence[Node],
    alias: Mapping[Node, Node],
    detach: Op | None = None,
) -> tuple[Body, list[Tensor]]:
    """Return the body that computes `ends` from `inputs` in the trace `run`, and the captured
    tensors, which are the body's other inputs. Reads of a node in `alias` are replaced by reads of
    the node that it maps to. `detach` is as in `body_of`."""
    order = topological_order(ends, until=alias)
    own = [*inputs, *(node for node, _ in run.captured)]
    whole = body_of(own, ends, order, alias, detach)
    needed = whole.needed(whole.outputs)
    kept = [number for number in range(len(own)) if number < len(inputs) or number in needed]
    captured = [run.captured[number - len(inputs)][1] for number in kept[len(inputs) :]]
    return whole.cut(kept, whole.outputs), captured


def flattened(
    value: Any, name: str, device: Device | None = None
) -> tuple[Any, list[tuple[str, Tensor]]]:
    """Return the tree and the named tensors of the nested `value`, called `name`. Numbers become
    tensors without axes on `device` or, by default, on the device of the first tensor. TensorTuples
    and named tuples count as tuples. Dict items are sorted by the text of their keys, so dicts with
    the same keys match."""
    found, leaves = tree.flatten(_plain(value), name, _is_value)
    device = device or next((x.device for _, x in leaves if isinstance(x, Tensor)), None)
    return found, [
        (at, as_tensor(x) if is_tensor(x) else Tensor(x, device=device, requires_grad=False))
        for at, x in leaves
    ]


def rebuilt(like: Any, leaves: Iterator[Any]) -> Any:
    """Return nested values like `like` whose tensors are replaced by `leaves`, in the order of
    `flattened`."""
    if isinstance(like, TensorTuple):
        return tuple([next(leaves) for _ in like.tuple()])
    if _is_value(like):
        return next(leaves)
    if isinstance(like, dict):
        items = {key: rebuilt(like[key], leaves) for key in sorted(like, key=repr)}
        return {key: items[key] for key in like}
    if isinstance(like, (tuple, list)):
        parts = [rebuilt(item, leaves) for item in like]
        if hasattr(like, "_fields"):
            return type(like)(*parts)
        return tuple(parts) if isinstance(like, tuple) else parts
    return like


def _is_value(value: Any) -> bool:
    return is_tensor(value) or isinstance(value, (bool, int, float, np.generic))


def _plain(value: Any) -> Any:
    """Return the nested `value` with tuples in place of TensorTuples."""
    if isinstance(value, TensorTuple):
        return value.tuple()
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(_plain(item) for item in value)
    return value
