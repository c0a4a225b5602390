"""Converters of operators that read shapes, or move elements without computing."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.budget import bounded
from ...conversion.values import (
    Value,
    known,
    known_integers,
    known_number,
    normal_axes,
    normal_axis,
    shape_of,
    sizes,
    tensor,
)
from ...sizes.dims import Expression
from ..graph import Node
from ..registry import converter

_LARGEST_KNOWN = 1 << 16  # arrays with more elements are not kept as known values


@converter("Constant")
def constant(node: Node) -> np.ndarray:
    for name, dtype in (
        *(("value_float", np.float32), ("value_floats", np.float32)),
        *(("value_int", np.int64), ("value_ints", np.int64)),
    ):
        if node.has(name):
            return np.array(node.attributes[name], dtype)
    if not node.has("value"):
        raise node.unsupported("a constant that is sparse or of strings")
    return node.array("value")


@converter("Shape", since=1)
def shape(node: Node, x: Value) -> np.ndarray:
    start = node.integer("start", 0)
    end = node.integer("end", x.ndim) if node.has("end") else x.ndim
    return sizes(list(shape_of(x))[start:end])


@converter("Size", since=1)
def size(node: Node, x: Value) -> np.ndarray:
    return sizes(prod(shape_of(x)))


@converter("Reshape", since=5, known=(1,))
def reshape(node: Node, data: Value, shape: Value | None = None) -> Tensor:
    return ops.reshape(tensor(data), reshaped(node, data, shape))


def reshaped(node: Node, data: Value, shape: Value | None) -> tuple[Any, ...]:
    """Return the shape of the result of Reshape (`node`) for its inputs `data` and `shape`. One
    extent may be -1. Raises ModelError for a 0 beyond the axes of `data`."""
    before = shape_of(data)
    asked = list(known_integers(node, shape, "the shape"))
    if not node.flag("allowzero", False):
        for i, n in enumerate(asked):
            if not isinstance(n, Expression) and n == 0:
                if i >= len(before):
                    raise node.invalid(
                        f"the shape {asked} has a 0 at axis {i}, which {before} does not have"
                    )
                asked[i] = before[i]
    return tuple(asked)


@converter("Flatten", since=1)
def flatten(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    axis = node.integer("axis")
    if not -x.ndim <= axis <= x.ndim:
        raise node.invalid(f"axis {axis} is out of range for {x.ndim} dimensions")
    axis += x.ndim if axis < 0 else 0
    return ops.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@converter("Transpose", since=1)
def transpose(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    axes = node.integers("perm") if node.has("perm") else tuple(reversed(range(x.ndim)))
    return ops.permute(x, axes)


@converter("Unsqueeze", since=1, known=(1,))
def unsqueeze(node: Node, data: Value, axes: Value | None = None) -> Tensor:
    x = tensor(data)
    given = node.integers("axes") if axes is None else known_integers(node, axes, "the axes")
    return ops.unsqueeze(x, normal_axes(node, given, x.ndim + len(given)))


@converter("Squeeze", since=1, known=(1,))
def squeeze(node: Node, data: Value, axes: Value | None = None) -> Tensor:
    x = tensor(data)
    if axes is None and not node.has("axes"):
        return ops.squeeze(x)
    given = node.integers("axes") if axes is None else known_integers(node, axes, "the axes")
    return ops.squeeze(x, normal_axes(node, given, x.ndim))


@converter("Concat", since=4)
def concat(node: Node, *inputs: Value) -> Tensor:
    return ops.concat([tensor(x) for x in inputs], node.integer("axis"))


@converter("Split", since=2, known=(1,))
def split(node: Node, data: Value, extents: Value | None = None) -> tuple[Tensor, ...]:
    x = tensor(data)
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    return ops.split_sizes(x, split_extents(node, x.shape[axis], extents), axis)


def split_extents(node: Node, extent: Any, given: Value | None) -> list[Any]:
    """Return the extents of the parts into which Split (`node`) divides an axis of `extent`.
    `given` is the node's input with the extents, if there is one. Raises ModelError if the number
    of outputs does not fit."""
    if given is not None:
        return list(known_integers(node, given, "the sizes of the parts"))
    if node.has("split"):
        return list(node.integers("split"))
    count = node.integer("num_outputs") if node.has("num_outputs") else len(node.outputs)
    if count != len(node.outputs):
        raise node.invalid(f"num_outputs is {count}, but it has {len(node.outputs)} outputs")
    part = (extent + count - 1) // count  # the last part may be smaller
    return [part] * (count - 1) + [extent - part * (count - 1)]


@converter("Slice", since=1, known=(1, 2, 3, 4))
def slice_(node: Node, data: Value, *rest: Value | None) -> Tensor:
    x = tensor(data)
    return ops.getitem(x, slices(node, x, *rest))


def slices(
    node: Node,
    data: Value,
    starts: Value | None = None,
    ends: Value | None = None,
    axes: Value | None = None,
    steps: Value | None = None,
) -> tuple[slice, ...]:
    """Return the key by which Slice (`node`) indexes `data`, from its inputs `starts`, `ends`,
    `axes` and `steps` (opset 10 and later) or its attributes. Raises ModelError if they do not fit
    together."""
    if node.opset < 10:
        first, last = node.integers("starts"), node.integers("ends")
        over = node.integers("axes") if node.has("axes") else tuple(range(len(first)))
        by: tuple[Any, ...] = (1,) * len(first)
    else:
        first = known_integers(node, starts, "starts")
        last = known_integers(node, ends, "ends")
        count = range(len(first))
        over = tuple(count) if axes is None else known_integers(node, axes, "axes")
        by = (1,) * len(first) if steps is None else known_integers(node, steps, "steps")
    if not len(first) == len(last) == len(over) == len(by):
        raise node.invalid("starts, ends, axes and steps have different lengths")
    key = [slice(None)] * data.ndim
    at = normal_axes(node, over, data.ndim)
    for axis, start, end, step in zip(at, first, last, by, strict=True):
        key[axis] = _bounded(node, start, end, step, data.shape[axis])
    return tuple(key)


def _bounded(node: Node, start: Any, end: Any, step: Any, extent: Any) -> slice:
    """Return a slice of an axis. Numbers far beyond the axis mean its ends."""
    if isinstance(step, Expression) or step == 0:
        raise node.invalid(f"the step {step} is not a number other than 0")
    if step > 0:
        return slice(_clipped(start, extent), _clipped(end, extent), step)
    stop = None if not isinstance(end, Expression) and end < -(1 << 31) else end
    if isinstance(extent, int) and stop is not None and not isinstance(stop, Expression):
        stop = None if stop < -extent else stop
    first = _clipped(start, extent)
    if isinstance(extent, int) and isinstance(first, int) and first < -extent:
        first = 0  # NumPy's slice would begin before the axis and be empty
    return slice(first, stop, step)


def _clipped(n: Any, extent: Any) -> Any:
    """Replace a very large index by None, the end of the axis, and a very low one by 0."""
    if isinstance(n, Expression) or abs(n) < (1 << 31):
        return n
    return None if n > 0 else 0


@converter("Expand", since=8, known=(1,))
def expand(node: Node, data: Value, shape: Value) -> Tensor:
    x = tensor(data)
    asked = known_integers(node, shape, "the shape")
    lead = len(asked) - x.ndim
    extents = list(asked) if lead >= 0 else [*x.shape[:-lead], *asked]
    for i, n in enumerate(x.shape, max(lead, 0)):
        if isinstance(extents[i], int) and extents[i] == 1:  # a requested extent of 1 broadcasts
            extents[i] = n
    return ops.broadcast_to(x, bounded(extents))


@converter("ConstantOfShape", since=9, known=(0,))
def constant_of_shape(node: Node, shape: Value) -> Value:
    value = node.array("value") if node.has("value") else np.zeros(1, np.float32)
    extents = bounded(known_integers(node, shape, "the shape"))
    scalar = value.reshape(())
    if not any(isinstance(n, Expression) for n in extents) and prod(extents) <= _LARGEST_KNOWN:
        return np.full(extents, scalar)
    return ops.broadcast_to(tensor(scalar), extents)


@converter("Range", since=11, known=(0, 1, 2))
def range_(node: Node, start: Value, limit: Value, delta: Value) -> Value:
    first, last, step = (
        known_number(node, each, what)
        for each, what in ((start, "the start"), (limit, "the limit"), (delta, "the step"))
    )
    if step == 0:
        raise node.invalid("the step is 0")
    if any(isinstance(n, Expression) for n in (first, last, step)):
        return ops.arange(first, last, step, dtype="int64")
    bounded([max(0, math.ceil((last - first) / step))])
    dtype = known(node, start, "the start").dtype
    return np.arange(first, last, step).astype(np.int64 if dtype.kind == "O" else dtype)


@converter("Tile", since=6, known=(1,))
def tile(node: Node, data: Value, repeats: Value) -> Tensor:
    x, times = tensor(data), known_integers(node, repeats, "the repeats")
    if len(times) != x.ndim:
        raise node.invalid(f"{len(times)} repeats do not fit {x.spec}")
    bounded([n * m for n, m in zip(x.shape, times, strict=True)])
    return ops.tile(x, times)
