"""Run a graph's nodes in order, on Tensors with values or while tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor, TensorTuple
from ..common.state import no_grad, state
from ..conversion.budget import looping
from ..conversion.node import named
from ..conversion.values import Carried, Items, Missing, Value, holds_dims, tensor
from ..errors import ModelError, UnsupportedError
from . import registry
from .graph import Graph, Node, used_names


class Scope:
    """The values of a running graph that its subgraphs can use."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    @property
    def values(self) -> Mapping[str, Value]:
        """The values of the running graph, by name."""
        return self._values

    def run(self, graph: Graph, *inputs: Carried) -> tuple[Any, ...]:
        """Run a subgraph `graph` on `inputs` and return its outputs. The subgraph may use outer
        values by name. Raises ModelError if the number of inputs is wrong."""
        names = [info.name for info in graph.inputs]
        if len(inputs) != len(names):
            raise ModelError(f"graph {graph.name!r} takes {len(names)} inputs, got {len(inputs)}")
        given: dict[str, Any] = dict(zip(names, inputs, strict=True))
        return run(graph, {**self._values, **given})


def run(graph: Graph, values: Mapping[str, Value]) -> tuple[Value, ...]:
    """Run a `graph` and return its outputs. `values` has its inputs and, for a subgraph, the outer
    values, by name.

    Each value is dropped after its last use. Raises ModelError and UnsupportedError, which name the
    node, and TraceError if a result depends on values that are unknown while tracing.
    """
    live: dict[str, Any] = {**values, **graph.initialisers, "": None}
    outputs = {info.name for info in graph.outputs}
    last = {name: i for i, node in enumerate(graph.nodes) for name in used_names(node)}
    for i, node in enumerate(graph.nodes):
        made = run_node(node, [live[name] for name in node.inputs], live)
        for name, value in zip(node.outputs, made, strict=False):
            if name in outputs or name in last:
                live[name] = value
        for name in used_names(node):
            if last[name] == i and name not in outputs:
                del live[name]
    return tuple(live[info.name] for info in graph.outputs)


def run_node(node: Node, inputs: Sequence[Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a `node` on `inputs` and return its outputs. `values` are the values that its subgraphs
    can use. Raises UnsupportedError if there is no converter, and ModelError for a missing input or
    an input of the wrong kind."""
    converter = registry.find(node.op_type, node.domain, node.opset)
    if converter is None:
        raise UnsupportedError(f"{node}: needle has no such operator")
    for i in converter.required:
        if i >= len(inputs) or inputs[i] is None:
            raise ModelError(f"{node}: input {i} is missing")
    _check_kinds(node, converter, inputs)
    present = [value for value in inputs if value is not None]
    with named(node):
        if all(isinstance(value, np.ndarray) for value in present) and not converter.scoped:
            twin = registry.find_twin(node.op_type, node.domain)
            if twin is not None:
                with np.errstate(all="ignore"):
                    return _as_tuple(node, twin(node, *inputs))
            if not any(holds_dims(value) for value in present):
                return _computed(node, converter, inputs)
        if not converter.scoped:
            return _as_tuple(node, converter.function(node, *inputs))
        with looping():
            return _as_tuple(node, converter.function(node, Scope(values), *inputs))


def _check_kinds(node: Node, found: registry.Converter, inputs: Sequence[Any]) -> None:
    """Raise ModelError for a sequence or an optional where an operator takes a tensor, or the
    reverse."""
    for i, value in enumerate(inputs):
        if value is None or found.kind(i) == "Carried":
            continue
        given = {Items: "a sequence", Missing: "an optional without a value"}
        wanted = "a sequence" if found.kind(i) == "Items" else "a tensor"
        has = given.get(type(value), "a tensor")
        if has != wanted:
            raise ModelError(f"{node}: input {i} is {has}; it must be {wanted}")


def _computed(
    node: Node, found: registry.Converter, inputs: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, ...]:
    """Compute the outputs of a node whose inputs are all known."""
    with untraced():
        outputs = _as_tuple(node, found.function(node, *inputs))
        return tuple([x.numpy() if isinstance(x, Tensor) else x for x in outputs])


def applied(function: Callable[..., Tensor], *values: Value) -> Value:
    """Apply a `function` of Tensors to `values`. If all values are known, the result is computed at
    once."""
    if not all(isinstance(value, np.ndarray) for value in values):
        return function(*map(tensor, values))
    with untraced():
        return function(*map(tensor, values)).numpy()


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Let ops compute on known values inside the context although a trace is running."""
    before, state.trace = state.trace, None
    try:
        with no_grad():
            yield
    finally:
        state.trace = before


def _as_tuple(node: Node, made: Any) -> tuple[Any, ...]:
    outputs = made.tuple() if isinstance(made, TensorTuple) else made
    outputs = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    missing = [name for name in node.outputs[len(outputs) :] if name]
    if missing or any(
        value is None and name for name, value in zip(node.outputs, outputs, strict=False)
    ):
        raise node.unsupported(
            f"its converter does not make all of {', '.join(map(repr, node.outputs))}"
        )
    return outputs


def as_tensors(values: Sequence[Value]) -> list[Tensor]:
    """Return the `values` of a graph's outputs as Tensors."""
    return [tensor(value) for value in values]
