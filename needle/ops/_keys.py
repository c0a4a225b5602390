"""Keys of basic indexing as attributes of ops: ints, slices with any step, Ellipsis and None."""

from __future__ import annotations

from operator import index as as_int
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShapeError
from ..sizes.dims import Expression
from ..sizes.extents import as_extent, is_symbolic


class Range(NamedTuple):
    """A slice as an attribute of an op (Python's own slices are not hashable before 3.12)."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None


_WHOLE = Range()


class Span(NamedTuple):
    """`length` positions along an axis, from `start` in steps of `step`. It stands for a slice if
    the axis's extent or the slice's ends depend on dims. All but the step may be expressions."""

    start: int
    step: int
    length: int


Entry = int | Range | Span | None
Key = tuple[Entry | EllipsisType, ...]  # at most one Ellipsis
BasicEntry = int | slice | Range | Span | EllipsisType | None  # an entry between brackets
BasicKey = BasicEntry | tuple[BasicEntry, ...]


def as_key(key: BasicKey) -> Key:
    """Return a basic index as a tuple of ints, Ranges, None and Ellipsis.

    Raises TypeError for anything else; arrays and masks are not basic indices.
    """
    entries: list[Entry | EllipsisType] = []
    for item in key if isinstance(key, tuple) and not isinstance(key, (Range, Span)) else (key,):
        if item is None or item is Ellipsis:
            entries.append(item)
        elif isinstance(item, slice):
            ends = (item.start, item.stop, item.step)
            entries.append(Range(*[None if e is None else as_extent(e) for e in ends]))
        elif isinstance(item, (Range, Span, Expression)):
            entries.append(item)
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            entries.append(int(item))
        else:
            raise TypeError(
                f"slice: index {type(item).__name__} is not an int, slice, None or Ellipsis"
            )
    return tuple(entries)


def expand(name: str, key: Key, ndim: int) -> list[Entry]:
    """Return `key` with one entry for each of `ndim` axes. Raises ShapeError for a key with more
    entries."""
    used = sum(entry is not None and entry is not Ellipsis for entry in key)
    if used > ndim or sum(entry is Ellipsis for entry in key) > 1:
        raise ShapeError(f"{name}: {len(key)} indices do not fit {ndim} dimensions")
    entries: list[Any] = list(key)
    at = key.index(Ellipsis) if Ellipsis in key else len(key)
    entries[at : at + 1] = [Range()] * (ndim - used)
    return entries


def steps(name: str, entry: Range, n: int) -> range:
    """Return the positions that `entry` selects along an axis of extent `n`."""
    if entry.step == 0:
        raise ShapeError(f"{name}: a slice's step must not be 0")
    return range(*slice(*entry).indices(n))


def span(name: str, entry: Range | Span, n: int) -> Span:
    """Return the positions that `entry` selects along an axis of extent `n`; both may hold
    expressions. Raises TraceError if no single formula gives the positions at all sizes."""
    if isinstance(entry, Span):
        return entry
    if not is_symbolic((*entry, n)):
        taken = steps(name, entry, n)
        return Span(taken.start, taken.step, len(taken))
    step = 1 if entry.step is None else as_int(entry.step)
    if step == 0:
        raise ShapeError(f"{name}: a slice's step must not be 0")
    low, high = (0, n) if step > 0 else (-1, n - 1)
    start, stop = (low, high) if step > 0 else (high, low)
    if entry.start is not None:
        start = _within(entry.start, n, low, high)
    if entry.stop is not None:
        stop = _within(entry.stop, n, low, high)
    distance = stop - start if step > 0 else start - stop
    return Span(start, step, -(-distance // abs(step)) if distance >= 0 else 0)


def _within(place: int, n: int, low: int, high: int) -> int:
    """Return an end of a slice along an axis of extent `n`, counted from the front and clipped."""
    if place < 0:
        place = place + n
    return low if place < low else high if place > high else place


def resolved(name: str, key: Key, shape: tuple[int, ...]) -> Key:
    """Return an equivalent key that is valid at all sizes: on an axis whose extent is an
    expression, entries count from the front. Raises the errors of `sliced_shape`."""
    out: list[Entry] = []
    axis = 0
    for entry in expand(name, key, len(shape)):
        if entry is None:
            out.append(None)
            continue
        n = shape[axis]
        if isinstance(entry, (Range, Span)):
            whole = entry == _WHOLE or not is_symbolic((*entry, n))
            out.append(entry if whole else span(name, entry, n))
        else:
            if not -n <= entry < n:
                raise _out_of_range(name, entry, axis, n)
            out.append(entry + n if entry < 0 else entry)
        axis += 1
    return tuple(out)


def _out_of_range(name: str, index: int, axis: int, n: int) -> IndexError:
    return IndexError(f"{name}: index {index} is out of range for axis {axis} of extent {n}")


def sliced_shape(name: str, key: Key, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of x[key]. An axis whose extent is an expression must be taken whole or have
    a `resolved` entry. Raises IndexError for an int out of range."""
    out, axis = [], 0
    for entry in expand(name, key, len(shape)):
        if entry is None:
            out.append(1)
            continue
        n = shape[axis]
        if isinstance(entry, Span):
            out.append(entry.length)
        elif isinstance(entry, Range):
            out.append(n if entry == _WHOLE else len(steps(name, entry, n)))
        elif not -n <= entry < n:
            raise _out_of_range(name, entry, axis, n)
        axis += 1
    return tuple(out)


def native(key: Key) -> tuple[int | slice | EllipsisType | None, ...]:
    """Return the key in the form that NumPy and NDArray accept."""
    return tuple(_native(entry) for entry in key)


def _native(entry: Entry | EllipsisType) -> int | slice | EllipsisType | None:
    if isinstance(entry, Range):
        return slice(*entry)
    if isinstance(entry, Span):
        end = entry.start + entry.step * entry.length
        return slice(entry.start, None if end < 0 else end, entry.step)
    return entry
