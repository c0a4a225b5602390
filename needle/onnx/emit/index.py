"""Rules for ops that read and write elements by an index, and for ops that compute indices."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...sizes.dims import Expression
from ._rules import Site, rule
from ._writer import Value
from .along_axis import added_at, counting, moved_to_front
from .elementwise import floats, like, rounded


@rule(ops.Take)
def take(s: Site, x: Value, index: Value) -> Value:
    return s.w.gather(x, index, s.op.axis % x.ndim)


@rule(ops.OneHot)
def one_hot(s: Site, x: Value) -> Value:
    """Write one-hot rows with Equal, because OneHot counts negative numbers from the end."""
    classes = s.w.cast(counting(s.w, s.op.num_classes), x.dtype)
    is_class = s.w.op("Equal", s.w.unsqueeze(x, x.ndim), classes, dtype="bool")
    return s.w.cast(is_class, s.out.dtype)


@rule(ops.RavelIndex)
def ravel_index(s: Site, *indices: Value) -> Value:
    w = s.w
    total: Value | None = None
    for index, n in zip(indices, s.op.extents, strict=True):
        n = n if isinstance(n, Expression) else max(n, 1)
        extent = w.number(n, "int64")
        place = w.op("Mod", w.cast(index, "int64"), extent)
        total = place if total is None else w.op("Add", w.op("Mul", total, extent), place)
    assert total is not None
    return total


@rule(ops.SegmentSum)
def segment_sum(s: Site, x: Value, index: Value) -> Value:
    w, axis, end = s.w, s.op.axis, s.op.axis + index.ndim
    updates = moved_to_front(w, x, axis, end)
    base = w.full(0, x.dtype, (s.op.extent, *updates.extents[1:]))
    out = added_at(w, base, w.reshape(index, (updates.extents[0],)), updates)
    rest = x.ndim - end
    order = (*range(1, axis + 1), 0, *range(axis + 1, axis + 1 + rest))
    return w.transpose(out, order)


@rule(ops.Arange)
def arange(s: Site, x: Value) -> Value:
    w, first, count = s.w, s.op.first, s.op.count
    if isinstance(count, Expression) or isinstance(first, Expression):
        numbers = w.op("Add", counting(w, count), w.number(first, "int64"))
        return w.op("Add", x, w.cast(numbers, x.dtype))
    return w.op("Add", x, w.constant(np.arange(first, first + count), x.dtype))


@rule(ops.Resample)
def resample(s: Site, x: Value, index: Value, weight: Value, *_: Value) -> Value:
    """Gather the taps of all elements, then weight and sum them."""
    w, axis = s.w, s.op.axis % x.ndim
    weight = w.reshape(floats(s, weight), (*weight.extents, *[1] * (x.ndim - 1 - axis)))
    taps = w.gather(floats(s, x), index, axis)
    return rounded(s, w.reduce("ReduceSum", w.op("Mul", taps, weight), (axis,), False))


@rule(ops.WeightedElements)
def weighted_elements(s: Site, x: Value, index: Value, weight: Value) -> Value:
    """Read each tap of all channels with GatherElements, then weight and sum the taps."""
    w, wide = s.w, floats(s, x)
    (batch, channels, _), (_, taps, m) = x.extents, index.extents
    index = w.cast(index, "int64")  # GatherElements takes only int32 and int64
    there = w.op("GreaterOrEqual", index, like(w, index, 0), dtype="bool")
    place = w.reshape(w.op("Max", index, like(w, index, 0)), (batch, 1, taps * m))
    place = w.expand(place, (batch, channels, taps * m))
    found = w.node("GatherElements", wide, place, shape=place.extents, axis=2)
    found = w.reshape(found, (batch, channels, taps, m))
    found = w.op("Where", w.unsqueeze(there, 1), found, like(w, found, 0))
    weighed = w.op("Mul", found, w.unsqueeze(floats(s, weight), 1))
    return rounded(s, w.reduce("ReduceSum", weighed, (2,), False))


@rule(ops.GroupedMatmul)
def grouped_matmul(s: Site, rows: Value, matrices: Value, group: Value) -> Value:
    """Gather the matrix of each row, then multiply in a batch."""
    w, count = s.w, matrices.extents[0]
    assert isinstance(count, int), "the number of matrices is a number"
    place = w.op("Min", w.cast(group, "int64"), w.number(count - 1, "int64"))
    own = w.gather(floats(s, matrices), place, 0)
    made = w.node(
        "MatMul",
        w.unsqueeze(floats(s, rows), 1),
        own,
        shape=(rows.extents[0], 1, matrices.extents[2]),
    )
    made = w.reshape(made, (rows.extents[0], matrices.extents[2]))
    inside = w.op("Less", w.cast(group, "int64"), w.number(count, "int64"), dtype="bool")
    return rounded(s, w.op("Where", w.unsqueeze(inside, 1), made, like(w, made, 0)))
