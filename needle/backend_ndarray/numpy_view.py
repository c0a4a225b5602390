"""The reference device's view of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Shape = Sequence[int]
Array = np.ndarray[Any, Any]

MAX_NDIM = 16
MAX_BYTES = 2**63 - 1


class View:
    """Elements `base[offset + sum(i * stride)]` of a one-dimensional array; valid by construction.

    Strides and offset count elements. Raises ValueError when an element lies outside the base.
    """

    __slots__ = ("base", "np", "offset", "shape", "strides")

    def __init__(self, base: Array, shape: Shape, strides: Shape, offset: int) -> None:
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
        self.base, self.shape, self.strides, self.offset = base, shape, strides, offset
        self.np = np.lib.stride_tricks.as_strided(
            base[offset:], shape, [s * base.itemsize for s in strides]
        )

    @property
    def dtype(self) -> str:
        return self.base.dtype.name

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
