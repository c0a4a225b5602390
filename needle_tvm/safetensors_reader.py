"""Arrays over the bytes of a safetensors file. No TVM, no needle."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np


def views(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a safetensors file by name, read-only and over the bytes themselves.

    The package's own reader copies every array. The format: the header's length as a 64-bit little
    endian number, the header as JSON, the arrays. Raises ValueError or whatever a misshapen header
    leads to.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise ValueError("it ends before its header does")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        dtype, (begin, end) = _dtype(entry["dtype"]), entry["data_offsets"]
        count = math.prod(entry["shape"])
        if not 0 <= begin <= end <= len(data) - start or end - begin != count * dtype.itemsize:
            raise ValueError(f"{name!r} does not lie inside of it")
        flat = np.frombuffer(data, dtype, count, start + begin)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays


def _dtype(name: str) -> np.dtype[Any]:
    """NumPy's form of a dtype as safetensors writes it, such as "F32"."""
    if name == "BF16":  # what safetensors.numpy.load does not know, unlike its load_file
        return np.dtype(ml_dtypes.bfloat16)
    if name == "BOOL":
        return np.dtype(bool)
    return np.dtype(f"{name[0].lower()}{int(name[1:]) // 8}")
