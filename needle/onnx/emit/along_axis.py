"""Read and write elements at positions along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...backend_ndarray.dtypes import compute_dtype
from ...sizes.extents import same
from ._rules import Site, rule
from ._writer import Value, Writer
from .elementwise import like


def moved_to_front(w: Writer, x: Value, begin: int, end: int) -> Value:
    """Merge the axes of `x` from `begin` to before `end` into one axis at the front, in the graph
    of `w`."""
    order = (*range(begin, end), *range(begin), *range(end, x.ndim))
    moved = w.transpose(x, order)
    count = 1
    for n in x.extents[begin:end]:
        count = count * n
    return w.reshape(moved, (count, *moved.extents[end - begin :]))


def counting(w: Writer, count: Any) -> Value:
    """Return the int64 numbers 0, 1, ... below `count`, in the graph of `w`."""
    if isinstance(count, int):
        return w.constant(np.arange(count), "int64")
    ends = w.constant(0, "int64"), w.number(count, "int64"), w.constant(1, "int64")
    made: Value = w.node("Range", *ends, shape=(count,))
    return made


def added_at(w: Writer, base: Value, index: Value, updates: Value, how: str = "add") -> Value:
    """Return `base` with row `updates`[i] added to row `index`[i], or combined with it by the
    reduction `how`, in the graph of `w`."""
    dtype = base.dtype
    wide = "int32" if dtype == "bool" else compute_dtype(dtype)
    places = w.reshape(w.cast(index, "int64"), (*index.extents, 1))
    made: Value = w.node(
        "ScatterND",
        w.cast(base, wide),
        places,
        w.cast(updates, wide),
        shape=base.shape,
        reduction=how,
    )
    return w.cast(made, dtype)


@rule(ops.TakeAlongAxis)
def take_along_axis(s: Site, x: Value, index: Value) -> Value:
    index = index if index.dtype in ("int32", "int64") else s.w.cast(index, "int64")
    made: Value = s.w.node("GatherElements", x, index, shape=s.out.shape, axis=s.op.axis % x.ndim)
    return made


@rule(ops.Put)
def put(s: Site, x: Value, index: Value, source: Value) -> Value:
    w, axis = s.w, s.op.axis % x.ndim
    if any(same(n, 0) for n in index.extents):
        return x
    updates = moved_to_front(w, source, axis, axis + index.ndim)
    base = moved_to_front(w, x, axis, axis + 1)
    places = w.reshape(index, updates.extents[:1])
    if s.op.how == "set":
        out = _last_at(w, base, places, updates)
    else:
        out = added_at(w, base, places, w.cast(updates, x.dtype), s.op.how)
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
    return w.transpose(out, order)


def _last_at(w: Writer, base: Value, index: Value, updates: Value) -> Value:
    """Return `base` with its rows at the index replaced. ONNX does not define which of several
    updates of a row wins, so the number of the last update is computed first."""
    extent, count = base.extents[0], updates.extents[0]
    numbers = counting(w, count)
    last = added_at(w, w.full(-1, "int64", (extent,)), index, numbers, "max")
    chosen = w.gather(updates, w.op("Max", last, like(w, last, 0)), 0)
    there = w.op("GreaterOrEqual", last, like(w, last, 0), dtype="bool")
    there = w.reshape(there, (extent, *[1] * (base.ndim - 1)))
    return w.op("Where", there, w.cast(chosen, base.dtype), base)


@rule(ops.PutAlongAxis)
def put_along_axis(s: Site, x: Value, index: Value, source: Value) -> Value:
    w, axis, dtype = s.w, s.op.axis % x.ndim, x.dtype
    if any(same(n, 0) for n in index.extents):
        return x
    index, source = w.cast(index, "int64"), w.cast(source, dtype)
    if s.op.how != "set":
        wide = "int32" if dtype == "bool" else compute_dtype(dtype)
        return w.cast(_scattered(w, w.cast(x, wide), index, w.cast(source, wide), axis, s.op.how),
                      dtype)  # fmt: skip
    line = [1] * x.ndim
    line[axis] = index.extents[axis]
    numbers = w.expand(w.reshape(counting(w, line[axis]), line), index.extents)
    last = _scattered(w, w.full(-1, "int64", x.extents), index, numbers, axis, "max")
    places = w.op("Max", last, like(w, last, 0))
    chosen: Value = w.node("GatherElements", source, places, shape=x.shape, axis=axis)
    there = w.op("GreaterOrEqual", last, like(w, last, 0), dtype="bool")
    return w.op("Where", there, chosen, x)


def _scattered(w: Writer, x: Value, index: Value, source: Value, axis: int, how: str) -> Value:
    made: Value = w.node(
        "ScatterElements", x, index, source, shape=x.shape, axis=axis, reduction=how
    )
    return made
