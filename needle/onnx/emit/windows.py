"""Rules for sliding windows over images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.dtypes import value_in
from ._rules import Site, rule
from ._writer import Value, Writer
from .along_axis import added_at, counting


@rule(ops.SlidingWindows)
def sliding_windows(s: Site, x: Value) -> Value:
    value = value_in("sliding_windows", s.op.value, x.dtype)
    return windows(s.w, x, s.op.window, s.out.shape[1:3], value)


@rule(ops.OverlapAdd)
def overlap_add(s: Site, x: Value) -> Value:
    return overlapped(s.w, x, s.op.window_of(x.extents), s.out.shape[1:3])


def windows(w: Writer, x: Value, window: Any, counts: Any, value: Any) -> Value:
    """Return every `window` of `x` (N, H, W, C), padded with `value`, as (N, rows, columns, kh, kw,
    C) in the graph of `w`. `counts` is (rows, columns)."""
    p, q = window.padding
    x = w.pad(x, [(0, 0), (p, p), (q, q), (0, 0)], value)
    for i, axis in enumerate((1, 3)):
        x = w.gather(x, _places(w, counts[i], window, i), axis)
    return w.transpose(x, (0, 1, 3, 2, 4, 5))


def overlapped(w: Writer, x: Value, window: Any, size: Any) -> Value:
    """Put windows `x` (N, rows, columns, kh, kw, C) back into images (N, *`size`, C), adding them
    where they overlap, in the graph of `w`. `window` is their geometry."""
    n, *counts, _, _, c = x.extents[:3] + x.extents[3:]
    rows, columns = (_places(w, count, window, i) for i, count in enumerate(counts[:2]))
    high, wide = window.padded(size)
    (r, kh), (s, kw) = rows.extents, columns.extents
    rows = w.op("Mul", rows, w.number(wide, "int64"))
    flat = w.op("Add", w.reshape(rows, (r, 1, kh, 1)), w.reshape(columns, (1, s, 1, kw)))
    total = r * s * kh * kw
    updates = w.reshape(w.transpose(x, (1, 2, 3, 4, 0, 5)), (total, n, c))
    base = w.full(0, x.dtype, (high * wide, n, c))
    out = added_at(w, base, w.reshape(flat, (total,)), updates)
    out = w.reshape(out, (high, wide, n, c))
    if any(window.padding):
        begin, end = window.padding, [p + m for p, m in zip(window.padding, size, strict=True)]
        out = w.slice(out, (0, 1), begin, end, shape=(*size, n, c))
    return w.transpose(out, (2, 0, 1, 3))


def _places(w: Writer, count: Any, window: Any, i: int) -> Value:
    """Return the position along axis i of each tap of each window: (count, kernel)."""
    taps = np.arange(window.kernel[i]) * window.dilation[i]
    if isinstance(count, int):
        return w.constant(np.arange(count)[:, None] * window.stride[i] + taps, "int64")
    step = w.constant(window.stride[i], "int64")
    line = w.reshape(counting(w, count), (count, 1))
    return w.op("Add", w.op("Mul", line, step), w.constant(taps[None], "int64"))
