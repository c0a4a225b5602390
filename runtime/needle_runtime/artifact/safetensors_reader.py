"""Read a safetensors file as arrays over its bytes."""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any

import numpy as np

from needle_runtime.artifact.bfloat16 import dtype_named

_DTYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",  # safetensors.numpy.load does not know it; load_file does
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_MAX_EXTENT, _MAX_AXES = 2**63 - 1, 64  # NumPy's limits


def views(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a safetensors file by name, as read-only views of the bytes `data`.

    The reader of the package safetensors copies every array. The format is the header's length as a
    64-bit little-endian number, the header as JSON, and the arrays one after another. Raises
    ValueError for bytes in another format, and InstallError for bfloat16 without ml_dtypes.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise ValueError("it ends before its header does")
    try:
        header = json.loads(data[8:start].decode())
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    header.pop("__metadata__", None)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    spans = []
    for name, entry in header.items():
        dtype, shape, (begin, end) = _checked(name, entry)
        count = math.prod(shape)
        if not begin <= end <= len(data) - start or end - begin != count * dtype.itemsize:
            raise ValueError(f"{reprlib.repr(name)} does not lie inside the file")
        arrays[name] = np.frombuffer(data, dtype, count, start + begin).reshape(shape)
        spans.append((begin, end))
    at = start
    for begin, end in sorted(spans):
        if start + begin != at:
            raise ValueError("its arrays overlap, or leave gaps")
        at = start + end
    if at != len(data):
        raise ValueError(f"it is {len(data) - at} bytes longer than its arrays")
    return arrays


def _checked(name: str, entry: Any) -> tuple[np.dtype[Any], list[int], list[int]]:
    """Return an array's dtype, its shape, and its start and end. Raises ValueError for a malformed
    entry."""
    parts = entry if isinstance(entry, dict) else {}
    kind: Any = parts.get("dtype")
    shape: Any = parts.get("shape")
    place: Any = parts.get("data_offsets")
    dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None or not _are_extents(shape) or not _are_extents(place) or len(place) != 2:
        raise ValueError(f"{reprlib.repr(name)} is {reprlib.repr(entry)}, which is not an array")
    return dtype_named(dtype), shape, place


def _are_extents(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) <= _MAX_AXES
        and all(type(n) is int and 0 <= n <= _MAX_EXTENT for n in numbers)
    )
