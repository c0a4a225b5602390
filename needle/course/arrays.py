"""The course's functions in `needle.backend_ndarray` and its methods of NDArray."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backend_ndarray as nd
from ..backend_ndarray import Device, DeviceLike, NDArray
from ..backend_ndarray.dtypes import ITEMSIZE
from ..backend_ndarray.indexing import compact_strides
from ..backend_ndarray.strided import Strided
from .flag import callable_property
from .patches import Patches

TILE = 8


class Handle:
    """The memory behind an array."""

    def __init__(self, array: NDArray) -> None:
        self.array = array

    def ptr(self) -> int:
        """Return the start address of the memory; an array and its views have the same one."""
        return self.array.view.data_ptr - self.array.offset * ITEMSIZE[self.array.dtype]

    @property
    def size(self) -> int:
        """The number of elements of the array."""
        return self.array.size


def make(
    shape: Any,
    strides: Any = None,
    device: DeviceLike | None = None,
    handle: Handle | None = None,
    offset: int = 0,
) -> NDArray:
    """Return a new array or, if there is a `handle`, a view of the handle's memory."""
    array = nd.empty(shape, device=device) if handle is None else handle.array
    if handle is None and strides is None:
        return array
    return array.as_strided(shape, compact_strides(shape) if strides is None else strides, offset)


def process_slice(self: NDArray, key: slice, axis: int) -> slice:
    """Return `key` with start, stop and step as non-negative numbers, for `axis`."""
    return slice(*key.indices(self.shape[axis]))


def matmul_tiled(self: Device, a: Handle, b: Handle, out: Handle, m: int, n: int, p: int) -> None:
    """Compute out = a @ b. All three are tiled: (rows / TILE, columns / TILE, TILE, TILE)."""
    left = a.array.reshape(m // TILE, n // TILE, TILE, TILE).permute(0, 2, 1, 3)
    right = b.array.reshape(n // TILE, p // TILE, TILE, TILE).permute(0, 2, 1, 3)
    product = left.reshape(m, n) @ right.reshape(n, p)
    tiled = product.reshape(m // TILE, TILE, p // TILE, TILE).permute(0, 2, 1, 3)
    out.array[...] = tiled.reshape(out.array.shape)


def _shape(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def _stack(arrays: Any, axis: int = 0) -> NDArray:
    first = arrays[0]
    at = axis % (first.ndim + 1)
    out = nd.empty((*first.shape[:at], len(arrays), *first.shape[at:]), first.dtype, first.device)
    for i, array in enumerate(arrays):
        out[(slice(None),) * at + (i,)] = array
    return out


# The functions of the course's `backend_ndarray`.
FUNCTIONS: dict[str, Any] = {
    "broadcast_to": lambda a, *shape: a.broadcast_to(_shape(shape)),
    "reshape": lambda a, *shape: a.reshape(_shape(shape)),
    "permute": lambda a, *axes: a.permute(_shape(axes)),
    "maximum": lambda a, b: a.maximum(b),
    "log": lambda a: a.log(),
    "exp": lambda a: a.exp(),
    "tanh": lambda a: a.tanh(),
    "sqrt": lambda a: a.sqrt(),
    "negative": lambda a: -a,
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": lambda a, b: a**b,
    "matmul": lambda a, b: a @ b,
    "sum": lambda a, axis=None, keepdims=False: a.sum(axis, keepdims),
    "max": lambda a, axis=None, keepdims=False: a.max(axis, keepdims),
    "summation": lambda a, axis=None, keepdims=False: a.sum(axis, keepdims),
    "flip": lambda a, axes=None: a.flip(axes),
    "stack": _stack,
    "prod": math.prod,
    "BackendDevice": Device,
    "from_numpy": nd.array,
}


def as_array(value: Any, device: DeviceLike | None) -> Any:
    """Return `value`, the result of a user's `compute`, as NDArrays on `device`."""
    if isinstance(value, (tuple, list)):
        return tuple([as_array(part, device) for part in value])
    if isinstance(value, NDArray):
        return value
    return nd.array(np.asarray(value), device=device)


def install(patches: Patches) -> None:
    """Add the functions and methods."""
    patches.add(nd, **FUNCTIONS)
    patches.set(Strided, "is_compact", callable_property(vars(Strided)["is_compact"]))
    patches.add(
        NDArray,
        make=staticmethod(make),
        compact_strides=staticmethod(compact_strides),
        process_slice=process_slice,
        _handle=property(Handle),
        _shape=property(lambda self: self.shape),
        _strides=property(lambda self: self.strides),
        _offset=property(lambda self: self.offset),
        _device=property(lambda self: self.device),
    )
    patches.add(Device, matmul_tiled=matmul_tiled, __tile_size__=TILE)
