"""Resizing of images. Each axis is resampled separately."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import init, ops
from ...autograd.dispatch import apply
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray import Device, NDArray, array
from ...backend_ndarray.arguments import count
from ...backend_ndarray.dtypes import is_floating
from ...errors import ShapeError, TraceError
from ...ops._arguments import check_tensors
from ...ops.resample import Resample
from ...sizes.dims import Expression
from ...sizes.extents import is_symbolic, same
from .pool import AXES, averaged

# The number of axes for each mode that takes a fixed number.
_AXES_OF = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
_NEAREST = ("nearest", "nearest-exact")
_MODES = (*_NEAREST, "area", *_AXES_OF)


def interpolate(
    x: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Return x (N, C, L), (N, C, H, W) or (N, C, D, H, W) with its last axes resized to `size` or
    by `scale_factor`. Either is a number for each axis, or one for all.

    `mode` is nearest (PyTorch's rule), nearest-exact, area (means of windows), linear, bilinear or
    trilinear (for one, two or three axes), or bicubic (for two axes, with a = -0.75: Keys 1981).
    With `align_corners`, the centres of the outermost elements stay in place, otherwise their outer
    edges do. `recompute_scale_factor` replaces scale_factor by the ratio of the sizes, which
    differs from it if a size was rounded down. `antialias`, for bilinear and bicubic (then with a =
    -0.5), widens the filter if an axis shrinks.

    Raises ShapeError for other numbers of axes, TypeError for integers unless the mode is nearest
    or nearest-exact, and ValueError for unknown modes and invalid sizes. An axis of symbolic extent
    can be resized to a size, or by a scale_factor that is an integer divided by a power of 2, such
    as 2 or 1.5. It supports neither antialias nor the mode area.
    """
    check_tensors("interpolate", x=x)
    axes = x.ndim - 2
    if not 1 <= axes <= 3:
        raise ShapeError(
            f"interpolate: x has shape {x.shape}, not (N, C, ...) with 1 to 3 more axes"
        )
    if any(same(n, 0) for n in x.shape[2:]):
        raise ShapeError(f"interpolate: x of shape {x.shape} has an axis without elements")
    _check_mode(x, mode, axes, align_corners, antialias)
    new, factors = _sizes(x.shape[2:], size, scale_factor, axes)
    if recompute_scale_factor:
        factors = [f if f is not None and f == int(f) else None for f in factors]
    if mode == "area":
        for axis, m in enumerate(new, 2):
            x = x if same(m, x.shape[axis]) else averaged(x, axis, m)
        return x
    return resized(x, new, factors, mode, bool(align_corners), antialias)


def resized(
    x: Tensor,
    sizes: Sequence[Any],
    factors: Sequence[float | None],
    mode: str,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Resize x (N, C, ...) to these `sizes`, without checks, in any mode of `interpolate` but area.
    A factor of None means the ratio of the sizes, which may be symbolic."""
    if mode in _NEAREST:
        repeats = [_repeats(*each) for each in zip(x.shape[2:], sizes, factors, strict=True)]
        if all(repeats):
            return _repeated(x, repeats)
    axes = list(zip(range(2, x.ndim), sizes, factors, strict=True))
    if not is_symbolic((*x.shape[2:], *sizes)):
        # Begin with the axis that shrinks most, because that leaves the least work; of equal ones,
        # with the last, because it is contiguous.
        axes.sort(key=lambda each: (each[1] / x.shape[each[0]], -each[0]))
    kind = Filter(mode in ("bicubic", "cubic"), align_corners, antialias)
    for axis, m, factor in axes:
        if mode in _NEAREST:
            x = _nearest(x, axis, m, factor, mode)
        else:
            x = _blended(x, axis, m, factor, kind)
    return x


def _check_mode(
    x: Tensor, mode: str, axes: int, align_corners: bool | None, antialias: bool
) -> None:
    if mode not in _MODES:
        raise ValueError(f"interpolate: mode {mode!r} is not one of {', '.join(_MODES)}")
    if _AXES_OF.get(mode, axes) != axes:
        wanted = AXES[_AXES_OF[mode] - 1]
        raise ShapeError(f"interpolate: mode {mode!r} takes (N, C, {wanted}), not {x.shape}")
    if align_corners is not None and mode not in _AXES_OF:
        raise ValueError(f"interpolate: align_corners is not for mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"interpolate: antialias is for bilinear and bicubic, not for {mode!r}")
    if mode not in _NEAREST and not is_floating(x.dtype):
        raise TypeError(f"interpolate: mode {mode!r} takes floats, not {x.dtype}")


def _sizes(
    old: Sequence[int], size: Any, scale_factor: Any, axes: int
) -> tuple[list[int], list[float | None]]:
    """Return the new extents and the given factors."""
    if (size is None) == (scale_factor is None):
        raise ValueError("interpolate: give either size or scale_factor")
    what, given = ("size", size) if scale_factor is None else ("scale_factor", scale_factor)
    values = list(given) if isinstance(given, (tuple, list)) else [given] * axes
    values = [v.item() if isinstance(v, np.generic) else v for v in values]
    if len(values) != axes:
        raise ValueError(
            f"interpolate: {what} {given!r} must be one number, or a sequence of {axes} numbers"
        )
    if scale_factor is None:
        return [count("interpolate", "size", n) for n in values], [None] * axes
    new = []
    for n, factor in zip(old, values, strict=True):
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not is_number or not 0 < factor < math.inf:
            raise ValueError(f"interpolate: scale_factor {factor!r} is not a number above 0")
        new.append(_scaled(n, factor))
        if same(new[-1], 0):
            raise ValueError(f"interpolate: scale_factor {factor} leaves nothing of {n} elements")
    return new, values


def _scaled(n: int, factor: float) -> int:
    if not isinstance(n, Expression):
        return math.floor(n * factor)
    over, under = float(factor).as_integer_ratio()
    if under > 64:
        raise TraceError(
            f"interpolate: with the symbolic extent {n}, scale_factor must be an integer divided "
            f"by a power of 2 (like 2 or 1.5), but it is {factor}"
        )
    return n * over // under


def _repeats(n: int, m: int, factor: float | None) -> int:
    """Return how often each of n elements is repeated when the nearest rule resizes them to m; 0 if
    the elements are not repeated equally often."""
    if factor is not None:
        return int(factor) if factor == int(factor) and same(m, n * int(factor)) else 0
    if not is_symbolic((n, m)):
        return m // n if m % n == 0 else 0
    return next((times for times in range(1, 9) if same(m, n * times)), 0)


def _repeated(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Return x with each element of the axes after (N, C) repeated as often as `repeats` says."""
    spread, wide, merged = list(x.shape[:2]), list(x.shape[:2]), list(x.shape[:2])
    for n, times in zip(x.shape[2:], repeats, strict=True):
        spread += [n, 1]
        wide += [n, times]
        merged.append(n * times)
    return ops.reshape(ops.broadcast_to(ops.reshape(x, spread), wide), merged)


def _nearest(x: Tensor, axis: int, m: int, factor: float | None, mode: str) -> Tensor:
    n = x.shape[axis]
    if same(n, m):
        return x
    # Positions are float32, as in PyTorch, because their rounding decides between two elements that
    # are equally near.
    shift = np.float32(0.5 if mode == "nearest-exact" else 0)
    if is_symbolic((n, m)):
        ratio = Filter(False, False, False).ratio(n, m, factor, x.device)
        at = (ops.arange(m, dtype="float32", device=x.device) + shift) * ratio
        return ops.take(x, ops.minimum(ops.floor(at), n - 1).astype("int64"), axis)
    ratio = np.float32(n / m if factor is None else 1 / factor)
    index = np.minimum(np.floor((np.arange(m, dtype="float32") + shift) * ratio), n - 1)
    return ops.take(x, make_const(index.astype("int64"), x.device), axis)


@dataclass(frozen=True)
class Filter:
    """The rule for computing a new element from the old elements around it."""

    is_cubic: bool
    align_corners: bool
    antialias: bool

    def ratio(self, n: Any, m: Any, factor: float | None, device: Device | None = None) -> Any:
        """Return the distance between neighbouring new elements, in units of the distance between
        old ones, for n old and m new elements. It is a number or, for symbolic sizes, a float32
        Tensor on `device`."""
        if factor is not None and not self.align_corners:
            return 1 / factor
        over, under = (n - 1, m - 1) if self.align_corners else (n, m)
        if not is_symbolic((over, under)):
            return over / under if under > 0 else 0.0
        return _number(over, device) / ops.maximum(_number(under, device), 1.0)

    def taps(self, xp: Any, at: Any, n: int, ratio: float) -> list[tuple[Any, Any]]:
        """Return the positions and the weights of the old elements from which the new elements `at`
        are computed, as a list of pairs. `xp` is NumPy or needle.ops."""
        centre = at * ratio if self.align_corners else (at + 0.5) * ratio - 0.5
        if not self.is_cubic:
            centre = xp.minimum(xp.maximum(centre, 0), n - 1)
        low = xp.floor(centre)
        share = centre - low
        weights = cubic_weights(share) if self.is_cubic else [1 - share, share]
        first = low - (1 if self.is_cubic else 0)
        places = (xp.minimum(xp.maximum(first + i, 0), n - 1) for i in range(len(weights)))
        return [
            (place.astype("int64"), weight) for place, weight in zip(places, weights, strict=True)
        ]

    def table(self, n: int, m: int, factor: float | None) -> tuple[Any, Any]:
        """Return the positions and the weights, each (taps, m), with which the m new elements are
        computed from the n old ones."""
        ratio = self.ratio(n, m, factor)
        if self.antialias:
            return _wide_taps(n, m, ratio, self.is_cubic)
        places, weights = zip(*self.taps(np, np.arange(m), n, ratio), strict=True)
        return np.stack(places), np.stack(weights)


def _number(n: Any, device: Device | None) -> Tensor:
    """Return an extent, which may be symbolic, as a 0-d float32 Tensor."""
    return init.zeros(dtype="float32", device=device, requires_grad=False) + n


def _wide_taps(n: int, m: int, ratio: float, is_cubic: bool) -> tuple[Any, Any]:
    """Return the positions and the weights, each (taps, m), with which an antialiasing filter
    computes m new elements from n old ones. If `ratio`, the distance between new elements, is above
    1, the filter is that many times wider. Positions outside the filter have weight 0."""
    wide = max(ratio, 1.0)
    reach = (2 if is_cubic else 1) * wide
    centre = (np.arange(m) + 0.5) * ratio
    first = np.maximum((centre - reach + 0.5).astype("int64"), 0)
    end = np.minimum((centre + reach + 0.5).astype("int64"), n)
    places = first[None] + np.arange((end - first).max())[:, None]
    distance = np.abs((places - centre + 0.5) / wide)
    if is_cubic:
        near, far = (_cubic(distance, -0.5, is_near) for is_near in (True, False))
        weights = np.where(distance < 1, near, np.where(distance < 2, far, 0))
    else:
        weights = np.maximum(1 - distance, 0)
    weights = np.where(places < end, weights, 0)
    return np.minimum(places, n - 1), weights / weights.sum(0)


def cubic_weights(share: Any) -> list[Any]:
    """Return the weights of the four elements around a point that lies `share` beyond the second
    element."""
    distances = (share + 1, share, 1 - share, 2 - share)
    return [_cubic(d, -0.75, i in (1, 2)) for i, d in enumerate(distances)]


def _cubic(distance: Any, a: float, is_near: bool) -> Any:
    """Return the weight of an element at a distance up to 1 (if `is_near`) or from 1 to 2 (Keys
    1981, equation 4)."""
    if is_near:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    return ((distance - 5) * distance + 8) * distance * a - 4 * a


def _blended(x: Tensor, axis: int, m: int, factor: float | None, kind: Filter) -> Tensor:
    n = x.shape[axis]
    if same(n, m) and (kind.align_corners or factor in (None, 1)):
        return x
    if is_symbolic((n, m)):
        return _by_takes(x, axis, m, factor, kind)
    tables = _tables(kind, n, m, factor, x.dtype, x.device)
    return apply(Resample(axis), (x, *map(make_const, tables)))


@functools.lru_cache(maxsize=64)
def _tables(
    kind: Filter, n: int, m: int, factor: float | None, dtype: str, device: Device
) -> tuple[NDArray, ...]:
    """Return the tables with which Resample resizes n elements to m: positions and weights, and
    those of the transposed operation."""
    return resample_tables(*kind.table(n, m, factor), n, dtype, device)


def resample_tables(
    places: Any, weights: Any, n: int, dtype: str, device: Device
) -> tuple[NDArray, ...]:
    """Return the tables that Resample takes besides x, as NDArrays: `places` (taps, m) in 0..n - 1,
    `weights` (taps, m), and the same for the transposed sums."""
    tables = (places, weights, *_reversed(places, weights, n))
    return tuple(
        array(each, dtype=dtype if each.dtype.kind == "f" else None, device=device)
        for each in tables
    )


def _reversed(places: Any, weights: Any, n: int) -> tuple[Any, Any]:
    """For each of the n old elements, return the new elements that use it, and its weights in
    them."""
    order = np.argsort(places, axis=None, kind="stable")
    place = places.ravel()[order]
    number = np.arange(place.size) - np.searchsorted(place, place)  # index among the place's uses
    out = np.zeros((max(number.max(initial=0) + 1, 1), n), "int64")
    factors = np.zeros(out.shape)
    out[number, place] = order % places.shape[1]
    factors[number, place] = weights.ravel()[order]
    return out, factors


def _by_takes(x: Tensor, axis: int, m: Any, factor: float | None, kind: Filter) -> Tensor:
    """Resample an axis of symbolic extent. The positions are computed at each call."""
    n = x.shape[axis]
    if kind.antialias:
        raise TraceError(
            f"interpolate: axis {axis} has the symbolic extent {n}, which does not work with "
            "antialias"
        )
    ratio = kind.ratio(n, m, factor, x.device)
    wide = x.dtype == "float64" and not isinstance(ratio, Tensor)
    at = ops.arange(m, dtype="float64" if wide else "float32", device=x.device)
    total: Any = 0
    behind = (1,) * (x.ndim - axis - 1)
    for places, weights in kind.taps(ops, at, n, ratio):
        weights = ops.reshape(weights.astype(x.dtype), (m, *behind))
        total = ops.take(x, places, axis) * weights + total
    return total
