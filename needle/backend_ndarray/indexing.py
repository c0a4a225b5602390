"""NumPy-style indexing as arithmetic on (shape, strides, offset).

Basic keys (int, slice, None, Ellipsis) give a view. Keys with integer arrays or boolean masks
become one gather or scatter along one axis of a rearranged view.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import index as as_int
from typing import Any, NamedTuple

import numpy as np

from .masked import as_numpy

Ints = tuple[int, ...]


class Layout(NamedTuple):
    """Shape, strides and offset of a view, in elements."""

    shape: Ints
    strides: Ints
    offset: int


class Advanced(NamedTuple):
    """A key with index arrays. In `layout` the indexed axes are adjacent, starting at `axis`.
    `positions` is a linear index over these axes (`extents`) with all values in range."""

    layout: Layout
    axis: int
    extents: Ints
    positions: np.ndarray[Any, Any]

    @property
    def merged_shape(self) -> Ints:
        """The layout's shape with the indexed axes merged into one."""
        shape, end = self.layout.shape, self.axis + len(self.extents)
        return (*shape[: self.axis], prod(self.extents), *shape[end:])


def compact_strides(shape: Ints) -> Ints:
    """Return the row-major strides of a `shape`, in elements."""
    strides, step = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= shape[i]
    return tuple(strides)


def normalize_axes(axis: Any, ndim: int, what: str) -> Ints:
    """Return `axis` (an int, a sequence of ints, or None for all) as distinct non-negative axes of
    an array with `ndim` axes. Raises ValueError for invalid axes; its message begins with
    `what`."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(map(as_int, axis)) if isinstance(axis, (tuple, list)) else (as_int(axis),)
    for a in axes:
        if not -ndim <= a < ndim:
            raise ValueError(f"{what}: axis {a} is out of range for {ndim} dimensions")
    axes = tuple(a % ndim for a in axes)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{what}: axes {axes} name an axis twice")
    return axes


def resolve_shape(shape: Any, size: int, what: str = "reshape") -> Ints:
    """Return the target `shape` for `size` elements, with a single -1 filled in. Raises ValueError
    if the elements do not fit; its message begins with `what`."""
    new = tuple(map(as_int, shape))
    if any(n < -1 for n in new) or new.count(-1) > 1:
        raise ValueError(f"{what}: shape {new} may have one -1 and no other negative extent")
    if -1 in new:
        known = prod(n for n in new if n != -1)
        if known == 0 or size % known:
            raise ValueError(f"{what}: {size} elements do not fit shape {new}")
        new = tuple(size // known if n == -1 else n for n in new)
    if prod(new) != size:
        raise ValueError(f"{what}: {size} elements do not fit shape {new}")
    return new


def reshaped_strides(shape: Ints, strides: Ints, new: Ints) -> Ints | None:
    """Return the strides that view an array of `shape` and `strides` in the shape `new`, or None if
    a copy is needed.

    Both shapes must have the same number of elements, and at least one.
    """
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result, i = [0] * len(new), 0
    j = 0
    while i < len(new):
        if new[i] == 1:
            result[i] = 1
            i += 1
            continue
        # Find the smallest groups of old axes [j, k) and new axes [i, m) with equally many
        # elements.
        k, m = j + 1, i + 1
        have, want = old[j][0], new[i]
        while have != want:
            if have < want:
                have *= old[k][0]
                k += 1
            else:
                want *= new[m]
                m += 1
        for (_, outer), (n, inner) in zip(old[j : k - 1], old[j + 1 : k], strict=True):
            if outer != n * inner:
                return None
        step = old[k - 1][1]
        for axis in range(m - 1, i - 1, -1):
            result[axis] = step
            step *= new[axis]
        i, j = m, k
    return tuple(result)


def is_basic(key: Any) -> bool:
    """Return whether the key has no index arrays."""
    for entry in key if type(key) is tuple else (key,):
        if type(entry) is slice or type(entry) is int or entry is None or entry is Ellipsis:
            continue
        if isinstance(entry, bool) or not isinstance(entry, (int, np.integer)):
            return False
    return True


def _expand(entries: list[Any], ndim: int) -> list[Any]:
    """Return the key with full slices for the Ellipsis and for missing trailing axes."""
    if len(entries) == ndim and all([type(entry) in (slice, int) for entry in entries]):
        return entries
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can hold only one '...'")
    if used > ndim:
        raise IndexError(f"too many indices: {used} for {ndim} dimensions")
    at = dots[0] if dots else len(entries)
    return [*entries[:at], *[slice(None)] * (ndim - used), *entries[at + 1 :]]


def basic_layout(key: Any, shape: Ints, strides: Ints, offset: int) -> Layout:
    """Return the layout of x[`key`] for a basic key and an x of `shape`, `strides` and `offset`.
    Raises IndexError for an invalid key; if an index is out of bounds, the error names the axis and
    its extent."""
    entries = _expand(list(key) if type(key) is tuple else [key], len(shape))
    new_shape, new_strides, axis = [], [], 0
    start_offset = offset
    for entry in entries:
        if entry is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        n, s = shape[axis], strides[axis]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(n)
            count = len(range(start, stop, step))
            if count:
                offset += start * s
            new_shape.append(count)
            new_strides.append(step * s if count > 1 else s)  # a step past the end may be huge
        else:
            i = as_int(entry)
            if not -n <= i < n:
                raise IndexError(f"index {i} is out of bounds for axis {axis} of extent {n}")
            offset += (i % n) * s
        axis += 1
    if 0 in new_shape:
        offset = start_offset  # nothing is read, and an empty buffer allows no offset
    return Layout(tuple(new_shape), tuple(new_strides), offset)


def _index_arrays(key: Any) -> list[Any]:
    """Return the key's entries; ints, lists and NumPy arrays become int64 arrays or masks.

    Arrays of other libraries stay unchanged; they hold integers, and the caller checks their
    values.
    """
    entries: list[Any] = []
    for entry in key if type(key) is tuple else (key,):
        foreign = hasattr(entry, "shape") and not isinstance(entry, (np.ndarray, np.generic))
        if entry is None or entry is Ellipsis or isinstance(entry, slice) or foreign:
            entries.append(entry)
            continue
        array = as_numpy(entry, "index")
        if array.size == 0 and isinstance(entry, (list, tuple)):
            array = array.astype(np.int64)
        if array.dtype == np.bool_:
            if array.ndim == 0:
                raise IndexError("a single bool is not an index; use None or a mask array")
            entries.append(array)
        elif array.dtype.kind in "iu":
            entries.append(array.astype(np.int64))
        else:
            raise IndexError(f"an index must be int, slice, None, '...' or array, not {entry!r}")
    return entries


def _split_masks(entries: list[Any], shape: Ints) -> list[Any]:
    """Replace each mask by one index array per axis that it covers. Masks must match their axes."""
    covered = 0
    for e in entries:
        if isinstance(e, np.ndarray) and e.dtype == np.bool_:
            covered += e.ndim
        elif e is not None and e is not Ellipsis:
            covered += 1
    result: list[Any] = []
    axis = 0
    for entry in entries:
        if isinstance(entry, np.ndarray) and entry.dtype == np.bool_:
            if entry.shape != shape[axis : axis + entry.ndim]:
                raise IndexError(
                    f"mask of shape {entry.shape} does not match axes of extents "
                    f"{shape[axis : axis + entry.ndim]}"
                )
            result.extend(i.astype(np.int64) for i in entry.nonzero())
            axis += entry.ndim
        else:
            result.append(entry)
            if entry is Ellipsis:
                axis += max(len(shape) - covered, 0)
            elif entry is not None:
                axis += 1
    return result


class Arrangement(NamedTuple):
    """A key with index arrays, analysed by NumPy's rules. In x[`kept`] permuted by `order`, the
    axes that `arrays` index are adjacent, starting at `axis`. `shape` is the arrays' broadcast
    shape."""

    kept: tuple[Any, ...]
    order: Ints
    axis: int
    arrays: list[Any]
    shape: Ints


def arrange(
    key: Any, shape: Ints, broadcast: Callable[..., Ints] = np.broadcast_shapes
) -> Arrangement:
    """Analyse a `key` with index arrays for an array of `shape`. `broadcast` returns the shape that
    its arguments broadcast to, or raises ValueError.

    Raises IndexError for a value that is not an index, masks that do not match, too many entries,
    and arrays that do not broadcast.
    """
    entries = _split_masks(_index_arrays(key), shape)
    given = [i for i, e in enumerate(entries) if hasattr(e, "shape")]
    arrays = [entries[i] for i in given]
    try:
        together = broadcast(*(a.shape for a in arrays))
    except ValueError:
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise IndexError(f"index arrays of shapes {shapes} do not broadcast") from None
    entries = _expand(entries, len(shape))
    where = [i for i, e in enumerate(entries) if hasattr(e, "shape")]
    kept = tuple(slice(None) if hasattr(e, "shape") else e for e in entries)
    # If the index arrays are not adjacent in the key, their axes come first; otherwise the axes
    # stay in place. Even an Ellipsis that stands for no axes separates index arrays.
    axis = where[0] if given[-1] - given[0] + 1 == len(given) else 0
    rest = [i for i in range(len(entries)) if i not in where]
    return Arrangement(kept, (*rest[:axis], *where, *rest[axis:]), axis, arrays, together)


def linear_index(arrays: list[Any], extents: Ints, shape: Ints) -> np.ndarray[Any, Any]:
    """Combine index `arrays`, one for each axis of `extents`, into one linear index of shape
    `shape`. Raises IndexError if a value is out of range; as in NumPy, nothing is checked if
    `shape` is empty."""
    linear = np.zeros(shape, np.int64)
    if not linear.size:
        return linear
    for array, n in zip(arrays, extents, strict=True):
        bad = array[(array < -n) | (array >= n)]
        if bad.size:
            raise IndexError(f"index {bad[0]} is out of bounds for an axis of extent {n}")
        linear = linear * n + np.where(array < 0, array + n, array)
    return linear


def advanced(key: Any, shape: Ints, strides: Ints, offset: int) -> Advanced:
    """Convert a `key` with index arrays to one index along merged axes, for an array of `shape`,
    `strides` and `offset`. Raises IndexError for an invalid key."""
    plan = arrange(key, shape)
    layout = basic_layout(plan.kept, shape, strides, offset)
    layout = Layout(
        tuple(layout.shape[i] for i in plan.order),
        tuple(layout.strides[i] for i in plan.order),
        layout.offset,
    )
    extents = layout.shape[plan.axis : plan.axis + len(plan.arrays)]
    positions = linear_index(plan.arrays, extents, plan.shape)
    return Advanced(layout, plan.axis, extents, positions)
