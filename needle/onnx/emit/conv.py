"""Rules for convolutions and their gradients. If ONNX Runtime has no kernel (float64, integers),
they become matrix products, as on needle's devices."""

from __future__ import annotations

from math import prod
from typing import Any

from ... import ops
from ._dtypes import has_kernel
from ._layouts import convolved, transposed_convolved
from ._rules import Site, rule
from ._writer import Value, Writer
from .windows import overlapped, windows


@rule(ops.Conv)
def conv(s: Site, x: Value, weight: Value) -> Value:
    if has_kernel("Conv", s.out.dtype):
        return convolved(s, s.node, None)
    w, out, groups = s.w, s.out, s.op.groups
    x, weight = w.cast(x, out.dtype), w.cast(weight, out.dtype)
    seen = _columns(w, x, s.op.window(weight.extents), out.shape[1:3], groups)
    product: Value = w.node("MatMul", seen, _weights(w, weight, groups))
    product.shape = (groups, prod(out.shape[:3]), out.shape[3] // groups)
    return w.reshape(w.transpose(product, (1, 0, 2)), out.shape)


@rule(ops.ConvInput)
def conv_input(s: Site, g: Value, weight: Value) -> Value:
    if has_kernel("ConvTranspose", s.out.dtype):
        return transposed_convolved(s, s.node, None)
    w, out, groups = s.w, s.out, s.op.groups
    g, weight = w.cast(g, out.dtype), w.cast(weight, out.dtype)
    window, each = s.op.window(weight.extents), out.shape[3] // groups
    back = w.transpose(_weights(w, weight, groups), (0, 2, 1))
    seen: Value = w.node("MatMul", _rows(w, g, groups), back)
    seen = w.reshape(seen, (groups, *g.extents[:3], *window.kernel, each))
    seen = w.transpose(seen, (1, 2, 3, 4, 5, 0, 6))
    seen = w.reshape(seen, (*g.extents[:3], *window.kernel, out.shape[3]))
    return overlapped(w, seen, window, out.shape[1:3])


@rule(ops.ConvWeight)
def conv_weight(s: Site, x: Value, g: Value) -> Value:
    w, out, groups = s.w, s.out, s.op.groups
    x, g = w.cast(x, out.dtype), w.cast(g, out.dtype)
    seen = _columns(w, x, s.op.window(out.shape), g.extents[1:3], groups)
    product: Value = w.node("MatMul", w.transpose(seen, (0, 2, 1)), _rows(w, g, groups))
    product.shape = (groups, prod(out.shape[:3]), out.shape[3] // groups)
    return w.reshape(w.transpose(product, (1, 0, 2)), out.shape)


def _columns(w: Writer, x: Value, window: Any, counts: Any, groups: int) -> Value:
    """Return the windows of x as one matrix per group: (G, N * rows * columns, kh * kw * C / G)."""
    n, each = x.extents[0], x.extents[3] // groups
    seen = windows(w, x, window, counts, 0)
    seen = w.reshape(seen, (n, *counts, *window.kernel, groups, each))
    seen = w.transpose(seen, (5, 0, 1, 2, 3, 4, 6))
    return w.reshape(seen, (groups, n * prod(counts), prod(window.kernel) * each))


def _weights(w: Writer, weight: Value, groups: int) -> Value:
    """Return the weight as one matrix per group: (G, kh * kw * C / G, O / G)."""
    kh, kw, c_, o = weight.extents
    flat = w.reshape(weight, (kh * kw * c_, groups, o // groups))
    return w.transpose(flat, (1, 0, 2))


def _rows(w: Writer, g: Value, groups: int) -> Value:
    """Return the pixels of g as one matrix per group: (G, N * rows * columns, O / G)."""
    *lead, o = g.extents
    flat = w.reshape(g, (prod(lead), groups, o // groups))
    return w.transpose(flat, (1, 0, 2))
