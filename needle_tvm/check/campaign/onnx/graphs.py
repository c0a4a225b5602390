"""Graphs of ONNX operators as data, which the campaign draws beside needle's own programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from needle.backend_ndarray.dtypes import is_floating

INPUT, WEIGHT = "input", "weight"
_IR_VERSION = 10  # of opset 21; an older opset may have it, too


@dataclass(frozen=True)
class Leaf:
    """An input or an initialiser: drawn by `seed` from [low, high), or `numbers` if it has them."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    seed: int = 0
    low: float = -2.0
    high: float = 2.0
    special: bool = False
    numbers: tuple[Any, ...] | None = None

    def array(self) -> np.ndarray[Any, Any]:
        """Return its values."""
        if self.numbers is not None:
            return np.array(self.numbers, self.dtype).reshape(self.shape)
        rng = np.random.default_rng(self.seed)
        if self.dtype == "bool":
            return np.asarray(rng.random(self.shape) < 0.5)
        if not is_floating(self.dtype):
            return np.asarray(rng.integers(int(self.low), int(self.high), self.shape), self.dtype)
        drawn = rng.uniform(self.low, self.high, self.shape)
        if self.special:
            numbers = np.resize([np.nan, np.inf, -np.inf, -0.0, 0.0], self.shape)
            drawn = np.where(rng.random(self.shape) < 0.2, numbers, drawn)
        return np.asarray(drawn, self.dtype)


@dataclass(frozen=True)
class OnnxNode:
    """An operator on named tensors; "" stands for an input or output that is left out. An attribute
    that is a dict is a body: inputs and outputs as (name, dtype, rank), and nodes as (operator,
    inputs, outputs)."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""


@dataclass(frozen=True)
class GraphProgram:
    """A graph: its leaves, its nodes in order, and its outputs as (name, dtype)."""

    opset: int
    leaves: tuple[Leaf, ...]
    nodes: tuple[OnnxNode, ...]
    outputs: tuple[tuple[str, str], ...]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GraphProgram:
        fields = json.loads(text)
        leaves = [{**leaf, "shape": tuple(leaf["shape"])} for leaf in fields["leaves"]]
        nodes = [
            {**n, "inputs": tuple(n["inputs"]), "outputs": tuple(n["outputs"])}
            for n in fields["nodes"]
        ]
        return cls(
            fields["opset"],
            tuple(Leaf(**leaf) for leaf in leaves),
            tuple(OnnxNode(**node) for node in nodes),
            tuple((name, dtype) for name, dtype in fields["outputs"]),
        )

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Return the inputs' values."""
        return [leaf.array() for leaf in self.leaves if leaf.kind == INPUT]

    def model(self) -> Any:
        """Return the ModelProto, whose weights and constants are initialisers."""
        return model_of(self.opset, self.leaves, self.nodes, self.outputs)

    def pruned(self, outputs: Sequence[tuple[str, str]]) -> GraphProgram:
        """Return the graph that makes these outputs, without the parts it does not need."""
        needed, nodes = {name for name, _ in outputs}, []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed |= set(node.inputs)
                nodes.append(node)
        leaves = [leaf for leaf in self.leaves if leaf.name in needed]
        if not any(leaf.kind == INPUT for leaf in leaves):
            leaves += [leaf for leaf in self.leaves if leaf.kind == INPUT][:1]
        return GraphProgram(self.opset, tuple(leaves), tuple(reversed(nodes)), tuple(outputs))


def model_of(
    opset: int,
    leaves: Sequence[Leaf],
    nodes: Sequence[OnnxNode],
    outputs: Sequence[tuple[str, str]],
) -> Any:
    """Return a ModelProto of these parts."""
    from onnx import helper, numpy_helper

    def info(name: str, dtype: str, shape: Any) -> Any:
        return helper.make_tensor_value_info(name, element_type(dtype), shape)

    graph = helper.make_graph(
        [
            helper.make_node(
                n.op,
                n.inputs,
                n.outputs,
                domain=n.domain,
                **{key: _body(v) if isinstance(v, dict) else v for key, v in n.attributes.items()},
            )
            for n in nodes
        ],
        "drawn",
        [info(leaf.name, leaf.dtype, leaf.shape) for leaf in leaves if leaf.kind == INPUT],
        [info(name, dtype, None) for name, dtype in outputs],
        [
            numpy_helper.from_array(leaf.array(), leaf.name)
            for leaf in leaves
            if leaf.kind == WEIGHT
        ],
    )
    domains = {"": opset, **{node.domain: 1 for node in nodes if node.domain}}
    imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def _body(fields: dict[str, Any]) -> Any:
    from onnx import helper

    def info(name: str, dtype: str, rank: int) -> Any:
        return helper.make_tensor_value_info(name, element_type(dtype), [None] * rank)

    return helper.make_graph(
        [helper.make_node(op, ins, outs) for op, ins, outs in fields["nodes"]],
        "body",
        [info(*each) for each in fields["inputs"]],
        [info(*each) for each in fields["outputs"]],
    )


def element_type(dtype: str) -> int:
    """Return ONNX's number of a dtype."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
