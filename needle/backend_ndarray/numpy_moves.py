"""The reference device's view functions and small composite functions.

Functions that return a view of the same memory return None for arguments that do not fit or are not
plain (ints, slices of ints, None, Ellipsis, tuples and lists). NDArray then handles the arguments
itself.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from . import indexing
from .dtypes import FLOATING, astype, result_type
from .numpy_elementwise import narrow, operands, own, wide
from .numpy_view import View

_FITS = (IndexError, TypeError, ValueError)


def _plain(value: Any) -> bool:
    """Return whether a value is an int, None, Ellipsis, or a slice, tuple or list of such
    values."""
    if isinstance(value, slice):
        return _plain((value.start, value.stop, value.step))
    if type(value) in (tuple, list):
        return all(map(_plain, value))
    return value is None or value is Ellipsis or type(value) is int


def _view(x: View, shape: Any, strides: Any, offset: int) -> View:
    return View(x.buffer, shape, strides, offset)


def _numbers(given: Any) -> tuple[int, ...]:
    """Return the numbers in `given` as a tuple. `given` is one int, or a tuple or list, possibly
    inside another tuple."""
    if type(given) is tuple and len(given) == 1 and type(given[0]) in (tuple, list):
        given = given[0]
    return tuple(given) if type(given) in (tuple, list) else (given,)


def index(x: View, key: Any) -> View | None:
    """Return x[key] for ints, slices, None and Ellipsis."""
    if not _plain(key) or not indexing.is_basic(key):
        return None
    try:
        return _view(x, *indexing.basic_layout(key, x.shape, x.strides, x.offset))
    except _FITS:
        return None


def reshape(x: View, shape: Any) -> View | None:
    """Return the same elements in another shape. One extent may be -1."""
    if not _plain(shape) or shape is None:
        return None
    try:
        new = indexing.resolve_shape(_numbers(shape), x.size)
    except _FITS:
        return None
    if x.is_compact or not x.size:
        return _view(x, new, indexing.compact_strides(new), x.offset)
    strides = indexing.reshaped_strides(x.shape, x.strides, new)
    return own(x.np.reshape(new)) if strides is None else _view(x, new, strides, x.offset)


def permute(x: View, axes: Any) -> View | None:
    """Return x with its axes in the order of `axes`, which names each axis once."""
    if not _plain(axes) or axes is None:
        return None
    try:
        order = indexing.normalize_axes(_numbers(axes), x.ndim, "permute")
    except _FITS:
        return None
    if len(order) != x.ndim:
        return None
    return _view(x, [x.shape[i] for i in order], [x.strides[i] for i in order], x.offset)


def transpose(x: View, pair: Any) -> View | None:
    """Return x with two axes exchanged; None means the last two."""
    if not _plain(pair) or x.ndim < 2:
        return None
    try:
        given = (-2, -1) if pair is None else _numbers(pair)
        axes = indexing.normalize_axes(given, x.ndim, "transpose")
    except _FITS:
        return None
    if len(axes) != 2:
        return None
    order = list(range(x.ndim))
    order[axes[0]], order[axes[1]] = axes[1], axes[0]
    return permute(x, tuple(order))


def diagonal(x: View, offset: Any, axis1: Any, axis2: Any) -> View | None:
    """Return a view whose last axis holds the elements (i, i + offset) of two axes."""
    if not all(type(n) is int for n in (offset, axis1, axis2)):
        return None
    try:
        first, second = indexing.normalize_axes((axis1, axis2), x.ndim, "diagonal")
    except _FITS:
        return None
    rows, columns = x.shape[first], x.shape[second]
    row, column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - row, columns - column), 0)
    others = [i for i in range(x.ndim) if i not in (first, second)]
    shape = [*(x.shape[i] for i in others), count]
    strides = [*(x.strides[i] for i in others), x.strides[first] + x.strides[second]]
    begin = row * x.strides[first] + column * x.strides[second] if math.prod(shape) else 0
    return _view(x, shape, strides, x.offset + begin)


def roll(x: View, shifts: Any, axes: Any) -> View | None:
    """Shift the elements by `shifts` along distinct axes. Elements that pass the end wrap around to
    the front."""
    if not _plain(shifts) or not _plain(axes) or shifts is None or axes is None:
        return None
    try:
        along = indexing.normalize_axes(_numbers(axes), x.ndim, "roll")
    except _FITS:
        return None
    by = _numbers(shifts)
    return own(np.roll(x.np, by, along)) if len(by) == len(along) else None


def mean(x: View, axes: Any, keepdims: bool) -> View:
    """Return the mean over axes (None: all). The mean of integers is float64."""
    over = indexing.normalize_axes(None if axes is None else _numbers(axes), x.ndim, "mean")
    with np.errstate(all="ignore"):
        values = wide(x.np) if x.dtype in FLOATING else x.np.astype("float64")
        total = np.sum(values, axis=over, keepdims=keepdims, dtype="float64").astype(values.dtype)
        found = total / values.dtype.type(math.prod(x.shape[a] for a in over))
        return own(astype(np.asarray(found), x.dtype) if x.dtype in FLOATING else found)


def concat(parts: tuple[View, ...], axis: int, stacked: bool) -> View:
    """Join the parts along an axis or, if `stacked`, along a new axis."""
    if not parts:
        raise ValueError("concat: there are no parts to join")
    dtype = functools.reduce(result_type, [part.dtype for part in parts])
    with np.errstate(all="ignore"):
        arrays = [astype(part.np, dtype) for part in parts]
        return own((np.stack if stacked else np.concatenate)(arrays, axis))


def kron(a: View, b: View) -> View:
    """Return the Kronecker product. Raises ValueError for more than 8 axes."""
    if max(a.ndim, b.ndim) > 8:
        raise ValueError(f"kron: shapes {a.shape} and {b.shape} have more than 8 axes")
    with np.errstate(all="ignore"):
        x, y, dtype = operands(a, b)
        return own(narrow(np.kron(x, y), dtype))


def softmax(x: View, axis: int, log: bool) -> View:
    """Return exp(x) / sum(exp(x)) along an axis, or its logarithm. For integers, the computation is
    in float64."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"softmax: axis {axis} is out of range for shape {x.shape}")
    axis = int(axis)  # NumPy does not accept a bool
    with np.errstate(all="ignore"):
        values = wide(x.np) if x.dtype in FLOATING else x.np.astype("float64")
        if values.size:
            values = values - np.max(values, axis=axis, keepdims=True)
            terms = np.exp(values)
            total = np.sum(terms, axis=axis, keepdims=True)
            values = values - np.log(total) if log else terms / total
        return own(narrow(values, x.dtype) if x.dtype in FLOATING else values)
