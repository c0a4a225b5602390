"""Scans, sorts and weighted sums of NDArrays along one axis, and random numbers. They use the
device's own kernels if it has them, else NumPy on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import SMALL_INTEGER
from .ndarray import NDArray, array, wrap

_NATIVE = frozenset({"float32", "float64", "int32", "int64", "bool"})

Array = np.ndarray[Any, Any]


def run(name: str, *arrays: NDArray, **attributes: Any) -> Any:
    """Call the function `name` of this module on `arrays` of one dtype, with these `attributes`.
    Return one NDArray or a tuple of two."""
    device, dtype = arrays[0].device, arrays[0].view.dtype
    if dtype in SMALL_INTEGER:
        # Converting to int32 keeps the order of the values, and the low bits of results are right.
        out = run(name, *[x.astype("int32") for x in arrays], **attributes)
        if isinstance(out, tuple):
            return out[0].astype(dtype), *out[1:]
        return out if name == "searchsorted" else out.astype(dtype)
    kernel = getattr(device.kernels, name, None)
    if kernel is not None and all([x.view.dtype in _NATIVE for x in arrays]):
        out = kernel(*[x.view for x in arrays], *attributes.values())
        if isinstance(out, tuple):
            return tuple(wrap(device, part) for part in out)
        return wrap(device, out)
    with np.errstate(all="ignore"):
        out = globals()[name](*[x.numpy() for x in arrays], **attributes)
    if isinstance(out, tuple):
        return tuple(array(part, device=device) for part in out)
    return array(out, device=device)


def _along(x: Array, axis: int, reverse: bool) -> Array:
    """Return a view with `axis` first, reversed if the scan runs in reverse."""
    x = np.moveaxis(x, axis, 0)
    return x[::-1] if reverse else x


def cumsum(x: Array, axis: int, reverse: bool) -> Array:
    wide = "float64" if x.dtype.kind == "f" else x.dtype
    out = np.cumsum(_along(x, axis, reverse), 0, dtype=wide)
    return np.moveaxis(out[::-1] if reverse else out, 0, axis).astype(x.dtype)


def cumprod(x: Array, axis: int, reverse: bool) -> Array:
    wide = "float64" if x.dtype.kind == "f" else x.dtype
    out = np.cumprod(_along(x, axis, reverse), 0, dtype=wide)
    return np.moveaxis(out[::-1] if reverse else out, 0, axis).astype(x.dtype)


def logcumsumexp(x: Array, axis: int, reverse: bool) -> Array:
    out = np.logaddexp.accumulate(_along(x, axis, reverse).astype("float64"), 0)
    return np.moveaxis(out[::-1] if reverse else out, 0, axis).astype(x.dtype)


def resample(x: Array, index: Array, weight: Array, axis: int) -> Array:
    x = np.moveaxis(x, axis, -1)
    out = np.zeros((*x.shape[:-1], index.shape[1]), x.dtype)
    for places, factors in zip(index, weight, strict=True):
        out += np.where(factors == 0, 0, x[..., places]) * factors  # 0 * inf would be NaN
    return np.moveaxis(out, -1, axis)


def linear_scan(a: Array, b: Array, axis: int, reverse: bool) -> Array:
    out = np.array(b, dtype="float64")
    to, factor = _along(out, axis, reverse), _along(a, axis, reverse)
    for i in range(1, len(to)):
        to[i] += factor[i] * to[i - 1]
    return out.astype(b.dtype)


def cummax(x: Array, axis: int) -> tuple[Array, Array]:
    return _extreme(x, axis, np.greater_equal)


def cummin(x: Array, axis: int) -> tuple[Array, Array]:
    return _extreme(x, axis, np.less_equal)


def _extreme(x: Array, axis: int, beats: Any) -> tuple[Array, Array]:
    values, places = x.copy(), np.zeros(x.shape, "int64")
    v, p = np.moveaxis(values, axis, 0), np.moveaxis(places, axis, 0)
    for i in range(1, len(v)):
        taken = beats(v[i], v[i - 1]) | (v[i] != v[i])
        v[i] = np.where(taken, v[i], v[i - 1])
        p[i] = np.where(taken, i, p[i - 1])
    return values, places


def sort(x: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    if descending:
        # Stable in both directions: sort the reversed array, then reverse the result.
        n = x.shape[axis]
        places = n - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        places = np.argsort(x, axis, kind="stable")
    places = places.astype("int64")
    return np.take_along_axis(x, places, axis), places


def topk(x: Array, axis: int, descending: bool, k: int) -> tuple[Array, Array]:
    places = np.take(sort(x, axis, descending)[1], np.arange(k), axis)
    return np.take_along_axis(x, places, axis), places


def searchsorted(x: Array, values: Array, right: bool) -> Array:
    """Apply np.searchsorted to each row along the last axis. If a row is not sorted, which NumPy
    leaves undefined, the result is whatever the binary search below finds."""
    if x.ndim > 1:
        out = np.zeros(values.shape, "int64")
        for line in np.ndindex(x.shape[:-1]):
            out[line] = searchsorted(x[line], values[line], right)
        return out
    low, high = np.zeros(values.shape, "int64"), np.full(values.shape, len(x), "int64")
    for _ in range(len(x).bit_length()):
        middle = (low + high) // 2
        element = x[np.minimum(middle, len(x) - 1)]
        if right:
            before = (element <= values) | (values != values)
        else:
            before = (element < values) | ((values != values) & (element == element))
        before &= low < high
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    return low


def philox_words(key: int, counter: Array) -> list[Array]:
    """Compute Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
    section 4.3) with `key` for the blocks numbered `counter`. Return the four words of each block
    as four uint64 arrays with values below 2**32."""
    low = np.uint64(0xFFFFFFFF)
    counter = counter.astype(np.uint64)
    x = [counter & low, counter >> np.uint64(32), np.zeros_like(counter), np.zeros_like(counter)]
    keys = [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        k0, k1 = map(np.uint64, keys)
        half = np.uint64(32)
        x = [b >> half ^ x[1] ^ k0, b & low, a >> half ^ x[3] ^ k1, a & low]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def philox(state: Array, count: int, wide: bool) -> Array:
    """Return `count` random numbers in [0, 1), float64 if `wide`, else float32. `state` holds the
    key and the number of the first block. With n blocks, word j of the stream is word j // n of
    block j % n."""
    words = 2 * count if wide else count
    blocks = -(-words // 4)
    first = state.astype(np.uint64)[1]
    numbers = first + np.arange(blocks, dtype=np.uint64)
    stream = np.concatenate(philox_words(int(state.astype(np.uint64)[0]), numbers))[:words]
    if wide:
        bits = stream[:count] << np.uint64(32) | stream[count:]
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (stream >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
