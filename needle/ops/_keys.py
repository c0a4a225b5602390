"""Keys of basic indexing: ints, slices with any step, Ellipsis and None, as attributes of ops."""

from __future__ import annotations

from operator import index as as_int
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShapeError


class Range(NamedTuple):
    """A slice as an attribute of an op (Python's own cannot be hashed before 3.12)."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None


Entry = int | Range | None
Key = tuple[Entry | EllipsisType, ...]  # at most one Ellipsis
BasicEntry = int | slice | Range | EllipsisType | None  # what stands in brackets
BasicKey = BasicEntry | tuple[BasicEntry, ...]


def as_key(key: BasicKey) -> Key:
    """A basic index as a tuple of ints, Ranges, None and Ellipsis.

    Raises TypeError for anything else; arrays and masks are not basic indices.
    """
    entries: list[Entry | EllipsisType] = []
    for item in key if isinstance(key, tuple) and not isinstance(key, Range) else (key,):
        if item is None or item is Ellipsis:
            entries.append(item)
        elif isinstance(item, slice):
            ends = (item.start, item.stop, item.step)
            entries.append(Range(*[None if e is None else as_int(e) for e in ends]))
        elif isinstance(item, Range):
            entries.append(item)
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            entries.append(int(item))
        else:
            raise TypeError(
                f"slice: index {type(item).__name__} is not an int, slice, None or Ellipsis"
            )
    return tuple(entries)


def expand(name: str, key: Key, ndim: int) -> list[Entry]:
    """`key` with one entry for each of `ndim` axes. ShapeError if it has too many."""
    used = sum(entry is not None and entry is not Ellipsis for entry in key)
    if used > ndim or sum(entry is Ellipsis for entry in key) > 1:
        raise ShapeError(f"{name}: {len(key)} indices do not fit {ndim} dimensions")
    entries: list[Any] = list(key)
    at = key.index(Ellipsis) if Ellipsis in key else len(key)
    entries[at : at + 1] = [Range()] * (ndim - used)
    return entries


def steps(name: str, entry: Range, n: int) -> range:
    """The positions that `entry` selects along an axis of extent `n`."""
    if entry.step == 0:
        raise ShapeError(f"{name}: a slice's step must not be 0")
    return range(*slice(*entry).indices(n))


def sliced_shape(name: str, key: Key, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of x[key]. IndexError for an int out of range."""
    out, axis = [], 0
    for entry in expand(name, key, len(shape)):
        if entry is None:
            out.append(1)
            continue
        n = shape[axis]
        if isinstance(entry, Range):
            out.append(len(steps(name, entry, n)))
        elif not -n <= entry < n:
            raise IndexError(f"{name}: index {entry} is out of range for axis {axis} of extent {n}")
        axis += 1
    return tuple(out)


def native(key: Key) -> tuple[int | slice | EllipsisType | None, ...]:
    """The key in the form that NumPy and NDArray take."""
    return tuple(slice(*entry) if isinstance(entry, Range) else entry for entry in key)
