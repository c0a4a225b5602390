"""The reference device's view of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .locks import fork_safe_lock

Shape = Sequence[int]
Array = np.ndarray[Any, Any]

MAX_NDIM = 16
MAX_BYTES = 2**63 - 1


class Counters:
    """The bytes of all live buffers, their peak, and the number of in-place writes, under one
    lock."""

    lock = fork_safe_lock()  # reentrant: a buffer may be freed during a count
    live = peak = writes = 0

    @classmethod
    def count(cls, bytes: int) -> None:
        with cls.lock:
            cls.live += bytes
            cls.peak = max(cls.peak, cls.live)


class Buffer:
    """A one-dimensional array that views share. `written` is the value of `Counters.writes` after
    the last in-place write to the buffer, or 0 if there was none. The bytes of foreign memory are
    not counted."""

    __slots__ = ("_counted", "array", "written")

    def __init__(self, array: Array, foreign: bool = False) -> None:
        self.array = array
        self.written = 0
        self._counted = 0 if foreign else array.nbytes
        Counters.count(self._counted)

    # `count` is bound as a default argument, because the module's names may be gone at interpreter
    # exit.
    def __del__(self, count: Callable[[int], None] = Counters.count) -> None:
        count(-self._counted)

    def mark_written(self) -> None:
        with Counters.lock:
            Counters.writes += 1
            self.written = Counters.writes


class View:
    """The elements `base[offset + sum(i * stride)]` of a buffer's array, valid by construction.
    Strides and offset count elements. Raises ValueError if an element lies outside the base.
    """

    __slots__ = ("buffer", "np", "offset", "shape", "strides")

    def __init__(self, buffer: Buffer, shape: Shape, strides: Shape, offset: int) -> None:
        base = buffer.array
        shape, strides = tuple(map(int, shape)), tuple(map(int, strides))
        check_shape(shape, base.itemsize)
        if len(shape) != len(strides):
            raise ValueError(f"shape {shape} and strides {strides} differ in length")
        spans = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low = offset + sum(s for s in spans if s < 0)
        high = offset + sum(s for s in spans if s > 0)
        if 0 in shape:
            low, high = offset, offset - 1
        if low < 0 or high >= base.size or offset > base.size:
            raise ValueError(
                f"view of shape {shape}, strides {strides}, offset {offset} leaves its buffer "
                f"of {base.size} elements"
            )
        self.buffer, self.shape, self.strides, self.offset = buffer, shape, strides, offset
        self.np = np.lib.stride_tricks.as_strided(
            base[offset:], shape, [s * base.itemsize for s in strides]
        )

    @property
    def dtype(self) -> str:
        return self.buffer.array.dtype.name

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        address: int = self.np.__array_interface__["data"][0]
        return address

    @property
    def written(self) -> int:
        """The value of `Counters.writes` after the last in-place write to this memory (see
        Buffer)."""
        return self.buffer.written

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_compact(self) -> bool:
        return bool(self.np.flags.c_contiguous)


def check_shape(shape: Shape, itemsize: int) -> None:
    if len(shape) > MAX_NDIM:
        raise ValueError(f"shape {tuple(shape)} has more than {MAX_NDIM} dimensions")
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {tuple(shape)} has a negative extent")
    if math.prod(n for n in shape if n) * itemsize > MAX_BYTES:
        raise ValueError(f"shape {tuple(shape)} needs more bytes than can be addressed")
