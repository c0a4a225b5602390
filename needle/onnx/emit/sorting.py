"""Rules for sorting, searching and running totals."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...backend_ndarray.dtypes import is_floating, result_type
from ...sizes.dims import bounds_of
from ...sizes.extents import same
from ._rules import Site, rule
from ._writer import Value, Writer
from .elementwise import floats, like, rounded


@rule(ops.Sort)
def sort(s: Site, x: Value) -> tuple[Value, Value]:
    """Write a TopK that returns all elements. It keeps the order of equal elements."""
    return _top(s, x, x.extents[s.op.axis % x.ndim], s.op.descending)


@rule(ops.Topk)
def topk(s: Site, x: Value) -> tuple[Value, Value]:
    return _top(s, x, s.op.k, s.op.largest)


def _top(s: Site, x: Value, count: Any, largest: bool) -> tuple[Value, Value]:
    w, axis, shape = s.w, s.op.axis % x.ndim, s.out[0].shape
    values, places = w.node(
        "TopK",
        x,
        w.ints([count]),
        dtype=(None, "int64"),
        shape=shape,
        axis=axis,
        largest=int(largest),
        sorted=1,
    )
    places.shape = shape
    return values, places


@rule(ops.Searchsorted)
def searchsorted(s: Site, x: Value, values: Value) -> Value:
    """Write a binary search for all values at once. The range of possible positions of each value
    is narrowed to one position. NaN counts as the largest."""
    w, count = s.w, x.extents[-1]
    dtype = result_type(x.dtype, values.dtype)
    x, values = w.cast(x, dtype), w.cast(values, dtype)
    low = w.full(0, "int64", values.extents)
    if same(count, 0):
        return low
    high = w.expand(w.number(count, "int64"), values.extents)
    one, two = like(w, low, 1), like(w, low, 2)
    last = w.op("Sub", w.number(count, "int64"), one)
    for _ in range(bounds_of(count)[1].bit_length()):
        middle = w.op("Div", w.op("Add", low, high), two)
        place = w.op("Min", middle, last)
        element = w.gather(x, place, 0) if x.ndim == 1 else _along_last(w, x, place)
        before = w.op("And", _is_before(s, element, values), w.op("Less", low, high, dtype="bool"))
        low = w.op("Where", before, w.op("Add", middle, one), low)
        high = w.op("Where", before, high, middle)
    return low


def _along_last(w: Writer, x: Value, place: Value) -> Value:
    made: Value = w.node("GatherElements", x, place, shape=place.shape, axis=x.ndim - 1)
    return made


def _is_before(s: Site, element: Value, values: Value) -> Value:
    """Return whether a value belongs after an element."""
    w = s.w
    before = w.op("LessOrEqual" if s.op.right else "Less", element, values, dtype="bool")
    if not is_floating(values.dtype):
        return before
    nan = w.op("IsNaN", values, dtype="bool")
    if not s.op.right:
        nan = w.op("And", nan, w.op("Not", w.op("IsNaN", element, dtype="bool")))
    return w.op("Or", before, nan)


# Running totals


@rule(ops.Cumsum)
def cumsum(s: Site, x: Value) -> Value:
    w, x = s.w, s.w.cast(x, s.out.dtype)
    axis = w.constant(s.op.axis % x.ndim, "int64")
    made: Value = w.node("CumSum", x, axis, shape=x.shape, reverse=int(s.op.reverse))
    return made


def _running(s: Site, start: float, xs: list[Value], step: Any) -> Value:
    """Return the states that step(w, state, *slices) returns, starting with the state `start`."""
    w, axis = s.w, s.op.axis % xs[0].ndim
    rest = [n for a, n in enumerate(xs[0].extents) if a != axis]
    begin = w.full(start, xs[0].dtype, rest)

    def once(body: Writer, state: Value, *slices: Value) -> tuple[list[Value], list[Value]]:
        after = step(body, state, *slices)
        return [after], [after]

    _, (states,) = w.scan([begin], xs, once, axis, s.op.reverse)
    return states


def _wide(s: Site, x: Value) -> Value:
    """Cast floats to float64, in which needle accumulates them."""
    return s.w.cast(x, "float64" if is_floating(s.out.dtype) else s.out.dtype)


@rule(ops.Cumprod)
def cumprod(s: Site, x: Value) -> Value:
    return rounded(s, _running(s, 1, [_wide(s, x)], lambda w, a, b: w.op("Mul", a, b)))


@rule(ops.LogCumSumExp)
def logcumsumexp(s: Site, x: Value) -> Value:
    return rounded(s, _running(s, -np.inf, [_wide(s, x)], _logaddexp))


def _logaddexp(w: Writer, a: Value, b: Value) -> Value:
    """Write log(exp(a) + exp(b)), a step of logcumsumexp."""
    top, low = w.op("Max", a, b), w.op("Min", a, b)
    small = w.op("Exp", w.op("Sub", low, top))
    total = w.op("Add", top, w.op("Log", w.op("Add", small, like(w, small, 1))))
    infinite = w.op("IsInf", top, dtype="bool")  # where the difference may be NaN
    return w.op("Where", infinite, top, total)


@rule(ops.LinearScan)
def linear_scan(s: Site, a: Value, b: Value) -> Value:
    w, axis = s.w, s.op.axis % a.ndim
    a, b = (floats(s, v) for v in (a, b))
    # The first element has no predecessor, so its factor, which may be infinite, is set to 0.
    n, back = a.extents[axis], s.op.reverse
    none = w.full(0, a.dtype, [1 if i == axis else m for i, m in enumerate(a.extents)])
    others = w.slice(a, (axis,), (0 if back else 1,), (n - 1 if back else n,))
    factors = w.concat([others, none] if back else [none, others], axis, a.extents)

    def step(w: Writer, y: Value, a: Value, b: Value) -> Value:
        return w.op("Add", w.op("Mul", a, y), b)

    return rounded(s, _running(s, 0, [factors, b], step))


@rule(ops.Cummax)
def cummax(s: Site, x: Value) -> tuple[Value, Value]:
    return _extremes(s, x, "GreaterOrEqual")


@rule(ops.Cummin)
def cummin(s: Site, x: Value) -> tuple[Value, Value]:
    return _extremes(s, x, "LessOrEqual")


def _extremes(s: Site, x: Value, beats: str) -> tuple[Value, Value]:
    w, axis, shape = s.w, s.op.axis % x.ndim, x.extents
    rest = [n for a, n in enumerate(shape) if a != axis]
    cut = tuple(1 if a == axis else n for a, n in enumerate(shape))
    best = w.reshape(w.slice(x, (axis,), (0,), (1,), shape=cut), rest)
    place, at = w.full(0, "int64", rest), w.constant(0, "int64")

    def step(
        w: Writer, best: Value, place: Value, at: Value, x: Value
    ) -> tuple[list[Value], list[Value]]:
        taken = w.op(beats, x, best, dtype="bool")
        if is_floating(x.dtype):
            taken = w.op("Or", taken, w.op("IsNaN", x, dtype="bool"))
        best, place = w.op("Where", taken, x, best), w.op("Where", taken, at, place)
        return [best, place, w.op("Add", at, like(w, at, 1))], [best, place]

    _, (values, places) = w.scan([best, place, at], [x], step, axis)
    return values, places
