"""Converters of sequences (lists of values) and optionals (values that may be missing). They exist
only while tracing; a model's inputs and outputs are tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...common.state import state
from ...conversion.values import (
    Carried,
    Items,
    Missing,
    Rows,
    Value,
    dtype_of,
    is_known,
    known_integer,
    known_integers,
    normal_axis,
    sizes,
    tensor,
)
from ...sizes.extents import same
from ..graph import Node
from ..registry import converter, find_twin

# A tuple that a converter returns holds its outputs, so these converters return tuples of one
# value.


@converter("SequenceEmpty", since=11)
def empty(node: Node) -> tuple[Items]:
    return (Items(()),)


@converter("SequenceConstruct", since=11)
def construct(node: Node, *values: Value) -> tuple[Items]:
    return (Items(values),)


@converter("SequenceAt", since=11, known=(1,))
def at(node: Node, items: Items, position: Value) -> tuple[Value]:
    if isinstance(position, Tensor) and state.trace is not None and _are_alike(items):
        values = items.values
        rows = values.whole if isinstance(values, Rows) else ops.stack([*map(tensor, values)], 0)
        return (rows[ops.reshape(position, ())],)
    return (items.values[_place(node, items, position, len(items.values))],)


def _are_alike(items: Items) -> bool:
    """Return whether all values have the same shape and dtype, so that any position can be
    selected."""
    values = items.values
    if isinstance(values, Rows):
        return True
    first = values[0] if values else None
    return first is not None and all(
        same(x.shape, first.shape) and dtype_of(x) == dtype_of(first) for x in values
    )


@converter("SequenceInsert", since=11, known=(2,))
def insert(node: Node, items: Items, value: Value, position: Value | None = None) -> tuple[Items]:
    values = list(items.values)
    count = len(values)
    place = count if position is None else _place(node, items, position, count + 1, -count)
    values.insert(place, value)
    return (Items(tuple(values)),)


@converter("SequenceErase", since=11, known=(1,))
def erase(node: Node, items: Items, position: Value | None = None) -> tuple[Items]:
    values = list(items.values)
    del values[-1 if position is None else _place(node, items, position, len(values))]
    return (Items(tuple(values)),)


def _place(node: Node, items: Items, position: Value, limit: int, least: int | None = None) -> int:
    """Return a known position, counted from the front."""
    place = known_integer(node, position, "the position")
    least = -limit if least is None else least
    if not least <= place < limit:
        raise node.invalid(f"position {place} is outside a sequence of {len(items.values)} values")
    return place if place >= 0 else place + len(items.values)


@converter("SequenceLength", since=11)
def length(node: Node, items: Items) -> np.ndarray:
    if isinstance(items.values, Rows):
        return sizes(items.values.whole.shape[0])
    return np.array(len(items.values), np.int64)


@converter("SplitToSequence", since=11, known=(1,))
def split_to_sequence(node: Node, data: Value, sizes: Value | None = None) -> tuple[Items]:
    axis = normal_axis(node, node.integer("axis", 0), data.ndim)
    extent = data.shape[axis]
    if sizes is None:
        parts: tuple[Any, ...] = (1,) * extent
    elif sizes.ndim == 0:
        each = known_integer(node, sizes, "the size of the parts")
        if each < 1:
            raise node.invalid(f"the size of the parts is {each}; it must be 1 or more")
        parts = (each,) * (extent // each) + ((extent % each,) if extent % each else ())
    else:
        parts = known_integers(node, sizes, "the sizes of the parts")
    made = ops.split_sizes(tensor(data), list(parts), axis)
    if sizes is None and not node.flag("keepdims", True):
        made = tuple(ops.squeeze(part, axis) for part in made)
    return (Items(tuple(made)),)


@converter("ConcatFromSequence", since=11)
def concat_from_sequence(node: Node, items: Items) -> Value:
    axis, new = node.integer("axis"), node.flag("new_axis", False)
    if isinstance(items.values, Rows):
        return _joined(node, items.values.whole, axis, new)
    if not items.values:
        raise node.invalid("a sequence without values")
    if all(is_known(value) for value in items.values):
        if new:
            return np.stack(items.values, axis)
        twin = find_twin("Concat", "")
        if twin is not None:
            return twin(node, *items.values)
    values = [tensor(value) for value in items.values]
    rank = values[0].ndim + (1 if new else 0)
    return (ops.stack if new else ops.concat)(values, normal_axis(node, axis, rank))


def _joined(node: Node, rows: Tensor, axis: int, new: bool) -> Tensor:
    """Join the rows of a tensor along one of their axes, or along a new axis."""
    axis = normal_axis(node, axis, rows.ndim - (0 if new else 1))
    moved = ops.moveaxis(rows, 0, axis)
    if new:
        return moved
    shape = moved.shape
    return ops.reshape(moved, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


# Optionals: a present value represents itself.


@converter("Optional", since=15)
def optional(node: Node, value: Carried | None = None) -> tuple[Any]:
    return (Missing() if value is None else value,)


@converter("OptionalHasElement", since=15)
def has_element(node: Node, value: Carried | None = None) -> np.ndarray:
    return np.array(value is not None and not isinstance(value, Missing))


@converter("OptionalGetElement", since=15)
def get_element(node: Node, value: Carried) -> tuple[Any]:
    if isinstance(value, Missing):
        raise node.invalid("the optional has no value")
    return (value,)
