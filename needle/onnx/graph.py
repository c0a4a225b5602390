"""An ONNX graph as plain Python objects, free of protobuf: what converters and the model read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..conversion.node import NamedNode

# The element types of TensorProto that needle stores, and the names of the others.
DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64"},
    **{9: "bool", 10: "float16", 11: "float64", 16: "bfloat16"},
}
OTHER_DTYPES = {
    **{8: "string", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128"},
    **{17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz"},
    **{21: "uint4", 22: "int4", 23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2"},
}

Extent = int | str | None  # a size, the name of one (dim_param), or nothing


@dataclasses.dataclass(frozen=True)
class Info:
    """What a graph says of an input or output: dtype and shape are None where it says nothing."""

    name: str
    dtype: str | None
    shape: tuple[Extent, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Node(NamedNode):
    """One application of an operator.

    `inputs` and `outputs` are names of values, "" for those that are left out. `attributes` are
    Python and NumPy values, a Graph for a subgraph, with the defaults of the operator's definition
    filled in. `opset` is the version of the operator's domain that the model asks for.
    """

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int

    def __str__(self) -> str:
        domain = f"{self.domain}." if self.domain else ""
        return f"node {self.name!r} ({domain}{self.op_type})"

    @property
    def is_random(self) -> bool:
        """Whether the operator draws random numbers."""
        return self.op_type in ("RandomNormal", "RandomUniform", "Bernoulli", "Multinomial")

    def wants(self, index: int) -> bool:
        """Whether the output at `index` is asked for."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def has(self, name: str) -> bool:
        """Whether the attribute is given or has a default."""
        return name in self.attributes

    # Attributes with their type. Without a default the attribute must be there.

    def number(self, name: str, default: float | None = None) -> float:
        """A floating attribute."""
        return float(self._typed(name, default, (int, float), "a number"))

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute."""
        return int(self._typed(name, default, int, "an integer"))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """An integer attribute that is 0 or 1."""
        return bool(self._typed(name, default, int, "0 or 1"))

    def text(self, name: str, default: str | None = None) -> str:
        """A string attribute."""
        return str(self._typed(name, default, str, "a string"))

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """An attribute of several integers."""
        return self._several(name, default, int, "integers")

    def numbers(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """An attribute of several floating numbers."""
        return self._several(name, default, (int, float), "numbers")

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """An attribute of several strings."""
        return self._several(name, default, str, "strings")

    def array(self, name: str) -> np.ndarray:
        """A tensor attribute."""
        return self._typed(name, None, np.ndarray, "a tensor")

    def graph(self, name: str) -> Graph:
        """A subgraph."""
        return self._typed(name, None, Graph, "a graph")

    def dtype(self, name: str, default: str | None = None) -> str:
        """An attribute that is the code of an element type, as the name of needle's dtype."""
        if default is not None and name not in self.attributes:
            return default
        code = self.integer(name)
        if code not in DTYPES:
            called = OTHER_DTYPES.get(code, f"of code {code}")
            raise self.unsupported(f"the dtype {called} is not one of needle's")
        return DTYPES[code]

    def _typed(self, name: str, default: Any, kind: Any, what: str) -> Any:
        value = self.attributes.get(name, default)
        if value is None:
            raise self.invalid(f"the attribute {name!r} is missing")
        if not isinstance(value, kind):
            raise self.invalid(f"the attribute {name!r} is {value!r}, not {what}")
        return value

    def _several(self, name: str, default: Any, kind: Any, what: str) -> tuple[Any, ...]:
        value = self._typed(name, default, tuple, what)
        if not all(isinstance(item, kind) for item in value):
            raise self.invalid(f"the attribute {name!r} is {value!r}, not {what}")
        return value


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which each comes after those whose outputs it takes.

    `inputs` are those that a caller gives; `initialisers` are values that the file holds.
    """

    name: str
    inputs: tuple[Info, ...]
    outputs: tuple[Info, ...]
    initialisers: Mapping[str, np.ndarray]
    nodes: tuple[Node, ...]

    def free_names(self) -> frozenset[str]:
        """The names of outer values that the nodes and outputs take."""
        made = {info.name for info in self.inputs} | set(self.initialisers)
        free: set[str] = set()
        for node in self.nodes:
            free |= used_names(node) - made
            made |= set(node.outputs)
        return frozenset(free | ({info.name for info in self.outputs} - made))


def used_names(node: Node) -> set[str]:
    """The names of the values that a node takes, also inside its subgraphs."""
    names = {name for name in node.inputs if name}
    for value in node.attributes.values():
        if isinstance(value, Graph):
            names |= value.free_names()
    return names
