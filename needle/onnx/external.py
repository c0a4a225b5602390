"""Read tensors whose elements are in files beside the model (ONNX's external data)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..conversion.values import PACKED
from ..errors import ModelError, UnsupportedError


def is_external(onnx: Any, tensor: Any) -> bool:
    """Return whether the elements of a TensorProto (`tensor`) are in another file. `onnx` is the
    package."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def external_array(onnx: Any, tensor: Any, folder: Path | None) -> np.ndarray:
    """Memory-map the elements of an external `tensor` from its file. The model is in `folder`, and
    `onnx` is the package.

    Raises ModelError if the file is missing, too short or outside the folder, and UnsupportedError
    for strings and float4.
    """
    where = f"tensor {tensor.name!r}: external data"
    if folder is None:
        raise ModelError(f"{where} of a model that was not loaded from a file: load it by its path")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside(where, folder, entries.get("location", ""))
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if dtype.kind in "OSU":
        raise UnsupportedError(f"{where} of strings is not supported")
    if dtype.name == "float4_e2m1fn":
        raise UnsupportedError(f"{where} of dtype {dtype.name} is not supported")
    each = 8 // int(dtype.name[-1]) if dtype.name in PACKED else 1  # elements per byte
    offset, length = (_number(where, entries, key) for key in ("offset", "length"))
    shape = tuple(tensor.dims)
    count = prod(shape)
    if any(n < 0 for n in shape):
        raise ModelError(f"{where}: the shape {shape} has a negative extent")
    size, needed = path.stat().st_size, -(-count // each) * dtype.itemsize
    if "length" in entries and length != needed:
        raise ModelError(f"{where}: {dtype.name}{list(shape)} is {needed} bytes, not {length}")
    if offset + needed > size:
        raise ModelError(f"{where}: {path.name} has {size} bytes, not {offset + needed}")
    if count == 0:
        return np.zeros(shape, dtype)
    if each > 1:
        packed = np.memmap(path, np.uint8, "r", offset, (needed,)).tobytes()
        held = onnx.TensorProto(dims=shape, data_type=tensor.data_type, raw_data=packed)
        return np.asarray(onnx.numpy_helper.to_array(held))
    return np.memmap(path, dtype, "r", offset, shape)


def _inside(where: str, folder: Path, location: str) -> Path:
    """Return the path of the file at `location`. It must be in the folder, even after symbolic
    links are resolved."""
    if not location or "\0" in location:
        raise ModelError(f"{where} has no location")
    home = folder.resolve()
    path = (home / location).resolve()
    if Path(location).is_absolute() or ".." in Path(location).parts or home not in path.parents:
        raise ModelError(f"{where}: the location {location!r} leaves the model's folder")
    if not path.is_file():
        raise ModelError(f"{where}: there is no file {location!r} beside the model")
    return path


def _number(where: str, entries: dict[str, str], key: str) -> int:
    text = entries.get(key, "0")
    if not text.isascii() or not text.isdigit():
        raise ModelError(f"{where}: {key} {text!r} is not a number")
    return int(text)


def tensors_below(onnx: Any, graph: Any) -> Iterator[Any]:
    """Yield every TensorProto in the nodes of a GraphProto (`graph`) and in the initialisers of
    their subgraphs. `onnx` is the package."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from inner.initializer
                yield from tensors_below(onnx, inner)
