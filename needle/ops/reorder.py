"""PyTorch's functions that reorder, repeat and split tensors. They are composed of permutations,
reshapes, slices and concatenations, which compiled code fuses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_int
from typing import Any

import numpy as np

from ..autograd.dispatch import of_value, unrecorded
from ..autograd.shapes import Axes, as_shape, broadcast_shapes, normalize_axes, normalize_axis
from ..autograd.tensor import Tensor, TensorTuple, make_const
from ..backend_ndarray.arguments import count
from ..errors import ShapeError, TraceError
from ..sizes.dims import Expression
from ..sizes.extents import as_extent, same
from ._arguments import check_tensors
from .along_axis import take_along_axis
from .arange import arange
from .getitem import getitem
from .index import take
from .movement import flip, unsqueeze
from .shape import broadcast_to, permute, reshape
from .slicing import slice as get_slice
from .tuples import concat, split


def moveaxis(a: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Return `a` with the axes `source` moved to the positions `destination`; the other axes keep
    their order.

    >>> ndl.moveaxis(ndl.zeros(2, 3, 4), 0, -1).shape
    (3, 4, 2)
    """
    check_tensors("moveaxis", a=a)
    old = normalize_axes("moveaxis", source, a.ndim)
    new = normalize_axes("moveaxis", destination, a.ndim)
    if len(old) != len(new):
        raise ShapeError(f"moveaxis: {source} and {destination} must have the same number of axes")
    order = [axis for axis in range(a.ndim) if axis not in old]
    for place, axis in sorted(zip(new, old, strict=True)):
        order.insert(place, axis)
    return permute(a, order)


def swapaxes(a: Tensor, axis1: int, axis2: int) -> Tensor:
    """Return `a` with the axes `axis1` and `axis2` exchanged."""
    check_tensors("swapaxes", a=a)
    order = list(range(a.ndim))
    first, second = (normalize_axis("swapaxes", axis, a.ndim) for axis in (axis1, axis2))
    order[first], order[second] = second, first
    return permute(a, order)


def ravel(a: Tensor) -> Tensor:
    """Return the elements of `a` in order, along a single axis."""
    return flatten(a)


def narrow(a: Tensor, axis: int, start: int, length: int) -> Tensor:
    """Return `length` elements of `a` along `axis`, starting at `start`. Raises ValueError if the
    axis does not have all of them."""
    check_tensors("narrow", a=a)
    start, length = as_int(start), as_int(length)
    axis = normalize_axis("narrow", axis, a.ndim)
    extent = a.shape[axis]
    begin = start + extent if start < 0 else start
    if begin < 0 or length < 0 or begin + length > extent:
        raise ValueError(
            f"narrow: {length} elements from {start} on do not fit an axis of extent {extent}"
        )
    return getitem(a, (*[slice(None)] * axis, slice(begin, begin + length)))


def select(a: Tensor, axis: int, index: int) -> Tensor:
    """Return the slice of `a` at `index` along `axis`, without this axis. Raises IndexError for an
    index out of range."""
    check_tensors("select", a=a)
    axis = normalize_axis("select", axis, a.ndim)
    return getitem(a, (*[slice(None)] * axis, as_int(index)))


def index_select(a: Tensor, axis: int, index: Tensor) -> Tensor:
    """Return the slices of `a` along `axis` at the positions in the vector `index`, as `take` does.
    Raises ShapeError if `index` has more axes."""
    check_tensors("index_select", a=a, index=index)
    if index.ndim > 1:
        raise ShapeError(f"index_select: index has shape {index.shape}; it must be a vector")
    return take(a, reshape(index, (-1,)), axis)


def fliplr(a: Tensor) -> Tensor:
    """Return `a` reversed along axis 1."""
    return flip(a, 1)


def flipud(a: Tensor) -> Tensor:
    """Return `a` reversed along axis 0."""
    return flip(a, 0)


def broadcast_tensors(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors `parts`, broadcast to the same shape."""
    check_tensors("broadcast_tensors", **{f"parts[{i}]": part for i, part in enumerate(parts)})
    shape = broadcast_shapes("broadcast_tensors", *[part.shape for part in parts] or [()])
    return tuple(broadcast_to(part, shape) for part in parts)


def diff(a: Tensor, n: int = 1, axis: int = -1) -> Tensor:
    """Return the `n`-th differences between neighbouring elements of `a` along `axis`. Raises
    TypeError for bool."""
    check_tensors("diff", a=a)
    axis = normalize_axis("diff", axis, a.ndim)
    before = (*[slice(None)] * axis, slice(None, -1))
    behind = (*[slice(None)] * axis, slice(1, None))
    n = count("diff", "n", n, 0)
    for _ in range(n if isinstance(a.shape[axis], Expression) else min(n, a.shape[axis])):
        a = getitem(a, behind) - getitem(a, before)
    return a


def hstack(parts: Sequence[Tensor]) -> Tensor:
    """Return the tensors `parts` joined side by side: along axis 1, or axis 0 for vectors and
    numbers."""
    parts = _checked_parts("hstack", parts)
    parts = [reshape(part, (1,)) if part.ndim == 0 else part for part in parts]
    return concat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(parts: Sequence[Tensor]) -> Tensor:
    """Return the tensors `parts` stacked vertically, along axis 0; vectors and numbers become
    rows."""
    parts = _checked_parts("vstack", parts)
    return concat([reshape(part, (1, -1)) if part.ndim < 2 else part for part in parts], 0)


def _checked_parts(name: str, parts: Sequence[Tensor]) -> list[Tensor]:
    found = list(parts)
    check_tensors(name, **{f"parts[{i}]": part for i, part in enumerate(found)})
    return found


def flatten(a: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Return `a` with the axes from `start_axis` to `end_axis` merged; a 0-d tensor gets shape
    (1,).

    >>> ndl.flatten(ndl.zeros(2, 3, 4), start_axis=1).shape
    (2, 12)
    """
    check_tensors("flatten", a=a)
    if not a.ndim:
        return reshape(a, (1,))
    first, last = (normalize_axis("flatten", axis, a.ndim) for axis in (start_axis, end_axis))
    if first > last:
        raise ShapeError(f"flatten: axis {start_axis} comes after axis {end_axis}")
    merged = prod(a.shape[first : last + 1])
    return reshape(a, (*a.shape[:first], merged, *a.shape[last + 1 :]))


def unflatten(a: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """Return `a` with `axis` split into axes of `shape`; one extent may be -1. Raises ShapeError if
    the number of elements does not fit."""
    check_tensors("unflatten", a=a)
    axis = normalize_axis("unflatten", axis, a.ndim)
    new = as_shape("unflatten", shape, open_extent=True)
    if -1 in new and any(same(n, 0) for n in a.shape):
        rest = prod(n for n in new if n != -1)
        new = tuple(a.shape[axis] // rest if n == -1 and rest else n for n in new)
    return reshape(a, (*a.shape[:axis], *new, *a.shape[axis + 1 :]))


def expand(a: Tensor, *shape: Any) -> Tensor:
    """Return `a` broadcast to `shape`; an entry of -1 keeps the extent of `a`."""
    check_tensors("expand", a=a)
    new = as_shape("expand", shape, open_extent=True)
    lead = len(new) - a.ndim
    if lead < 0 or any(n == -1 for n in new[:lead]):
        raise ShapeError(f"expand: shape {a.shape} does not expand to {new}")
    extents = [old if n == -1 else n for n, old in zip(new[lead:], a.shape, strict=True)]
    return broadcast_to(a, (*new[:lead], *extents))


def repeat(a: Tensor, *repeats: Any) -> Tensor:
    """Return `a` repeated as a whole along each axis. If there are more `repeats` than axes, the
    first ones are for new leading axes. (This is PyTorch's repeat; NumPy's is `repeat_interleave`.)

    >>> ndl.repeat(ndl.arange(2), 2).numpy().tolist()
    [0, 1, 0, 1]
    """
    check_tensors("repeat", a=a)
    times = as_shape("repeat", repeats)
    if len(times) < a.ndim:
        raise ShapeError(f"repeat: {times} must have one number for each axis of {a.shape}")
    shape = (*[1] * (len(times) - a.ndim), *a.shape)
    apart = [n for extent in shape for n in (1, extent)]
    spread = [n for pair in zip(times, shape, strict=True) for n in pair]
    whole = tuple(m * n for m, n in zip(times, shape, strict=True))
    return reshape(broadcast_to(reshape(a, apart), tuple(spread)), whole)


def tile(a: Tensor, *repeats: Any) -> Tensor:
    """Return `a` repeated as by `repeat`; missing leading `repeats` are 1 (NumPy's and PyTorch's
    tile)."""
    check_tensors("tile", a=a)
    times = as_shape("tile", repeats)
    return repeat(a, *[1] * (a.ndim - len(times)), *times)


def repeat_interleave(
    a: Tensor, repeats: int | Sequence[int] | Tensor, axis: int | None = None
) -> Tensor:
    """Return `a` with each element repeated along `axis` (None: in the flattened tensor). `repeats`
    is one number for all elements, or one for each (NumPy's repeat). Raises TraceError while
    tracing if `repeats` is a Tensor without a value, because its values decide the shape.

    >>> ndl.repeat_interleave(ndl.arange(2), 2).numpy().tolist()
    [0, 0, 1, 1]
    """
    check_tensors("repeat_interleave", a=a)
    if axis is None:
        a, axis = reshape(a, (-1,)) if a.ndim != 1 else a, 0
    axis = normalize_axis("repeat_interleave", axis, a.ndim)
    shape = a.shape
    if isinstance(repeats, (int, np.integer)):
        times = count("repeat_interleave", "repeats", repeats, 0)
        spread = (*shape[: axis + 1], times, *shape[axis + 1 :])
        merged = (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])
        return reshape(broadcast_to(unsqueeze(a, axis + 1), spread), merged)
    each = repeats.numpy() if isinstance(repeats, Tensor) else np.asarray(repeats)
    if each.shape != (shape[axis],) or each.dtype.kind not in "iu" or (each < 0).any():
        raise ShapeError(
            f"repeat_interleave: repeats {each.tolist()} are not {shape[axis]} counts, one for "
            f"each element of axis {axis}"
        )
    return take(a, make_const(np.repeat(np.arange(shape[axis]), each), a.device), axis)


def roll(a: Tensor, shifts: int | Sequence[int], axes: Axes = None) -> Tensor:
    """Return `a` with its elements shifted along `axes` (None: in the flattened tensor) by
    `shifts`, one number for each axis. Elements shifted beyond the end reappear at the front.

    >>> ndl.roll(ndl.arange(4), 1).numpy().tolist()
    [3, 0, 1, 2]
    """
    values = unrecorded(a)
    if values is not None:
        rolled = values[0].roll(shifts, axes)
        if rolled is not None:
            return of_value(rolled)
    check_tensors("roll", a=a)
    steps = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    over = axes if isinstance(axes, (tuple, list)) else (axes,)
    if len(over) != len(steps):
        raise ShapeError(f"roll: shifts {shifts} are not one for each of the axes {axes}")
    if axes is None:
        return reshape(_rolled(reshape(a, (a.size,)), as_int(steps[0]), 0), a.shape)
    for step, axis in zip(steps, over, strict=True):
        a = _rolled(a, as_int(step), normalize_axis("roll", axis, a.ndim))
    return a


def _rolled(a: Tensor, step: int, axis: int) -> Tensor:
    n = a.shape[axis]
    if not isinstance(n, Expression):
        step = step % n if n else 0
    if step == 0:
        return a
    before = [slice(None)] * axis
    parts = [slice(-step, None), slice(None, -step)]
    return concat([get_slice(a, (*before, part)) for part in parts], axis)


def unbind(a: Tensor, axis: int = 0) -> TensorTuple:
    """Return the slices of `a` along `axis`, without that axis. This is PyTorch's name for
    `split`."""
    check_tensors("unbind", a=a)
    return split(a, axis)


def split_sizes(a: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Return parts of `a` along `axis`. `sizes` is a list of their sizes, or one size for all parts
    but the last, which may be smaller. This is PyTorch's split (needle's `split` is PyTorch's
    `unbind`). Raises ShapeError unless the sizes add up to the extent.

    >>> [part.shape for part in ndl.split_sizes(ndl.zeros(5), [2, 3])]
    [(2,), (3,)]
    """
    check_tensors("split_sizes", a=a)
    axis = normalize_axis("split_sizes", axis, a.ndim)
    n = a.shape[axis]
    if isinstance(sizes, (tuple, list)):
        extents = [as_extent(size) for size in sizes]
    elif isinstance(n, Expression):
        return split_sizes(a, _even(n, n // as_extent(sizes), as_extent(sizes)), axis)
    else:
        size = count("split_sizes", "sizes", sizes)
        extents = [min(size, n - start) for start in range(0, n, size)] or [0]
    if any(size < 0 for size in extents) or sum(extents) != n:
        raise ShapeError(f"split_sizes: sizes {sizes} do not add up to {n}, axis {axis}'s extent")
    parts, start = [], 0
    for size in extents:
        parts.append(get_slice(a, (*[slice(None)] * axis, slice(start, start + size))))
        start += size
    return tuple(parts)


def chunk(a: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Return at most `chunks` parts of `a` along `axis`, all of the same size except the last.

    >>> [part.shape for part in ndl.chunk(ndl.zeros(5), 2)]
    [(3,), (2,)]
    """
    check_tensors("chunk", a=a)
    axis = normalize_axis("chunk", axis, a.ndim)
    chunks = count("chunk", "chunks", chunks)
    n = a.shape[axis]
    if isinstance(n, Expression):
        return split_sizes(a, _even(n, chunks, n // chunks), axis)
    if n == 0:
        return split_sizes(a, [0] * chunks, axis)
    return split_sizes(a, -(-n // chunks), axis)


def _even(n: Expression, parts: Any, size: Any) -> list[Any]:
    """Return a list with `parts` copies of the symbolic `size`. Raises TraceError unless they add
    up to `n` at every size."""
    if isinstance(parts, Expression) or not same(n, parts * size):
        raise TraceError(
            f"tracing: the number of parts of an axis of size {n} is not known at every size; "
            "give the Dim a multiple_of"
        )
    return [size] * parts


def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the diagonal elements, at (i, i + offset) along the axes `axis1` and `axis2`. A new
    last axis replaces these two.

    >>> ndl.diagonal(ndl.Tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
    [1.0, 4.0]
    """
    check_tensors("diagonal", a=a)
    pair = normalize_axes("diagonal", (axis1, axis2), a.ndim)
    if pair != (a.ndim - 2, a.ndim - 1):
        a = moveaxis(a, pair, (-2, -1))
    rows, columns = a.shape[-2:]
    first = max(0, -offset)
    lead = a.shape[:-2]
    if isinstance(rows, Expression) or isinstance(columns, Expression):
        room, width = rows - first, columns - max(0, offset)
        length = room if room <= width else width
        start = first + offset
        column = reshape(arange(start, start + length, device=a.device), (length, 1))
        at = broadcast_to(column, (*lead, length, 1))
        part = get_slice(a, (Ellipsis, slice(first, first + length), slice(None)))
        return reshape(take_along_axis(part, at, -1), (*lead, length))
    length = min(rows - first, columns - max(0, offset))
    if length <= 0:
        return reshape(get_slice(a, (Ellipsis, slice(0, 0), slice(0, 0))), (*lead, 0))
    # In the flattened matrix, the next diagonal element is one row and one column further on.
    start = first * columns + max(0, offset)
    step = columns + 1
    stop = start + (length - 1) * step + 1
    flat = reshape(a, (*lead, rows * columns))
    return get_slice(flat, (Ellipsis, slice(start, stop, step)))


def pixel_shuffle(a: Tensor, upscale_factor: int) -> Tensor:
    """Return `a` (..., C * r ** 2, H, W) as (..., C, H * r, W * r), where r is `upscale_factor`:
    each group of r ** 2 channels becomes a square of pixels (Shi et al. 2016). Raises ShapeError
    unless r ** 2 divides the number of channels."""
    check_tensors("pixel_shuffle", a=a)
    r = count("pixel_shuffle", "upscale_factor", upscale_factor)
    channels = _channels("pixel_shuffle", a)
    if channels % (r * r) != 0:
        raise ShapeError(f"pixel_shuffle: {channels} channels are not a multiple of {r * r}")
    *lead, _, h, w = a.shape
    parts = reshape(a, (*lead, channels // (r * r), r, r, h, w))
    n = len(lead)
    moved = permute(parts, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return reshape(moved, (*lead, channels // (r * r), h * r, w * r))


def pixel_unshuffle(a: Tensor, downscale_factor: int) -> Tensor:
    """Return `a` (..., C, H * r, W * r) as (..., C * r ** 2, H, W), where r is `downscale_factor`:
    the inverse of `pixel_shuffle`. Raises ShapeError unless r divides the numbers of rows and
    columns."""
    check_tensors("pixel_unshuffle", a=a)
    r = count("pixel_unshuffle", "downscale_factor", downscale_factor)
    channels = _channels("pixel_unshuffle", a)
    *lead, _, h, w = a.shape
    if h % r != 0 or w % r != 0:
        raise ShapeError(f"pixel_unshuffle: image {(h, w)} is not a multiple of {r}")
    parts = reshape(a, (*lead, channels, h // r, r, w // r, r))
    n = len(lead)
    moved = permute(parts, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return reshape(moved, (*lead, channels * r * r, h // r, w // r))


def _channels(name: str, a: Tensor) -> Any:
    if a.ndim < 3:
        raise ShapeError(f"{name}: shape {a.shape} is not (..., channels, height, width)")
    return a.shape[-3]


def windows(a: Tensor, axis: int, size: int, step: int = 1) -> Tensor:
    """Return all windows of `size` elements along `axis`, `step` apart. A new last axis holds a
    window's elements (PyTorch's Tensor.unfold).

    >>> ndl.windows(ndl.arange(4), 0, size=2).numpy().tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    check_tensors("windows", a=a)
    axis = normalize_axis("windows", axis, a.ndim)
    size, step = count("windows", "size", size, 0), count("windows", "step", step)
    n = a.shape[axis]
    if size > n:
        raise ShapeError(f"windows: size {size} is above {n}, axis {axis}'s extent")
    starts = reshape(arange(0, n - size + 1, step, device=a.device), (-1, 1))
    index = starts + arange(size, device=a.device)
    return moveaxis(getitem(a, (*[slice(None)] * axis, index)), axis + 1, -1)
