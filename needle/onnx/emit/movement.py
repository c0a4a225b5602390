"""Rules for ops that move, repeat or spread elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import ops
from ...autograd.dtypes import value_in
from ...autograd.shapes import normalize_axes
from ._rules import Site, rule
from ._writer import Value, Writer


@rule(ops.Permute, ops.Transpose)
def transpose(s: Site, x: Value) -> Value:
    return s.w.transpose(x, s.op.order(x.ndim))


@rule(ops.Reshape)
def reshape(s: Site, x: Value) -> Value:
    return s.w.reshape(x, s.out.shape)


@rule(ops.Squeeze)
def squeeze(s: Site, x: Value) -> Value:
    return s.w.reshape(x, s.out.shape)


@rule(ops.Unsqueeze)
def unsqueeze(s: Site, x: Value) -> Value:
    return s.w.reshape(x, s.out.shape)


@rule(ops.BroadcastTo)
def broadcast_to(s: Site, x: Value) -> Value:
    return s.w.expand(x, s.out.shape)


@rule(ops.Flip)
def flip(s: Site, x: Value) -> Value:
    return flipped(s.w, x, normalize_axes("flip", s.op.axes, x.ndim))


def flipped(w: Writer, x: Value, axes: Sequence[int]) -> Value:
    """Return `x` with its elements reversed along `axes`, in the graph of `w`."""
    if not axes:
        return x
    ones = [-1] * len(axes)
    return w.slice(x, axes, ones, [None] * len(axes), ones, x.shape)


@rule(ops.Pad)
def pad(s: Site, x: Value) -> Value:
    return s.w.pad(x, s.op.padding, value_in("pad", s.op.value, x.dtype))


@rule(ops.Dilate)
def dilate(s: Site, x: Value) -> Value:
    for axis in s.op.over(x.ndim):
        x = spread(s.w, x, axis, s.op.dilation + 1)
    return x


def spread(w: Writer, x: Value, axis: int, step: int) -> Value:
    """Return `x` with `step` - 1 zeros after each element along `axis`, in the graph of `w`."""
    if step == 1:
        return x
    shape: list[Any] = list(x.extents)
    apart = w.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = w.pad(apart, [(0, step - 1 if a == axis + 1 else 0) for a in range(apart.ndim)])
    shape[axis] = shape[axis] * step
    return w.reshape(wide, shape)


@rule(ops.Undilate)
def undilate(s: Site, x: Value) -> Value:
    axes, step = s.op.over(x.ndim), s.op.dilation + 1
    if step == 1 or not axes:
        return x
    count = len(axes)
    ends = [2**63 - 1] * count
    return s.w.slice(x, axes, [0] * count, ends, [step] * count, s.out.shape)
