"""`export` writes a needle model as an ONNX file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..autograd.node import Node
from ..errors import DimError, UnsupportedError
from ..nn.module import Module
from ..sizes.extents import line_of
from ..trace.graph import Graph, flatten_outputs
from ..trace.tracer import trace
from .emit import Value, Writer, Written, all_ops, find, written
from .emit._dtypes import NUMBER
from .loading import onnx_package

OPSETS = range(18, 25)  # opsets that the rules support
LIMIT = 2**31 - 2**24  # limit for weights in the file, in bytes; a protobuf message holds 2 GiB
_SMALL = 1024  # arrays with fewer bytes always stay in the file
_ALIGNED = 4096  # external data begins on a page, so that a runtime can map it


def export(
    model: Module | Callable[..., Any],
    inputs: Any,
    path: str | os.PathLike[str],
    dims: Mapping[Any, Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = 20,
    external_above: int = LIMIT,
) -> None:
    """Write `model(*inputs, **kwargs)` to `path` as an ONNX model.

    `inputs` is one example tensor or a tuple of example arguments. Only the shapes and dtypes of
    tensors matter; all other arguments are fixed to their values. The model is traced, so it must
    be in eval mode.
    The file's inputs have the names of the arguments, and its weights the names of the state_dict.
    A weight that is transposed or reshaped before it is used, such as a convolution's, is stored in
    that form. `dims` has the form that `needle_tvm.compile` takes: {"x": {0: Dim("n", max=64)}}
    gives an axis a named size. Outputs are named "output", or "output_0", ... by their nesting,
    unless `output_names` names all of them.

    `opset` is 18 to 24. If the weights have more than `external_above` bytes in total, they are
    written to a second file with the same name and ".data" appended; move both files together. Each
    file is written completely or not at all, and replaces an existing file; the data file is
    replaced first.

    Raises ImportError without the package `onnx`; UnsupportedError, which names every op without an
    ONNX form; ValueError for any other opset, for invalid names, or for a model in train mode;
    DimError for a dim that no single axis determines; and the errors of tracing, such as
    TraceError. An error leaves both files as they were, with one exception: if the data file is
    already replaced when replacing the model file fails, the new data file stays.

    >>> ndl.onnx.export(nn.Linear(3, 4).eval(), ndl.zeros(2, 3), "linear.onnx")
    """
    onnx = onnx_package()
    target = _checked_path(path)
    newest = min(OPSETS[-1], onnx.defs.onnx_opset_version())
    if opset not in OPSETS or opset > newest:
        raise ValueError(f"export: opset {opset!r} is not one of {OPSETS[0]} to {newest}")
    if isinstance(model, Module) and model.training:
        raise ValueError("export: the model is in train mode; call model.eval() first")
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    graph = trace(model, *args, dims=dims, **(kwargs or {}))
    writer = _Export(graph, opset, output_names)
    name = type(model).__name__ if isinstance(model, Module) else getattr(model, "__name__", "")
    _write(onnx, writer, name or "model", target, external_above)


def _checked_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"export: path {path!r} is a {type(path).__name__}, not a str or a Path")
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"export: {target}: there is no folder {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"export: {target} is a folder")
    return target


class _Export:
    """A traced graph as ONNX nodes, arrays, and names of inputs and outputs."""

    def __init__(self, graph: Graph, opset: int, output_names: Sequence[str] | None) -> None:
        self.graph, self.opset = graph, opset
        self.writer = w = Writer(opset)
        self.users = _users(graph)
        self._refuse_unknown()
        names = _output_names(graph, output_names)
        for name in (*(leaf.name for leaf in graph.inputs), *names):
            w.unique(name)
        values: dict[Node, Any] = {}
        for leaf in graph.inputs:
            values[leaf.node] = Value(leaf.name, leaf.spec.dtype, leaf.spec.shape)
        self._find_dims(values)
        for leaf in graph.params:
            values[leaf.node] = w.array(leaf.value.numpy(), leaf.name, self._moves_once(leaf.node))
        for leaf in graph.constants:
            values[leaf.node] = w.array(leaf.value.numpy())
        for node in graph.nodes:
            if node.op is not None and node not in values:  # leaves already have values
                values[node] = written(w, node, values, self.users)
        self.outputs = self._name_outputs(names, values)
        self.nodes = _needed(w.nodes, names)
        read = {name for node in self.nodes for name in _reads(node)}
        self.arrays = {name: array for name, array in w.arrays.items() if name in read}

    def _refuse_unknown(self) -> None:
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for op in () if node.op is None else all_ops(node.op):
                if find(op) is None:
                    found.setdefault(op.name, []).append(node)
        if found:
            listed = ", ".join(
                f"{name} ({len(nodes)}, first in {nodes[0].scope or 'the model itself'})"
                for name, nodes in found.items()
            )
            raise UnsupportedError(f"export: these ops have no ONNX form: {listed}")

    def _moves_once(self, node: Node) -> bool:
        """Return whether a rearranged copy of a weight may replace it, because no other op reads
        the original."""
        users = self.users[node]
        return None not in users and len({user.op for user in users if user is not None}) <= 1

    def _find_dims(self, values: dict[Node, Value]) -> None:
        sources = self.writer.sizes.sources
        for leaf in self.graph.inputs:
            for axis, n in enumerate(leaf.spec.shape):
                line = line_of(n)
                if line is not None:
                    dim, factor, offset = line
                    if dim not in sources or (factor, offset) == (1, 0):
                        sources[dim] = values[leaf.node], axis, factor, offset
        unknown = [dim.name for dim in self.graph.dims if dim not in sources]
        if unknown:
            raise DimError(f"export: no single axis of an input determines {', '.join(unknown)}")

    def _name_outputs(self, names: list[str], values: dict[Node, Any]) -> list[tuple[str, Any]]:
        """Give the outputs their `names` and return the (name, Spec) of each. A computed value is
        renamed; an input, a weight or a value that is already an output is copied."""
        w = self.writer
        made = {name: node for node in w.nodes for name in node.outputs}
        renamed: dict[str, str] = {}
        for name, node in zip(names, self.graph.outputs, strict=True):
            value = values[node]
            w.begin("", name)
            if value.array is None and value.name in made and value.name not in renamed:
                renamed[value.name] = name
            else:
                source = renamed.get(value.name, w.read(value))
                w.nodes.append(Written("Identity", w.unique(f"/{name}"), [source], [name], {}))
        _rename(w.nodes, renamed)
        return [(n, node.spec) for n, node in zip(names, self.graph.outputs, strict=True)]


def _users(graph: Graph) -> dict[Node, list[Node | None]]:
    users: dict[Node, list[Node | None]] = {node: [] for node in graph.nodes}
    for node in graph.nodes:
        for source in node.input_nodes:
            users[source].append(node)
    for node in graph.outputs:
        users[node].append(None)
    for leaf in graph.inputs:
        users.setdefault(leaf.node, [])
    return users


def _output_names(graph: Graph, given: Sequence[str] | None) -> list[str]:
    _, named = flatten_outputs(graph.unflatten_outputs([np.zeros(())] * len(graph.outputs)))
    names = [name for name, _ in named]
    if given is not None:
        if isinstance(given, str) or len(given) != len(names):
            raise ValueError(f"export: output_names {given!r} are not {len(names)} names")
        names = list(given)
    used = {leaf.name for leaf in (*graph.inputs, *graph.params)}
    for i, name in enumerate(names):
        if given is None:
            while name in used:
                name += "_"
            names[i] = name
        elif not isinstance(name, str) or not name or name in used:
            raise ValueError(
                f"export: output name {name!r} is empty, or names another output, input or weight"
            )
        used.add(name)
    return names


# Nodes


def _reads(node: Written) -> list[str]:
    """Return the names that a node and its subgraphs read."""
    inner = [name for body in node.subgraphs for each in body.nodes for name in _reads(each)]
    return [*filter(None, node.inputs), *inner]


def _needed(nodes: list[Written], outputs: Sequence[str]) -> list[Written]:
    """Return the nodes that the outputs depend on, in order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            for body in node.subgraphs:
                body.nodes = _needed(body.nodes, [value.name for value in body.outputs])
            kept.append(node)
            wanted.update(_reads(node))
    return kept[::-1]


def _rename(nodes: list[Written], names: Mapping[str, str]) -> None:
    for node in nodes:
        node.inputs = [names.get(name, name) for name in node.inputs]
        node.outputs = [names.get(name, name) for name in node.outputs]
        for body in node.subgraphs:
            _rename(body.nodes, names)


# The file


def _write(onnx: Any, made: _Export, name: str, target: Path, external_above: int) -> None:
    """Write and check the model in a temporary folder beside `target`, then move it to `target`."""
    total = sum(array.nbytes for array in made.arrays.values())
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        data = target.name + ".data" if total > external_above else ""
        tensors = _initializers(onnx, made.arrays, folder, data)
        proto = _model(onnx, made, name, tensors)
        part = folder / target.name
        with open(part, "wb") as file:
            file.write(proto.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        onnx.checker.check_model(str(part), full_check=True)
        for file_name in filter(None, (data, target.name)):
            os.replace(folder / file_name, target.parent / file_name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _initializers(onnx: Any, arrays: Mapping[str, Any], folder: Path, data: str) -> list[Any]:
    tensors = []
    file = open(folder / data, "wb") if data else None
    try:
        for name, array in arrays.items():
            tensor = onnx.TensorProto(
                name=name, dims=array.shape, data_type=NUMBER[array.dtype.name]
            )
            raw = np.ascontiguousarray(array)
            if file is None or array.nbytes < _SMALL:
                tensor.raw_data = raw.tobytes()
            else:
                file.write(b"\0" * (-file.tell() % _ALIGNED))
                entries = {"location": data, "offset": file.tell(), "length": array.nbytes}
                file.write(raw.reshape(-1).view(np.uint8).data)
                tensor.data_location = onnx.TensorProto.EXTERNAL
                for key, value in entries.items():
                    tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
        if file is not None:
            file.flush()
            os.fsync(file.fileno())
    finally:
        if file is not None:
            file.close()
    return tensors


def _model(onnx: Any, made: _Export, name: str, tensors: list[Any]) -> Any:
    graph = onnx.GraphProto(
        name=name,
        node=[_node(onnx, node) for node in made.nodes],
        input=[
            _info(onnx, leaf.name, leaf.spec.dtype, leaf.spec.shape) for leaf in made.graph.inputs
        ],
        output=[_info(onnx, each, spec.dtype, spec.shape) for each, spec in made.outputs],
        initializer=tensors,
    )
    opsets = [onnx.helper.make_opsetid("", made.opset)]
    model = onnx.helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=onnx.helper.find_min_ir_version_for(opsets),
        producer_name="needle",
        producer_version=_version(),
    )
    for dim in made.graph.dims:
        model.metadata_props.add(key=f"needle.dim.{dim.name}", value=dim.described())
    return model


def _version() -> str:
    try:
        return metadata.version("needle-dl")
    except metadata.PackageNotFoundError:
        return ""


def _info(onnx: Any, name: str, dtype: str, shape: Any) -> Any:
    """Return the type of an input or output. A size that depends on dims is named by its
    formula."""
    known = None if shape is None else [n if isinstance(n, int) else str(n) for n in shape]
    return onnx.helper.make_tensor_value_info(name, NUMBER[dtype], known)


def _node(onnx: Any, node: Written) -> Any:
    attributes = {
        key: _body(onnx, value) if isinstance(value, Writer) else value
        for key, value in node.attributes.items()
        if value != []
    }
    return onnx.helper.make_node(
        node.op_type, node.inputs, node.outputs, name=node.name, **attributes
    )


def _body(onnx: Any, body: Writer) -> Any:
    infos = (
        [_info(onnx, value.name, value.dtype, value.shape) for value in values]
        for values in (body.inputs, body.outputs)
    )
    inputs, outputs = infos
    nodes = [_node(onnx, node) for node in body.nodes]
    return onnx.helper.make_graph(nodes, "step", inputs, outputs)
