"""The reference device's convolutions of NumPy arrays, computed tap by tap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pair = Sequence[int]


def _counts(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> list[int]:
    counts = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        if k < 1 or s < 1 or p < 0 or d < 1 or room < 0:
            raise ValueError(f"conv2d: no window of {k} fits {n} (padding {p}, dilation {d})")
        counts.append(room // s + 1)
    return counts


def _taps(kernel: Pair, counts: Pair, stride: Pair, dilation: Pair) -> Iterator[tuple[Any, ...]]:
    """Yield (row, column, key) of each tap. The key selects the tap's elements of a padded
    image."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            at = [i * dilation[0], j * dilation[1]]
            spans = [
                slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(at, stride, counts, strict=True)
            ]
            yield i, j, (slice(None), *spans)


def _padded(x: Array, padding: Pair) -> Array:
    (p, q) = padding
    return np.pad(x, ((0, 0), (p, p), (q, q), (0, 0)))


def conv2d(x: Array, w: Array, stride: Pair, padding: Pair, dilation: Pair) -> Array:
    """See convolution.conv2d."""
    if x.shape[3] != w.shape[2]:
        raise ValueError(f"conv2d: {x.shape} and {w.shape} do not match")
    counts = _counts(x.shape[1:3], w.shape[:2], stride, padding, dilation)
    out = np.zeros((x.shape[0], *counts, w.shape[3]), x.dtype)
    x = _padded(x, padding)
    for i, j, key in _taps(w.shape[:2], counts, stride, dilation):
        out += x[key] @ w[i, j]
    return out


def conv2d_input(
    g: Array, w: Array, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Array:
    """See convolution.conv2d_input."""
    counts = _counts(size, w.shape[:2], stride, padding, dilation)
    if g.shape[1:] != (*counts, w.shape[3]):
        raise ValueError(f"conv2d_input: {g.shape} and {w.shape} do not match for size {size}")
    (h, width), (p, q) = size, padding
    out = np.zeros((g.shape[0], h + 2 * p, width + 2 * q, w.shape[2]), g.dtype)
    for i, j, key in _taps(w.shape[:2], counts, stride, dilation):
        out[key] += g @ w[i, j].T
    return out[:, p : p + h, q : q + width]


def conv2d_weight(
    x: Array, g: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Array:
    """See convolution.conv2d_weight."""
    counts = _counts(x.shape[1:3], kernel, stride, padding, dilation)
    if g.shape[:3] != (x.shape[0], *counts):
        raise ValueError(f"conv2d_weight: {x.shape} and {g.shape} do not match for {kernel}")
    out = np.zeros((*kernel, x.shape[3], g.shape[3]), x.dtype)
    x = _padded(x, padding)
    for i, j, key in _taps(kernel, counts, stride, dilation):
        out[i, j] = np.tensordot(x[key], g, axes=((0, 1, 2), (0, 1, 2)))
    return out
