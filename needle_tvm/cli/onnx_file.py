"""The graph of an ONNX file: its operators, before anything is compiled."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from needle_runtime.artifact.arrays import describe
from needle_runtime.cli.drawing.boxes import OTHER, Box, Drawn, Weight, kind_of
from needle_runtime.errors import InstallError, UsageError

# A value's sources: positions of boxes, and names of the arrays that it is computed from.
Sources = tuple[frozenset[int], frozenset[str]]
_ELEMENTWISE = ("Max", "Min", "Sum", "Mean")  # these take several arrays, unlike ReduceMax
_SMALL = 2  # arrays with fewer elements (sizes, axes, scalars) are not drawn: they hide the weights


def read_onnx(path: Path) -> tuple[Any, dict[str, Any]]:
    """Return the checked ModelProto of a file, with functions inlined, and its arrays by name:
    initialisers and the constants of nodes.

    Raises UsageError for a file that is not valid ONNX, InstallError without the package `onnx`.
    """
    from needle.errors import ModelError
    from needle.onnx.loading import array_of, loaded, onnx_package

    try:
        proto, arrays = loaded(path)
        for node in _all_nodes(proto):
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.HasField("t"):
                    arrays[node.output[0]] = array_of(onnx_package(), attribute.t)
        return proto, arrays
    except ImportError as error:
        raise InstallError(str(error)) from error
    except ModelError as error:
        raise UsageError(str(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: a name in it is not UTF-8: {error}") from None


def facts(proto: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs, outputs, operators and sizes of a read file as JSON values."""
    from needle.onnx import registry

    opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    counts = Counter(
        ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        for node in _all_nodes(proto)
    )
    names = {key: ".".join(filter(None, key)) for key in sorted(counts)}
    weights = [array for array in arrays.values() if array.dtype.kind == "f"]
    return {
        "inputs": [_signature(info) for info in proto.graph.input if info.name not in arrays],
        "outputs": [_signature(info) for info in proto.graph.output],
        "opsets": opsets,
        "weights": sum(array.size for array in weights),
        "bytes": sum(array.nbytes for array in weights),
        "operators": {name: counts[key] for key, name in names.items()},
        "unsupported": [
            name
            for key, name in names.items()
            if registry.find(key[1], key[0], opsets.get(key[0] or "ai.onnx", 1)) is None
        ],
    }


def _all_nodes(proto: Any) -> list[Any]:
    """Return the nodes of the graph and of all subgraphs."""
    found, stack = [], [*proto.graph.node]
    while stack:
        node = stack.pop()
        found.append(node)
        stack += [inner for a in node.attribute if a.HasField("g") for inner in a.g.node]
    return found


def _signature(info: Any) -> str:
    return f"{info.name}: {_described(info) or 'of no stated dtype'}"


def of_onnx(path: Path, proto: Any, arrays: dict[str, Any]) -> Drawn:
    """Return the graph of a read file: its operators, with the weights that each one uses."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(proto)
    except onnx.shape_inference.InferenceError:
        inferred = proto  # the picture then lacks the shapes
    known = {dim.dim_param for info in proto.graph.input for dim in _dims(info)}
    types = {
        info.name: _described(info, known)
        for info in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    }
    weights = {
        name: Weight(name, describe(array.shape, array.dtype.name), array.nbytes)
        for name, array in arrays.items()
    }
    drawn = Drawn(path.name)
    values: dict[str, Sources] = {name: (frozenset(), frozenset({name})) for name in arrays}
    for info in proto.graph.input:
        if info.name not in arrays:
            box = Box("input", (info.name, types[info.name]), "input")
            values[info.name] = (frozenset({drawn.add(box)}), frozenset())
    for node in proto.graph.node:
        if node.op_type == "Constant":
            continue
        taken = [values[name] for name in _names(node) if name in values]
        boxes = frozenset().union(*(found for found, _ in taken))
        held = frozenset().union(*(names for _, names in taken))
        if not boxes:
            made: Sources = (boxes, held)
        else:
            inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            lines = (node.op_type, *(f"{len(graph.node)} nodes in {graph.name}" for graph in inner))
            shown = sorted(name for name in held if arrays[name].size >= _SMALL)
            box = Box(
                "kernel",
                lines,
                OTHER if node.op_type in _ELEMENTWISE else kind_of(node.op_type),
                tuple(sorted(boxes)),
                ", ".join(filter(None, (types.get(name, "") for name in node.output))),
                tuple(weights[name] for name in shown if arrays[name].dtype.kind == "f"),
                f"{node.op_type} {node.name}",
            )
            made = (frozenset({drawn.add(box)}), frozenset())
        values |= {name: made for name in node.output if name}
    for info in proto.graph.output:
        boxes, held = values[info.name]
        lines = (info.name, types[info.name])
        kept = tuple(weights[name] for name in sorted(held))
        drawn.add(Box("output", lines, "output", tuple(sorted(boxes)), weights=kept))
    return drawn


def _names(node: Any) -> list[str]:
    """Return the inputs of a node and of its subgraphs' nodes, including names defined inside."""
    found, stack = list(node.input), [a.g for a in node.attribute if a.HasField("g")]
    while stack:
        graph = stack.pop()
        for inner in graph.node:
            found += inner.input
            stack += [a.g for a in inner.attribute if a.HasField("g")]
        found += [info.name for info in graph.output]
    return found


def _dims(info: Any) -> Any:
    return info.type.tensor_type.shape.dim


def _described(info: Any, known: set[str] | None = None) -> str:
    """Return the dtype and shape that a file states, with ? for a size without a name, or with a
    name that is not in `known`."""
    from needle.onnx.graph import DTYPES, OTHER_DTYPES

    kind = info.type.tensor_type
    if not kind.elem_type:
        return ""
    dtype = {**DTYPES, **OTHER_DTYPES}.get(kind.elem_type, f"dtype {kind.elem_type}")
    if not kind.HasField("shape"):
        return dtype
    extents = (
        str(dim.dim_value)
        if dim.HasField("dim_value")
        else (dim.dim_param if known is None or dim.dim_param in known else "") or "?"
        for dim in _dims(info)
    )
    return f"{dtype}({', '.join(extents)})"
