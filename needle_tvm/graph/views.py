"""Turns chains of reshapes, permutations and slices into index arithmetic, to read sources in
place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import relax, tvm
from needle_tvm.tir.extents import Size, exprs_of, is_static, shape_of

_PERMUTE, _RESHAPE, _SLICE = (
    tvm.ir.Op.get(f"relax.{name}") for name in ("permute_dims", "reshape", "strided_slice")
)
Index = Sequence[Any]
Lookup = Callable[[Any], Any]


@dataclass(frozen=True)
class View:
    """A tensor whose element `index` is the element `at(index)` of `source`."""

    source: Any
    at: Callable[[Index], list[Any]]


def view_of(expr: Any, lookup: Lookup) -> View:
    """Follow views back from `expr` to the first tensor that is not a view, and return `expr` as a
    view of that tensor. All ranks are static."""
    steps: list[Callable[[Index], list[Any]]] = []
    while True:
        value = lookup(expr) if isinstance(expr, relax.Var) else None
        step = _step(value) if isinstance(value, relax.Call) else None
        if value is None or step is None:
            break
        steps.append(step)
        expr = value.args[0]

    def at(index: Index) -> list[Any]:
        position = list(index)
        for step in steps:
            position = step(position)
        return position

    return View(expr, at)


def order_of(call: Any) -> list[int]:
    """Return, for each axis of a permutation's result, the corresponding axis of its operand."""
    count, axes = len(shape_of(call.args[0]) or ()), call.attrs.axes
    return [int(a) % count for a in (reversed(range(count)) if axes is None else axes)]


def _step(call: Any) -> Callable[[Index], list[Any]] | None:
    """Return a function that maps an index into a view to an index into its source; None if `call`
    is not a view."""
    before = shape_of(call.args[0]) if call.op in (_PERMUTE, _RESHAPE, _SLICE) else None
    after = shape_of(call)
    if before is None or after is None or 0 in before or 0 in after:
        return None
    if call.op == _PERMUTE:
        order = order_of(call)
        return lambda index: [index[order.index(axis)] for axis in range(len(order))]
    if call.op == _RESHAPE:
        return lambda index: reshaped_index(index, after, before)
    return _slice(call, before)


def _slice(call: Any, before: tuple[Size, ...]) -> Callable[[Index], list[Any]] | None:
    axes, begin, _, *strides = call.args[1:]
    if not is_static(
        [*_items(axes), *_items(begin), *(each for s in strides for each in _items(s))]
    ):
        return None
    if strides and any(int(s) != 1 for s in _numbers(strides[0])):
        return None
    first = dict(zip(_numbers(axes), _numbers(begin), strict=True))
    for axis, start in first.items():
        size = before[axis] if axis >= 0 else 0
        if not isinstance(size, int) or not 0 <= start < size:
            return None
    return lambda index: [i + first.get(axis, 0) for axis, i in enumerate(index)]


def _items(items: Any) -> list[Any]:
    return [getattr(item, "value", item) for item in getattr(items, "fields", items)]


def _numbers(items: Any) -> list[int]:
    return [int(item) for item in _items(items)]


def reshaped_index(index: Index, shape: Sequence[Size], other: Sequence[Size]) -> list[Any]:
    """Take element `index` of an array of shape `shape`. Return its index after the array is
    reshaped to `other`.

    Neighbouring axes are fused only as far as the extents require. If several axes of `shape`
    together make up one axis of `other`, no division is needed. If two symbolic extents are reached
    and neither is known to divide the other, all axes from there on are fused.
    """
    result: list[Any] = []
    sizes, others = exprs_of(shape), exprs_of(other)
    i = j = 0
    while i < len(shape) or j < len(other):
        group, counterpart = [i], [j]
        left = shape[i] if i < len(shape) else 1
        right = other[j] if j < len(other) else 1
        i, j = i + 1, j + 1
        while left != right:
            fewer = _is_less(left, right)
            if fewer is None:
                group += range(i, len(shape))
                counterpart += range(j, len(other))
                i, j = len(shape), len(other)
                break
            if fewer:
                left, i = left * shape[i], i + 1
                group.append(i - 1)
            else:
                right, j = right * other[j], j + 1
                counterpart.append(j - 1)
        flat: Any = 0
        for axis in group:
            if axis < len(shape):
                flat = flat * sizes[axis] + index[axis] if axis != group[0] else index[axis]
        parts: list[Any] = []
        for axis in reversed(counterpart):
            if axis >= len(other):
                continue
            parts.append(flat if axis == counterpart[0] else flat % others[axis])
            flat = flat // others[axis] if axis != counterpart[0] else flat
        result.extend(reversed(parts))
    return result


def _is_less(left: Size, right: Size) -> bool | None:
    """Return whether `left` is less than `right`, given that they differ; None if neither is known
    to divide the other."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    if right // left * left == right:
        return True
    return False if left // right * right == left else None
