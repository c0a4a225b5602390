"""Read an ONNX file into a `Graph`: loaded, checked, and without protobuf."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ModelError, UnsupportedError
from . import registry
from .graph import DTYPES, OTHER_DTYPES, Extent, Graph, Info, Node
from .loading import array_of, loaded, onnx_package

# Names that exporters write for an unknown size, such as Paddle's -1 and "?". Two axes with such a
# name may differ.
_OPEN = ("", "?", "None", "-1")


def _extent(dim: Any) -> Extent:
    """Return the size of an axis, the name of its size, or None for an unknown size without a
    name."""
    if dim.HasField("dim_value"):
        return None if dim.dim_value == -1 else int(dim.dim_value)
    return None if dim.dim_param in _OPEN else str(dim.dim_param)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as read from a file: its graph, and the opset version of each domain."""

    graph: Graph
    opsets: Mapping[str, int]


def read(source: Any) -> Model:
    """Read the model in `source`, a path or a ModelProto. Raises ModelError if `source` is not a
    valid model, and UnsupportedError for a valid model that needle cannot load."""
    try:
        return _read(source)
    except UnicodeDecodeError as error:  # from any name in the file
        raise ModelError(f"not valid ONNX: a name is not UTF-8: {error}") from None


def _read(source: Any) -> Model:
    onnx = onnx_package()
    proto, arrays = loaded(source)
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    whole = _Reader(onnx, opsets).graph(proto.graph)
    inputs = tuple(info for info in whole.inputs if info.name not in arrays)
    check_operators(whole)
    for info in inputs:
        if info.dtype not in DTYPES.values():
            raise UnsupportedError(
                f"input {info.name!r} has the dtype {info.dtype}, which is not supported"
            )
        if any(isinstance(n, int) and n < 0 for n in info.shape or ()):
            raise ModelError(
                f"input {info.name!r} has the shape {info.shape}; extents must not be negative"
            )
    return Model(dataclasses.replace(whole, inputs=inputs, initialisers=arrays), opsets)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


_WHY = {"ImageDecoder": "it reads the bytes of an image file; decode it before the model"}


def check_operators(graph: Graph) -> None:
    """Raise UnsupportedError if a `graph` has operators without a converter. The message lists each
    with its number of nodes and, if known, the reason."""
    missing: dict[str, list[str]] = {}
    for node in all_nodes(graph):
        if registry.find(node.op_type, node.domain, node.opset) is None:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            missing.setdefault(f"{name} (opset {node.opset})", []).append(node.name)
    if missing:
        listed = [f"{name}: {len(at)} ({at[0]!r})" for name, at in sorted(missing.items())]
        kinds = {name.partition(" (")[0] for name in missing}
        why = "".join(f". {name}: {_WHY[name]}" for name in sorted(kinds & _WHY.keys()))
        raise UnsupportedError(f"operators that needle does not have: {'; '.join(listed)}{why}")


def all_nodes(graph: Graph) -> list[Node]:
    """Return the nodes of a `graph` and of its subgraphs."""
    found = []
    for node in graph.nodes:
        found.append(node)
        for value in node.attributes.values():
            if isinstance(value, Graph):
                found += all_nodes(value)
    return found


class _Reader:
    def __init__(self, onnx: Any, opsets: Mapping[str, int]) -> None:
        self.onnx, self.opsets = onnx, opsets

    def graph(self, proto: Any) -> Graph:
        initialisers = {each.name: self.array(each) for each in proto.initializer}
        return Graph(
            proto.name,
            tuple(self.info(each) for each in proto.input if each.name not in initialisers),
            tuple(self.info(each) for each in proto.output),
            initialisers,
            tuple(self.node(each, i) for i, each in enumerate(proto.node)),
        )

    def array(self, proto: Any) -> np.ndarray:
        return array_of(self.onnx, proto)

    def info(self, proto: Any) -> Info:
        kind = proto.type.tensor_type
        if proto.type.WhichOneof("value") != "tensor_type":
            return Info(proto.name, None, None)
        dtype = self.dtype(kind.elem_type) if kind.elem_type else None
        if not kind.HasField("shape"):
            return Info(proto.name, dtype, None)
        return Info(proto.name, dtype, tuple(map(_extent, kind.shape.dim)))

    def dtype(self, code: int) -> str:
        return {**DTYPES, **OTHER_DTYPES}.get(code, f"of code {code}")

    def node(self, proto: Any, index: int) -> Node:
        domain = _domain(proto.domain)
        opset = self.opsets.get(domain, 1)
        return Node(
            proto.op_type,
            domain,
            proto.name or f"{proto.op_type}_{index}",
            tuple(proto.input),
            tuple(proto.output),
            {**self.defaults(proto, domain, opset), **self.attributes(proto)},
            opset,
        )

    def attributes(self, proto: Any) -> dict[str, Any]:
        return {each.name: self.attribute(each) for each in proto.attribute}

    def attribute(self, proto: Any) -> Any:
        kinds = self.onnx.AttributeProto
        if proto.type == kinds.GRAPH:
            return self.graph(proto.g)
        if proto.type == kinds.TENSOR:
            return self.array(proto.t)
        value = self.onnx.helper.get_attribute_value(proto)
        if proto.type == kinds.STRING:
            return value.decode("utf-8", "replace")
        if proto.type == kinds.STRINGS:
            return tuple(item.decode("utf-8", "replace") for item in value)
        return tuple(value) if isinstance(value, list) or hasattr(value, "append") else value

    def defaults(self, proto: Any, domain: str, opset: int) -> dict[str, Any]:
        defs = self.onnx.defs
        try:
            schema = defs.get_schema(proto.op_type, opset, domain)
        except defs.SchemaError:
            return {}
        return {
            name: self.attribute(each.default_value)
            for name, each in schema.attributes.items()
            if each.default_value.name
        }
