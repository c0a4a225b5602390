"""`OnnxModel` is an ONNX graph as a needle Module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import is_floating
from ..common.state import no_grad
from ..conversion import budget
from ..conversion.values import Value, elements
from ..errors import ModelError
from ..nn.module import Module
from ..nn.parameter import Parameter
from . import registry
from .execute import as_tensors, run, run_node
from .graph import Graph, used_names
from .guards import without_guards
from .ranges import whole_ranges
from .reading import Model, read

_TAKEN = ("training",)  # attribute names that every Module uses itself
_MOST_CONSTANT = 16  # a computed array with at most this many elements stays a constant


def load(source: Any, fixed: Mapping[str, Any] | None = None) -> OnnxModel:
    """Load the ONNX model in `source`, a path or an `onnx.ModelProto`, as a needle Module in eval
    mode.

    `fixed` maps names of inputs to constant values; the module then no longer takes these inputs.
    To trace a model, fix every input whose values determine shapes.

    Raises ImportError without the package `onnx`; FileNotFoundError if there is no such file;
    ModelError for a file that is damaged or breaks ONNX's rules; and UnsupportedError, which lists
    every operator that needle does not have.
    """
    return OnnxModel(read(source), fixed)


class OnnxModel(Module):
    """An ONNX graph as a Module, called with Tensors in the order of the graph's inputs or by name.
    It returns a Tensor, or a tuple of Tensors if the graph has several outputs.

    Floating-point initialisers are Parameters under their ONNX names. So are floating-point arrays
    of more than 16 elements that are computed only from constants. Integers, initialisers without
    axes, and values that an operator must know while tracing are constants.
    """

    def __init__(self, model: Model, fixed: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        graph = model.graph
        known = {name: np.asarray(value) for name, value in (fixed or {}).items()}
        unknown = known.keys() - {info.name for info in graph.inputs}
        if unknown:
            listed = ", ".join(info.name for info in graph.inputs)
            raise ModelError(f"fixed: {sorted(unknown)[0]!r} is not an input; they are {listed}")
        self.graph_inputs = tuple(info for info in graph.inputs if info.name not in known)
        self.result_names = tuple(info.name for info in graph.outputs)
        needed = _needed(graph)
        weights = {}
        for name, array in graph.initialisers.items():
            if name not in needed and array.ndim and is_floating(array.dtype.name):
                weights[name] = array
            else:
                known[name] = array
        folded, known = _folded(graph, known)
        self._graph = whole_ranges(without_guards(folded, known), known)
        for name, array in known.items():
            if not isinstance(array, np.ndarray):  # a sequence
                continue
            if is_floating(array.dtype.name) and array.size > _MOST_CONSTANT and name not in needed:
                weights[name] = array
        self._known = {name: array for name, array in known.items() if name not in weights}
        self._weights = {name: f"{name}_" if name in _TAKEN else name for name in weights}
        for name, attribute in self._weights.items():
            setattr(self, attribute, Parameter(weights[name]))
        self.call_signature = inspect.Signature(
            [_Argument(info.name) for info in self.graph_inputs]
        )
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the graph. Return its output as a Tensor, or a tuple of Tensors if it has several."""
        bound = self.call_signature.bind(*inputs, **named).arguments
        values: dict[str, Value] = {
            name: x if isinstance(x, Tensor) else Tensor(x) for name, x in bound.items()
        }
        values |= {name: getattr(self, attribute) for name, attribute in self._weights.items()}
        with budget.call([values[name].shape for name in bound]):
            outputs = as_tensors(run(self._graph, {**values, **self._known}))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Argument(inspect.Parameter):
    """A signature parameter whose name need not be an identifier."""

    __slots__ = ("_onnx",)

    def __init__(self, name: str) -> None:
        super().__init__("argument", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._onnx = name

    @property
    def name(self) -> str:
        """The name in the ONNX graph."""
        return self._onnx


def _needed(graph: Graph) -> set[str]:
    """Return the names of values that operators of the graph or its subgraphs must know while
    tracing."""
    found = set()
    for node in graph.nodes:
        converter = registry.find(node.op_type, node.domain, node.opset)
        positions = converter.known if converter is not None else frozenset()
        found |= {node.inputs[i] for i in positions if i < len(node.inputs)}
        for value in node.attributes.values():
            if isinstance(value, Graph):
                found |= _needed(value)
    return found


def _folded(graph: Graph, known: dict[str, np.ndarray]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Return the graph without the nodes that depend only on known values, and all known values
    that the remaining nodes use or the graph returns."""
    own, known = sum(value.size for value in known.values()), dict(known)
    last = {name: i for i, node in enumerate(graph.nodes) for name in used_names(node)}
    computed: dict[str, int] = {}  # numbers of elements of the computed values in use
    wanted, kept = {info.name for info in graph.outputs}, []
    for i, node in enumerate(graph.nodes):
        names = used_names(node)
        if not names <= known.keys() or node.is_random:
            kept.append(node)
            wanted |= names
            continue
        with no_grad():
            values = run_node(node, [known.get(name) for name in node.inputs], known)
        for name, value in zip(node.outputs, values, strict=False):
            if name in last or name in wanted:
                known[name], computed[name] = value, elements(value)
        budget.spend(sum(computed.values()) - 4 * own, f"the constants computed up to {node}")
        for name in names & computed.keys():
            if last[name] == i and name not in wanted:
                del known[name], computed[name]
    rest = Graph(graph.name, graph.inputs, graph.outputs, {}, tuple(kept))
    return rest, {name: value for name, value in known.items() if name in wanted}
