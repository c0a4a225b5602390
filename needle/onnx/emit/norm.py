"""Rules for normalizations."""

from __future__ import annotations

from math import prod

import numpy as np

from ... import ops
from ...autograd.shapes import normalize_axes
from ._dtypes import has_kernel
from ._rules import Site, rule
from ._writer import Value, Writer
from .elementwise import floats, like, rounded


@rule(ops.Normalize)
def normalize(s: Site, x: Value) -> Value:
    """Write an InstanceNormalization over all axes after the second, or a LayerNormalization over
    the last axis; in other cases, write the elementary operators."""
    w, dtype = s.w, s.out.dtype
    axes = tuple(sorted(normalize_axes("normalize", s.op.axes, x.ndim)))
    x = w.cast(x, dtype)
    kind, width = "", None
    if x.ndim > 2 and axes == tuple(range(2, x.ndim)):
        kind, width = "InstanceNormalization", x.extents[1]
    elif axes == (x.ndim - 1,):
        kind, width = "LayerNormalization", x.extents[-1]
    if not isinstance(width, int) or not has_kernel(kind, dtype):
        wide = floats(s, x)
        return rounded(s, _normalized(w, wide, axes, s.op.eps)[0])
    ones, zeros = (w.constant(np.full(width, each), dtype) for each in (1, 0))
    vectors = [ones, zeros] if kind == "InstanceNormalization" else [ones]
    made: Value = w.node(kind, x, *vectors, shape=x.shape, epsilon=float(s.op.eps))
    return made


def _normalized(
    w: Writer, x: Value, axes: tuple[int, ...], eps: float
) -> tuple[Value, Value, Value]:
    """Return the normalized x, and the mean and variance with the reduced axes kept."""
    average = w.reduce("ReduceMean", x, axes, True)
    centred = w.op("Sub", x, average)
    variance = w.reduce("ReduceMean", w.op("Mul", centred, centred), axes, True)
    root = w.op("Sqrt", w.op("Add", variance, like(w, x, eps)))
    return w.op("Div", centred, root), average, variance


@rule(ops.LayerNorm)
def layer_norm(s: Site, x: Value, weight: Value, bias: Value) -> Value:
    w, dtype = s.w, s.out.dtype
    if has_kernel("LayerNormalization", dtype):
        given = [w.cast(v, dtype) for v in (x, weight, bias)]
        made: Value = w.node(
            "LayerNormalization", *given, shape=x.shape, axis=-1, epsilon=float(s.op.eps)
        )
        return made
    x, weight, bias = (floats(s, v) for v in (x, weight, bias))
    y, _, _ = _normalized(w, x, (x.ndim - 1,), s.op.eps)
    return rounded(s, w.op("Add", w.op("Mul", y, weight), bias))


@rule(ops.GroupNorm)
def group_norm(s: Site, x: Value, weight: Value, bias: Value) -> Value:
    w, column = s.w, s.op.column(x.extents)
    wide, weight, bias = (floats(s, v) for v in (x, weight, bias))
    y, _, _ = _normalized(w, w.reshape(wide, s.op.grouped(x.extents)), (2,), s.op.eps)
    y = w.op("Mul", w.reshape(y, x.extents), w.reshape(weight, column))
    return rounded(s, w.op("Add", y, w.reshape(bias, column)))


@rule(ops.BatchNormTrain)
def batch_norm_train(s: Site, x: Value, weight: Value, bias: Value) -> tuple[Value, ...]:
    w, op = s.w, s.op
    out, statistics, _ = s.out
    x, weight, bias = (w.cast(v, statistics.dtype) for v in (x, weight, bias))
    column = op.column(x.extents)
    y, *found = _normalized(w, x, op.over(x.ndim), op.eps)
    y = w.op("Add", w.op("Mul", y, w.reshape(weight, column)), w.reshape(bias, column))
    width = (prod(column),)
    return w.cast(y, out.dtype), *(w.reshape(each, width) for each in found)
