"""Rules for reductions, and for softmax and related functions."""

from __future__ import annotations

from math import nan, prod

from ... import ops
from ...autograd.shapes import normalize_axes
from ...sizes.extents import same
from ._rules import Site, rule
from ._writer import Value
from .elementwise import floats, rounded


def _axes(s: Site, x: Value) -> tuple[int, ...]:
    return normalize_axes(s.op.name, s.op.axes, x.ndim)


@rule(ops.Summation)
def summation(s: Site, x: Value) -> Value:
    x = s.w.cast(x, s.out.dtype)
    return s.w.reduce("ReduceSum", x, _axes(s, x), s.op.keepdims)


@rule(ops.Mean)
def mean(s: Site, x: Value) -> Value:
    x, axes = s.w.cast(x, s.out.dtype), _axes(s, x)
    if any(same(x.extents[a], 0) for a in axes):  # ONNX does not define the result
        return s.w.full(nan, s.out.dtype, s.out.shape)
    return s.w.reduce("ReduceMean", x, axes, s.op.keepdims)


@rule(ops.Var)
def var(s: Site, x: Value) -> Value:
    w, x = s.w, floats(s, x)
    axes = _axes(s, x)
    centred = w.op("Sub", x, w.reduce("ReduceMean", x, axes, True))
    squares = w.op("Mul", centred, centred)
    total = w.reduce("ReduceSum", squares, axes, s.op.keepdims)
    count = prod(x.extents[a] for a in axes) - s.op.correction
    return rounded(s, w.op("Div", total, w.number(count, x.dtype)))


@rule(ops.Max)
def maximum(s: Site, x: Value) -> Value:
    return s.w.reduce("ReduceMax", x, _axes(s, x), s.op.keepdims)


@rule(ops.Min)
def minimum(s: Site, x: Value) -> Value:
    return s.w.reduce("ReduceMin", x, _axes(s, x), s.op.keepdims)


@rule(ops.Argmax)
def argmax(s: Site, x: Value) -> Value:
    return _position(s, "ArgMax", x)


@rule(ops.Argmin)
def argmin(s: Site, x: Value) -> Value:
    return _position(s, "ArgMin", x)


def _position(s: Site, op_type: str, x: Value) -> Value:
    """Write an ArgMax or ArgMin along an axis, or over all elements in order. A 0-d x counts as one
    element."""
    w, axis = s.w, s.op.axis
    if axis is None or not x.ndim:
        x, axis = w.reshape(x, (prod(x.extents),)), 0
    made: Value = w.node(op_type, x, dtype="int64", axis=axis % x.ndim, keepdims=0)
    made.shape = tuple(n for a, n in enumerate(x.extents) if a != axis % x.ndim)
    return w.reshape(made, s.out.shape)


@rule(ops.LogSumExp)
def logsumexp(s: Site, x: Value) -> Value:
    x = s.w.cast(x, s.out.dtype)
    return s.w.reduce("ReduceLogSumExp", x, _axes(s, x), s.op.keepdims)


@rule(ops.Softmax)
def softmax_(s: Site, x: Value) -> Value:
    return _along(s, "Softmax", x)


@rule(ops.LogSoftmax)
def logsoftmax(s: Site, x: Value) -> Value:
    return _along(s, "LogSoftmax", x)


def _along(s: Site, op_type: str, x: Value) -> Value:
    x = s.w.cast(x, s.out.dtype)
    made: Value = s.w.node(op_type, x, shape=x.shape, axis=s.op.axis)
    return made
