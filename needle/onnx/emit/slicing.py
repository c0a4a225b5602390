"""Rules for basic indexing: read and write slices."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...ops._keys import Range, Span, expand, span
from ...sizes.dims import Expression
from ...sizes.extents import same
from ._rules import Site, rule
from ._writer import Value, Writer
from .movement import flipped, spread


def _spans(name: str, key: Any, shape: Any) -> list[Any]:
    """Return, for each entry of the key, None for a new axis, an int >= 0, or a Span."""
    out: list[Any] = []
    axis = 0
    for entry in expand(name, key, len(shape)):
        if entry is None:
            out.append(None)
            continue
        n = shape[axis]
        if entry == Range():
            out.append(Span(0, 1, n))
        elif isinstance(entry, (Range, Span)):
            out.append(span(name, entry, n))
        else:
            back = isinstance(entry, int) and entry < 0
            out.append(n + entry if back else entry)
        axis += 1
    return out


@rule(ops.Slice)
def slice_(s: Site, x: Value) -> Value:
    w, spans = s.w, _spans("slice", s.op.key, x.extents)
    taken: list[tuple[Any, ...]] = []  # (axis, begin, end, step)
    kept: list[Any] = []
    axis = 0
    for entry in spans:
        if entry is None:
            continue
        one = entry if isinstance(entry, Span) else Span(entry, 1, 1)
        if not same(one, Span(0, 1, x.extents[axis])):
            end = one.start + one.step * one.length
            if one.step < 0 and isinstance(end, Expression):
                # The end may be before the front, which an index from the front cannot express.
                x = flipped(w, x, (axis,))
                one = Span(x.extents[axis] - 1 - one.start, -one.step, one.length)
                end = one.start + one.step * one.length
            back = one.step < 0 and end < 0
            taken.append((axis, one.start, None if back else end, one.step))
        kept.append(one.length)
        axis += 1
    if taken:
        axes, begins, ends, steps = (list(part) for part in zip(*taken, strict=True))
        x = w.slice(x, axes, begins, ends, steps, tuple(kept))
    return w.reshape(x, s.out.shape)


@rule(ops.Unslice)
def unslice(s: Site, x: Value) -> Value:
    return _put(s.w, x, _spans("unslice", s.op.key, s.op.shape), s.op.shape)


@rule(ops.SetSlice)
def set_slice(s: Site, x: Value, value: Value) -> Value:
    w, shape = s.w, x.extents
    spans = _spans("set_slice", s.op.key, shape)
    if any(same(n, 0) for n in value.extents):
        return x
    if same(value.extents, shape) and all(
        e == Span(0, 1, n) for e, n in zip(spans, shape, strict=False)
    ):
        return value
    where = _put(w, w.full(True, "bool", value.extents), spans, shape)
    return w.op("Where", where, _put(w, value, spans, shape), x)


def _put(w: Writer, x: Value, spans: list[Any], shape: Any) -> Value:
    """Return zeros of `shape` with x at the spans."""
    if any(same(n, 0) for n in x.extents):
        return w.full(0, x.dtype, shape)
    axes = [entry if isinstance(entry, Span) else Span(entry, 1, 1) for entry in spans
            if entry is not None]  # fmt: skip
    x = w.reshape(x, [each.length for each in axes])
    pairs = []
    for axis, (each, n) in enumerate(zip(axes, shape, strict=True)):
        begin, step = each.start, each.step
        if step < 0:
            x = flipped(w, x, (axis,))
            begin, step = begin + (each.length - 1) * step, -step
        if step > 1:
            x = spread(w, x, axis, step)
            length = (each.length - 1) * step + 1  # no zeros after the last element
            cut = tuple(length if a == axis else m for a, m in enumerate(x.extents))
            x = w.slice(x, (axis,), (0,), (length,), shape=cut)
        pairs.append((begin, n - begin - x.extents[axis]))
    return w.pad(x, pairs)
