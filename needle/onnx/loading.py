"""Read a file or a ModelProto into a checked proto without functions, and separate the weights."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import open_regular
from ..errors import ModelError, UnsupportedError
from . import registry
from .external import external_array, is_external, tensors_below

_MOST_NODES = 1_000_000  # the largest number of nodes after functions are inlined
_UNCHECKED = "needle.unchecked"  # a domain that the checker does not know
_LARGEST_FILE = 2**31 - 1  # the largest size of a protobuf message, in bytes


def onnx_package() -> Any:
    """Import the package `onnx`. Raises ImportError, which says how to install it."""
    try:
        import onnx
        import onnx.checker
        import onnx.inliner
    except ImportError as error:
        raise ImportError(
            f"ONNX needs the package onnx ({error}): pip install 'needle-dl[onnx]'"
        ) from error
    return onnx


def loaded(source: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a ModelProto without functions and initialisers, and the initialisers by name.

    `source` is a path or a ModelProto. In the result, the initialisers are additional inputs.
    Raises ModelError, UnsupportedError and, for another `source`, TypeError.
    """
    onnx = onnx_package()
    folder: Path | None = None
    if isinstance(source, onnx.ModelProto):
        proto = source
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        proto, folder = _parsed(onnx, path), path.parent
    else:
        raise TypeError(f"a {type(source).__name__} is neither a path nor an onnx.ModelProto")
    if not proto.graph.node and not proto.graph.output:
        raise ModelError("the file holds no ONNX graph")
    _check_texts(proto)
    _check_opset(onnx, proto)
    arrays = _initialisers(onnx, proto, folder)
    work = _without(proto, "initializer", arrays)
    _name_foreign(work)
    for tensor in tensors_below(onnx, work.graph):
        if is_external(onnx, tensor):
            _bring_in(onnx, tensor, folder)
    return _expanded(onnx, _checked(onnx, work)), arrays


_FOREIGN = ("SimplifiedLayerNormalization",)  # an operator of ONNX Runtime, under ONNX's domain


def _name_foreign(work: Any) -> None:
    """Move operators that ONNX Runtime writes under ONNX's domain to ONNX Runtime's own domain."""
    found = [n for n in _nodes(work) if n.op_type in _FOREIGN and n.domain in ("", "ai.onnx")]
    for node in found:
        node.domain = "com.microsoft"
    if found and all(entry.domain != "com.microsoft" for entry in work.opset_import):
        work.opset_import.add(domain="com.microsoft", version=1)


def _parsed(onnx: Any, path: Path) -> Any:
    from google.protobuf.message import DecodeError

    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST_FILE:
            raise ModelError(f"{path.name}: a model above 2 GB needs its weights in other files")
        data = file.read()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{path.name} is not an ONNX file: {error}") from None
    return proto


def _check_texts(message: Any) -> None:
    """Raise ModelError for a string that is not UTF-8. protobuf returns such a string as bytes."""
    for field, value in message.ListFields():
        values = value if _is_repeated(value) else [value]
        if field.type == field.TYPE_MESSAGE:
            for each in values:
                _check_texts(each)
        elif field.type == field.TYPE_STRING:
            for text in values:
                if isinstance(text, bytes):
                    raise ModelError(f"{field.full_name} is {text!r}, which is not UTF-8")


def _check_opset(onnx: Any, proto: Any) -> None:
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= newest:
            raise UnsupportedError(
                f"opset {entry.version}: the installed onnx {onnx.__version__} knows 1 to {newest}"
            )


# Weights


def _initialisers(onnx: Any, proto: Any, folder: Path | None) -> dict[str, np.ndarray]:
    if len(proto.graph.sparse_initializer):
        name = proto.graph.sparse_initializer[0].values.name
        raise UnsupportedError(f"tensor {name!r} is sparse, which is not supported")
    arrays: dict[str, np.ndarray] = {}
    for tensor in proto.graph.initializer:
        if not tensor.name or tensor.name in arrays:
            raise ModelError(f"initialiser {tensor.name!r} occurs twice or has no name")
        if is_external(onnx, tensor):
            arrays[tensor.name] = external_array(onnx, tensor, folder)
        else:
            arrays[tensor.name] = array_of(onnx, tensor)
    return arrays


def array_of(onnx: Any, tensor: Any) -> np.ndarray:
    """Return the elements of a TensorProto (`tensor`). `onnx` is the package. Raises ModelError if
    their number does not fit the shape, and UnsupportedError for strings and segments."""
    where = f"tensor {tensor.name!r}"
    if tensor.data_type == onnx.TensorProto.STRING:
        raise UnsupportedError(f"{where}: tensors of strings are not supported")
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{where}: segments of tensors are not supported")
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise ModelError(f"{where}, {list(tensor.dims)}, is damaged: {error}") from None


def _bring_in(onnx: Any, tensor: Any, folder: Path | None) -> None:
    """Put a tensor's external elements into the proto."""
    data = external_array(onnx, tensor, folder).tobytes()
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.DEFAULT
    tensor.raw_data = data


def _without(proto: Any, field: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return a copy of the proto in which initialisers are inputs."""
    work = type(proto)()
    for descriptor, value in proto.ListFields():
        if descriptor.name == "graph":
            continue
        if _is_repeated(value):
            getattr(work, descriptor.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(work, descriptor.name).CopyFrom(value)
        else:
            setattr(work, descriptor.name, value)
    for name in ("node", "input", "output", "value_info"):
        getattr(work.graph, name).extend(getattr(proto.graph, name))
    work.graph.name = proto.graph.name or "graph"
    declared = {each.name for each in proto.graph.input}
    for tensor in getattr(proto.graph, field):
        if tensor.name not in declared:
            info = work.graph.input.add(name=tensor.name)
            info.type.tensor_type.elem_type = tensor.data_type
            for n in tensor.dims:
                info.type.tensor_type.shape.dim.add(dim_value=n)
    return work


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "extend")


# Checks


def _checked(onnx: Any, work: Any) -> Any:
    """Run onnx's own checks of names, order, types and attributes, and return the proto."""
    from google.protobuf.message import EncodeError

    infos = [*work.graph.input, *work.graph.output]
    types = [info.type.tensor_type for info in infos if info.type.HasField("tensor_type")]
    shapeless = [kind for kind in types if not kind.HasField("shape")]
    for kind in shapeless:  # the checker requires a shape, which exporters omit for outputs
        kind.shape.SetInParent()
    deprecated = [node for node in _nodes(work) if _is_deprecated(onnx, node, work)]
    for node in deprecated:  # the checker rejects them, but ignores unknown domains
        node.domain = _UNCHECKED
    if deprecated:
        for each in (work, *work.functions):
            each.opset_import.add(domain=_UNCHECKED, version=1)
    try:
        onnx.checker.check_model(work, skip_opset_compatibility_check=True)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"not valid ONNX: {_first_line(error)}") from None
    except (EncodeError, UnicodeError, ValueError) as error:
        raise ModelError(f"not valid ONNX: {_first_line(error)}") from None
    for node in deprecated:
        node.domain = ""
    for kind in shapeless:
        kind.ClearField("shape")
    taken_off = {name for node in work.graph.node if _is_zip_map(node) for name in node.output}
    for info in infos:
        if info.name not in taken_off:
            _check_type(onnx, info)
    return work


def _is_zip_map(node: Any) -> bool:
    """Return whether a node turns a classifier's scores into maps. needle's converter returns an
    array."""
    return node.op_type == "ZipMap" and node.domain == "ai.onnx.ml"


def _is_deprecated(onnx: Any, node: Any, work: Any) -> bool:
    """Return whether ONNX has deprecated a node's operator, but needle has a converter for it."""
    versions = [e.version for e in work.opset_import if _domain(e.domain) == ""]
    if _domain(node.domain) or not versions:
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, versions[0])
    except onnx.defs.SchemaError:
        return False
    return schema.deprecated and registry.find(node.op_type, "", versions[0]) is not None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())[:500]


def _check_type(onnx: Any, info: Any) -> None:
    kind = info.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        raise UnsupportedError(f"{info.name!r} is a {kind.removesuffix('_type')}, not a tensor")


# Functions


def _expanded(onnx: Any, work: Any) -> Any:
    """Inline functions: the model's own, and those that ONNX defines for operators without a
    converter."""
    _check_functions(work)
    opsets = {_domain(entry.domain): entry.version for entry in work.opset_import}
    own = {(f.domain, f.name) for f in work.functions}
    used = {(node.domain, node.op_type) for node in _nodes(work)}
    missing = {
        key
        for key in used - own
        if registry.find(key[1], _domain(key[0]), opsets.get(_domain(key[0]), 1)) is None
        and _has_body(onnx, key, opsets)
    }
    if not own and not missing:
        return work
    others = [
        entry.version
        for function in work.functions
        for entry in function.opset_import
        if _domain(entry.domain) == "" and entry.version != opsets.get("", entry.version)
    ]
    if others:
        work, own = _of_one_opset(onnx, work, others[0], opsets[""]), set()
    for node in _nodes(work):
        if (node.domain, node.op_type) in missing:
            _add_defaults(onnx, node, opsets)
    try:
        return onnx.inliner.inline_selected_functions(
            work, [*own, *missing], inline_schema_functions=True
        )
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
        if not missing:
            raise ModelError(f"its functions cannot be inlined: {_first_line(error)}") from None
    # Some bodies depend on types that onnx cannot infer. A later check rejects their operators.
    return onnx.inliner.inline_local_functions(work) if own else work


def _of_one_opset(onnx: Any, work: Any, other: int, own: int) -> Any:
    """Convert functions of another opset to the model's, and inline them."""
    try:
        typed = onnx.shape_inference.infer_shapes(work)
        return onnx.inliner.inline_local_functions(typed, convert_version=True)
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        raise UnsupportedError(
            f"a function uses opset {other} and the model uses {own}, which the "
            f"installed onnx {onnx.__version__} cannot convert to one opset"
        ) from None


def _add_defaults(onnx: Any, node: Any, opsets: dict[str, int]) -> None:
    """Add default attributes to a node, because the body of its operator refers to them."""
    domain = _domain(node.domain)
    schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    given = {attribute.name for attribute in node.attribute}
    node.attribute.extend(
        each.default_value
        for name, each in schema.attributes.items()
        if name not in given and each.default_value.name
    )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _has_body(onnx: Any, key: tuple[str, str], opsets: dict[str, int]) -> bool:
    domain, name = _domain(key[0]), key[1]
    try:
        schema = onnx.defs.get_schema(name, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return False
    return schema.has_function or schema.has_context_dependent_function


def _nodes(work: Any) -> list[Any]:
    """Return all nodes of a proto, including the nodes of subgraphs and functions."""
    found, stack = [], [*work.graph.node, *(node for f in work.functions for node in f.node)]
    while stack:
        node = stack.pop()
        found.append(node)
        stack += _inner(node)
    return found


def _inner(node: Any) -> list[Any]:
    graphs = [a.g for a in node.attribute if a.HasField("g")]
    graphs += [graph for a in node.attribute for graph in a.graphs]
    return [inner for graph in graphs for inner in graph.node]


def _check_functions(work: Any) -> None:
    """Raise ModelError for functions that call themselves or expand to too many nodes."""
    bodies = {(f.domain, f.name): f for f in work.functions}
    sizes: dict[Any, int] = {}
    open_: set[Any] = set()

    def count(nodes: Any) -> int:
        calls, stack = Counter[Any](), [*nodes]
        while stack:
            node = stack.pop()
            calls[node.domain, node.op_type] += 1
            stack += _inner(node)
        return sum(times * (size(key) if key in bodies else 1) for key, times in calls.items())

    def size(key: Any) -> int:
        if key in open_:
            raise ModelError(f"function {key[1]!r} of domain {key[0]!r} calls itself")
        if key not in sizes:
            open_.add(key)
            sizes[key] = count(bodies[key].node)
            open_.discard(key)
        return sizes[key]

    total = count(work.graph.node)
    if total > _MOST_NODES:
        raise ModelError(f"its functions expand to {total} nodes; the limit is {_MOST_NODES}")
