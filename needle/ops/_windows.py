"""Geometry of windows that slide over the rows and columns of (N, H, W, C) tensors.

Convolution, pooling, `SlidingWindows` and `OverlapAdd` use this geometry.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..autograd.shapes import Spec
from ..backend_ndarray import NDArray, zeros
from ..backend_ndarray.arguments import LARGEST
from ..backend_ndarray.dtypes import is_floating
from ..errors import ShapeError
from ..op.signatures import Expr, Extent, TeNamespace, TeTensor
from ..sizes.extents import as_extent
from . import _te

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]


class Window(NamedTuple):
    """Kernel extents, stride, padding (zeros on both sides of the input) and dilation, each as
    (rows, columns)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def counts(self, name: str, size: Sequence[int]) -> Pair:
        """Return the number of windows that fit an input of `size`, as (rows, columns). Raises
        ShapeError if none fits."""
        out = []
        for n, k, s, p, d in zip(size, *self, strict=True):
            reach = d * (k - 1) + 1
            if n + 2 * p < reach:
                raise ShapeError(
                    f"{name}: an extent of {n} with padding {p} is smaller than a window of {k} "
                    f"(dilation {d})"
                )
            out.append((n + 2 * p - reach) // s + 1)
        return out[0], out[1]

    def padded(self, size: Pair) -> Pair:
        """Return `size` including the padding on both sides."""
        return size[0] + 2 * self.padding[0], size[1] + 2 * self.padding[1]

    def keys(self, counts: Sequence[int]) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
        """Return (row, column, key) for each tap: `key` selects that tap's elements of a padded
        input."""
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                at = (i, j)
                spans = [
                    slice(a * d, a * d + s * (n - 1) + 1, s)
                    for a, d, s, n in zip(at, self.dilation, self.stride, counts, strict=True)
                ]
                yield i, j, (slice(None), *spans)


def as_window(
    name: str, kernel: IntOrPair, stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair
) -> Window:
    """Return a Window from ints or pairs. Raises TypeError or ValueError for anything else."""
    given = (tuple(v) if isinstance(v, list) else v for v in (kernel, stride, padding, dilation))
    # An unhashable value cannot be a cache key, and is not an int: its repr raises the error.
    return _as_window(name, *(v if isinstance(v, Hashable) else repr(v) for v in given))


@functools.lru_cache(maxsize=4096, typed=True)
def _as_window(
    name: str, kernel: IntOrPair, stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair
) -> Window:
    return Window(
        pair(name, "kernel", kernel, 1),
        pair(name, "stride", stride, 1),
        pair(name, "padding", padding, 0),
        pair(name, "dilation", dilation, 1),
    )


def pair(name: str, what: str, value: IntOrPair, least: int) -> Pair:
    try:
        given = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
        rows, columns = (as_extent(v) for v in given)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {what} {value!r} must be an int or a pair of ints") from None
    if rows < least or columns < least:
        raise ValueError(f"{name}: {what} {value} must be at least {least}")
    if rows > LARGEST or columns > LARGEST:
        raise ValueError(f"{name}: {what} {value} must be below 2**63")
    return rows, columns


# On NDArrays


def pad(x: NDArray, window: Window, value: float = 0) -> NDArray:
    """Return x with `value` around its rows and columns (x itself if there is no padding)."""
    (p, q) = window.padding
    return x.pad(((0, 0), (p, p), (q, q), (0, 0)), value) if p or q else x


def windows(x: NDArray, window: Window, counts: Sequence[int]) -> NDArray:
    """Return a view (N, *counts, *kernel, C) of a padded x (N, H, W, C)."""
    n, _, _, c = x.shape
    shape = (n, *counts, *window.kernel, c)
    batch, row, column, channel = x.strides
    (s, t), (d, e) = window.stride, window.dilation
    strides = (batch, row * s, column * t, row * d, column * e, channel)
    if 0 in shape:
        return zeros(shape, x.dtype, x.device)
    return x.as_strided(shape, strides)


def overlap(x: NDArray, window: Window, size: Pair) -> NDArray:
    """Sum windows (N, rows, columns, *kernel, C) where they overlap: (N, *size, C)."""
    n, c = x.shape[0], x.shape[5]
    out = zeros((n, *window.padded(size), c), x.dtype, x.device)
    for i, j, key in window.keys(x.shape[1:3]):
        out[key] = out[key] + x[:, :, :, i, j]
    (p, q) = window.padding
    return out[:, p : p + size[0], q : q + size[1]] if p or q else out


# On te.Tensors


def pad_te(k: TeNamespace, x: TeTensor, window: Window, value: Expr | None = None) -> TeTensor:
    """Return x padded as by `pad`; a `value` of None means zero."""
    (p, q), (n, h, w, c) = window.padding, x.shape
    if not p and not q:
        return x
    around = _te.full_like(k, x, 0) if value is None else value

    def body(b: Expr, i: Expr, j: Expr, f: Expr) -> Expr:
        inside = k.tirx.all(i >= p, i < h + p, j >= q, j < w + q)
        return k.tirx.if_then_else(inside, x[b, i - p, j - q, f], around)

    return k.te.compute((n, h + 2 * p, w + 2 * q, c), body, name="pad")


def counts_te(window: Window, h: Extent, w: Extent) -> list[Extent]:
    """Return the number of windows as `Window.counts` does, for extents that may be symbolic."""
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip((h, w), *window, strict=True)
    ]


def windows_at(
    k: TeNamespace, window: Window, y: Expr, x: Expr, i: Expr, j: Expr
) -> tuple[Expr, Expr, list[Expr]]:
    """Return (row, column, conditions) of the window whose tap (i, j) lies at (y, x) of the input;
    the window exists if all conditions hold."""
    out, hits = [], []
    for at, tap, s, p, d in zip((y, x), (i, j), *window[1:], strict=True):
        ahead = at + p - tap * d
        out.append(k.tirx.floordiv(ahead, s))
        hits += [ahead >= 0, k.tirx.floormod(ahead, s) == 0]
    return out[0], out[1], hits


def check_rank(name: str, what: str, x: Spec, ndim: int) -> None:
    """Raise ShapeError unless x has `ndim` axes."""
    if x.ndim != ndim:
        raise ShapeError(f"{name}: {what} has shape {x.shape}, not {ndim} axes")


def lowest(dtype: str) -> float:
    """Return the least value of a float or integer dtype (minus infinity for floats)."""
    return float("-inf") if is_floating(dtype) else int(np.iinfo(dtype).min)
