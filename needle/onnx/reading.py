"""From an ONNX file to a `Graph`: loaded, checked, and free of protobuf."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError, UnsupportedError
from . import registry
from .graph import Graph, Info, Node


def onnx_package() -> Any:
    """The package `onnx`. ImportError that says how to install it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            f"reading ONNX needs the package onnx ({error}): pip install 'needle-dl[onnx]'"
        ) from error
    return onnx


@dataclasses.dataclass(frozen=True)
class Model:
    """A read model: its graph and the version of each domain's operators."""

    graph: Graph
    opsets: Mapping[str, int]


def read(source: Any) -> Model:
    """The model in a file (a path) or a ModelProto. Raises ModelError for what is no valid model,
    UnsupportedError for a valid one that needle cannot take."""
    onnx = onnx_package()
    proto = source if isinstance(source, onnx.ModelProto) else _load(onnx, source)
    opsets = _opsets(onnx, proto)
    graph = _Reader(onnx, opsets).graph(proto.graph)
    check_operators(graph)
    return Model(graph, opsets)


def _load(onnx: Any, source: Any) -> Any:
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"a {type(source).__name__} is no path and no onnx.ModelProto")
    path = Path(source)
    try:
        return onnx.load(path)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ModelError(f"{path}: {error}") from None


def _opsets(onnx: Any, proto: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        found[domain] = entry.version
    newest = onnx.defs.onnx_opset_version()
    version = found.get("", newest)
    if not 1 <= version <= newest:
        raise UnsupportedError(f"opset {version}: the installed onnx knows 1 to {newest}")
    return found


def check_operators(graph: Graph) -> None:
    """UnsupportedError that lists every operator without a converter, with its nodes."""
    missing: dict[str, list[str]] = {}
    for node in all_nodes(graph):
        if registry.find(node.op_type, node.domain, node.opset) is None:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            missing.setdefault(f"{name} (opset {node.opset})", []).append(node.name)
    if missing:
        listed = [f"{name}: {len(at)} ({at[0]!r})" for name, at in sorted(missing.items())]
        raise UnsupportedError(f"operators that needle does not have: {'; '.join(listed)}")


def all_nodes(graph: Graph) -> list[Node]:
    """The nodes of a graph and of its subgraphs."""
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
        return np.asarray(self.onnx.numpy_helper.to_array(proto))

    def info(self, proto: Any) -> Info:
        kind = proto.type.tensor_type
        if proto.type.WhichOneof("value") != "tensor_type":
            return Info(proto.name, None, None)
        dtype = self.dtype(kind.elem_type) if kind.elem_type else None
        if not kind.HasField("shape"):
            return Info(proto.name, dtype, None)
        extents = {"dim_value": lambda d: d.dim_value, "dim_param": lambda d: d.dim_param or None}
        return Info(
            proto.name,
            dtype,
            tuple(extents.get(d.WhichOneof("value"), lambda _: None)(d) for d in kind.shape.dim),
        )

    def dtype(self, code: int) -> str:
        return np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(code)).name

    def node(self, proto: Any, index: int) -> Node:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
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
