"""NumPy indexing along one axis, for the reference device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import INTEGER

Array = np.ndarray[Any, Any]

_COMBINED = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def places(index: Array, extent: int, what: str) -> Array:
    """Convert negative positions in `index`, which count from the end, to non-negative ones. Raises
    IndexError if a position is out of range, and TypeError for an index that does not hold
    integers."""
    if index.dtype.name not in INTEGER:
        raise TypeError(f"{what}: index must hold integers, not {index.dtype}")
    index = index.astype(np.int64, copy=False)  # small integers cannot hold every position
    bad = index[(index < -extent) | (index >= extent)]
    if bad.size:
        raise IndexError(f"{what}: index {bad[0]} is out of bounds for an axis of extent {extent}")
    return np.where(index < 0, index + extent, index)


def along(x: Array, index: Array, axis: int, what: str) -> tuple[Array, ...]:
    """Return the NumPy key that selects x[..., index[..., j, ...], ...], with `index` along
    `axis`."""
    where = places(index, x.shape[axis], what)
    rest = [(*a.shape[:axis], *a.shape[axis + 1 :]) for a in (x, index)]
    if x.ndim != index.ndim or rest[0] != rest[1]:
        raise ValueError(f"{what}: index {index.shape} does not fit {x.shape} along axis {axis}")
    key: list[Array] = list(np.indices(index.shape))
    key[axis] = where
    return tuple(key)


def put(x: Array, key: Any, values: Array, how: str) -> Array:
    """Return a copy of x whose elements at `key` are combined with `values`: `how` is set, add,
    mul, max or min. If positions repeat, "set" keeps the last value."""
    out = x.copy()
    if how == "set":
        out[key] = values
    elif how in _COMBINED:
        _COMBINED[how].at(out, key, values)
    else:
        raise ValueError(f"put_along: {how!r} is not one of set, {', '.join(_COMBINED)}")
    return out
