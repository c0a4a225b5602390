"""Tensors in safetensors files: 8 bytes with the length of a JSON header, the header, raw values.

Format: https://github.com/huggingface/safetensors#format. Reading a file executes nothing in it.
"""

from __future__ import annotations

import json
import os
import reprlib
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .autograd.tensor import Tensor
from .backend_ndarray import DeviceLike
from .backend_ndarray.masked import refuse_masked
from .common.files import open_regular
from .nn.module import Module

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "bfloat16",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "U16": "<u2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_NAMES = {np.dtype(code).name: name for name, code in _DTYPES.items()}
_MAX_HEADER = 100_000_000  # the format's own limit
_MAX_EXTENT, _MAX_AXES = 2**63 - 1, 64  # NumPy's limits
_shown = reprlib.Repr()  # quotes a file's contents in messages, truncated
_shown.maxstring = _shown.maxother = 100


def save(
    path: str | os.PathLike[str] | Module | Mapping[str, Any],
    values: Module | Mapping[str, Any] | str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the `values`, a module's state or a dict of Tensors or arrays, to the file `path`.
    PyTorch's order of the arguments, `save(values, path)`, works too.

    `metadata` is a dict of strings that the file also stores. The file appears whole or not at all:
    it is written beside `path`, synced, and renamed. Raises OSError if that fails, TypeError for a
    value that is not a tensor and for a masked array, and TypeError or ValueError for an invalid
    path.

    >>> model = nn.Linear(3, 4)
    >>> ndl.save(model, "model.safetensors")
    >>> keys = model.load_state_dict(ndl.load("model.safetensors"))
    """
    path, values = _path_first(path, values)
    if not isinstance(values, (Module, Mapping)):
        raise TypeError(f"save: a {type(values).__name__} is not a Module or a dict of tensors")
    tensors = values.state_dict() if isinstance(values, Module) else values
    header: dict[str, Any] = {}
    if metadata:
        wrong = [k for k, v in metadata.items() if not (isinstance(k, str) and isinstance(v, str))]
        if wrong:
            raise TypeError(f"save: metadata {wrong[0]!r}: keys and values must be strings")
        header["__metadata__"] = dict(metadata)
    offset = 0
    for name, value in tensors.items():
        if not isinstance(name, str) or name == "__metadata__" or not hasattr(value, "dtype"):
            raise TypeError(f"save: {name!r}: a {type(value).__name__} is not a named tensor")
        refuse_masked(value, f"save: {name!r}")
        dtype, shape = np.dtype(str(value.dtype)), tuple(value.shape)
        if dtype.name not in _NAMES:
            raise TypeError(f"save: {name!r}: dtype {dtype.name} is not supported")
        end = offset + prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _NAMES[dtype.name],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the values begin at a multiple of 8

    def write(file: Any) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
            little = array.dtype.newbyteorder("<")
            file.write(np.ascontiguousarray(array, dtype=little).tobytes())

    _write_atomically(path, write)


def load(path: str | os.PathLike[str], device: DeviceLike | None = None) -> dict[str, Tensor]:
    """Return the tensors of the safetensors file `path` by name, without gradients, on `device`
    (None: the CPU).

    Raises OSError if the file cannot be read; ValueError, which names the fault, if the file is
    truncated, damaged or has a dtype that needle does not store; TypeError if `path` is not a path.

    >>> ndl.save("values.safetensors", {"x": np.ones((2, 3), "float32")})
    >>> ndl.load("values.safetensors")["x"].shape
    (2, 3)
    """
    path = _as_path("load", path)
    header, values = _read(path)
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(values[begin:end], _DTYPES[entry["dtype"]])
        try:
            array = flat.reshape(entry["shape"])
            native = array.astype(array.dtype.newbyteorder("="))
            out[name] = Tensor(native, device=device, requires_grad=False)
        except ValueError as error:  # too many axes, or extents beyond any memory
            raise _bad(path, f"{_shown.repr(name)}: {error}") from None
    return out


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the strings that were saved with the tensors in `path`. Errors are as for `load`."""
    path = _as_path("load_metadata", path)
    with open_regular(path) as file:
        header = _header(path, file)
    return dict(header.get("__metadata__") or {})


def _path_first(first: Any, second: Any) -> tuple[Path, Any]:
    """Return the two arguments of `save`, in either order, as (path, values). Raises TypeError if
    the order is not clear."""
    storable = [isinstance(each, (Module, Mapping)) for each in (first, second)]
    paths = [isinstance(each, (str, os.PathLike)) for each in (first, second)]
    if all(storable) or all(paths):
        kinds = " and a ".join(type(each).__name__ for each in (first, second))
        raise TypeError(f"save: a {kinds}: one must be a path, the other a Module or dict")
    if storable[0]:
        first, second = second, first
    return _as_path("save", first), second


def _as_path(name: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"{name}: path {path!r} is a {type(path).__name__}, not a str or a Path")
    if "\0" in os.fspath(path):
        raise ValueError(f"{name}: path {os.fspath(path)!r} has a NUL in it")
    return Path(path)


def _read(path: Path) -> tuple[dict[str, Any], memoryview]:
    with open_regular(path) as file:
        header = _header(path, file)
        values = file.read()
    header.pop("__metadata__", None)
    at = 0
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    for name, entry in entries:
        begin, end = entry["data_offsets"]
        size = prod(entry["shape"]) * np.dtype(_DTYPES[entry["dtype"]]).itemsize
        if begin != at or end - begin != size:
            to = _shown.repr(at + size)
            raise _bad(
                path, f"{_shown.repr(name)} should take bytes {at} to {to}, not {begin} to {end}"
            )
        at = end
    if at != len(values):
        kind = "truncated" if len(values) < at else "too long"
        raise _bad(path, f"{kind}: {len(values)} bytes of values, but the header declares {at}")
    return header, memoryview(values)


def _header(path: Path, file: Any) -> dict[str, Any]:
    prefix = file.read(8)
    if len(prefix) < 8:
        raise _bad(path, f"only {len(prefix)} bytes long")
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEADER:
        raise _bad(path, f"its header claims {length} bytes")
    raw = file.read(length)
    if len(raw) < length:
        raise _bad(path, f"truncated in the header: {len(raw)} of {length} bytes")
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is JSON, but not an object")
    for name, entry in header.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
                raise _bad(path, "its metadata are not strings")
        else:
            _check_entry(path, name, entry)
    return header


def _check_entry(path: Path, name: str, entry: Any) -> None:
    label = _shown.repr(name)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, f"{label} does not have dtype, shape and data_offsets")
    for key in ("shape", "data_offsets"):
        if not _are_extents(entry[key]):
            raise _bad(path, f"{label} has {key} {_shown.repr(entry[key])}")
    if len(entry["data_offsets"]) != 2:
        raise _bad(path, f"{label} has data_offsets {_shown.repr(entry['data_offsets'])}")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(
            f"{path}: {label} has dtype {_shown.repr(dtype)}, which needle cannot store"
        )


def _are_extents(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) <= _MAX_AXES
        and all(type(n) is int and 0 <= n <= _MAX_EXTENT for n in numbers)
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice")
    return out


def _bad(path: Path, why: str) -> ValueError:
    return ValueError(f"{path}: not a readable safetensors file: {why}")


def _write_atomically(path: Path, write: Any) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a crash too
    finally:
        os.close(folder)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
