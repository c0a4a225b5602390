"""An ONNX graph as plain Python objects without protobuf; converters and the model read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..conversion.node import NamedNode

# TensorProto's codes of the element types that needle stores, and of the other types.
DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64"},
    **{9: "bool", 10: "float16", 11: "float64", 16: "bfloat16"},
}
OTHER_DTYPES = {
    **{8: "string", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128"},
    **{17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz"},
    **{21: "uint4", 22: "int4", 23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2"},
}

Extent = int | str | None  # a size, a size's name (dim_param), or unknown


@dataclasses.dataclass(frozen=True)
class Info:
    """The name, dtype and shape of a graph's input or output. Dtype and shape are None if the graph
    does not declare them."""

    name: str
    dtype: str | None
    shape: tuple[Extent, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Node(NamedNode):
    """One application of an operator.

    `inputs` and `outputs` are names of values, "" for omitted ones. `attributes` are Python and
    NumPy values, and a Graph for a subgraph; the defaults of the operator's definition are filled
    in. `opset` is the version of the operator's domain that the model imports.
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
        """Return whether the model uses the output at `index`."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def has(self, name: str) -> bool:
        """Return whether the attribute `name` is given or has a default."""
        return name in self.attributes

    # Attributes by type. An attribute without a default must be present.

    def number(self, name: str, default: float | None = None) -> float:
        """Return the float attribute `name`, or its `default`."""
        return float(self._typed(name, default, (int, float), "a number"))

    def integer(self, name: str, default: int | None = None) -> int:
        """Return the integer attribute `name`, or its `default`."""
        return int(self._typed(name, default, int, "an integer"))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return the integer attribute `name`, which is 0 or 1, as a bool, or its `default`."""
        return bool(self._typed(name, default, int, "0 or 1"))

    def text(self, name: str, default: str | None = None) -> str:
        """Return the string attribute `name`, or its `default`."""
        return str(self._typed(name, default, str, "a string"))

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return the attribute `name`, a list of integers, or its `default`."""
        return self._several(name, default, int, "integers")

    def numbers(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """Return the attribute `name`, a list of floats, or its `default`."""
        return self._several(name, default, (int, float), "numbers")

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return the attribute `name`, a list of strings, or its `default`."""
        return self._several(name, default, str, "strings")

    def array(self, name: str) -> np.ndarray:
        """Return the tensor attribute `name`."""
        return self._typed(name, None, np.ndarray, "a tensor")

    def graph(self, name: str) -> Graph:
        """Return the subgraph attribute `name`."""
        return self._typed(name, None, Graph, "a graph")

    def dtype(self, name: str, default: str | None = None) -> str:
        """Return the needle dtype whose ONNX code is the attribute `name`, or its `default`. Raises
        UnsupportedError for a dtype that needle does not have."""
        if default is not None and name not in self.attributes:
            return default
        code = self.integer(name)
        if code not in DTYPES:
            called = OTHER_DTYPES.get(code, f"of code {code}")
            raise self.unsupported(f"the dtype {called}")
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
    """A list of nodes in which each node comes after the nodes whose outputs it uses.

    `inputs` are the values that a caller gives; `initialisers` are values stored in the file.
    """

    name: str
    inputs: tuple[Info, ...]
    outputs: tuple[Info, ...]
    initialisers: Mapping[str, np.ndarray]
    nodes: tuple[Node, ...]

    def free_names(self) -> frozenset[str]:
        """Return the names of outer values that the nodes and outputs use."""
        made = {info.name for info in self.inputs} | set(self.initialisers)
        free: set[str] = set()
        for node in self.nodes:
            free |= used_names(node) - made
            made |= set(node.outputs)
        return frozenset(free | ({info.name for info in self.outputs} - made))


def used_names(node: Node) -> set[str]:
    """Return the names of the values that a `node` and its subgraphs use."""
    names = {name for name in node.inputs if name}
    for value in node.attributes.values():
        if isinstance(value, Graph):
            names |= value.free_names()
    return names
