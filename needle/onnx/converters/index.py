"""Converters of operators that read or write by index, and of sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...common.state import state
from ...conversion.budget import bounded
from ...conversion.values import (
    Value,
    along,
    known_integer,
    normal_axis,
    tensor,
)
from ...sizes.dims import Expression
from ..graph import Node
from ..registry import converter


def index_tensor(value: Value) -> Tensor:
    """Return `value` as a tensor of int64 indices."""
    found = tensor(value)
    return found if found.dtype == "int64" else ops.cast(found, "int64")


@converter("Gather", since=1)
def gather(node: Node, data: Value, indices: Value) -> Tensor:
    x = tensor(data)
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    if isinstance(indices, np.ndarray) and indices.ndim == 0:  # a scalar drops the axis
        at = known_integer(node, indices, "the index")
        return x[along(axis, at)]
    return ops.take(x, index_tensor(indices), axis)


@converter("GatherElements", since=11)
def gather_elements(node: Node, data: Value, indices: Value) -> Tensor:
    x, index = tensor(data), index_tensor(indices)
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    return ops.take_along_axis(_cut(x, index, axis), index, axis)


def _cut(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Cut all axes of `x` but `axis`, along which `index` selects, to the extents of `index`."""
    key = tuple(
        slice(None) if i == axis or _same(n, m) else slice(0, m)
        for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))
    )
    return x if all(part == slice(None) for part in key) else x[key]


def _same(n: Any, m: Any) -> bool:
    return n is m or (isinstance(n, int) and isinstance(m, int) and n == m) or n == m


def counting(n: Any, behind: int = 0) -> Tensor:
    """Return the integers from 0 to n - 1 on one axis, followed by `behind` axes of extent 1."""
    if isinstance(n, Expression):
        shape: tuple[Any, ...] = (n, *(1,) * behind)
        return ops.reshape(ops.arange(n, dtype="int64"), shape)
    return Tensor(np.arange(n).reshape(-1, *(1,) * behind), requires_grad=False)


@converter("GatherND", since=11)
def gather_nd(node: Node, data: Value, indices: Value) -> Tensor:
    x, index = tensor(data), index_tensor(indices)
    batch = node.integer("batch_dims", 0)
    return x[_places(x, index, batch)]


def _places(x: Tensor, index: Tensor, batch: int) -> tuple[Any, ...]:
    """Return the key that selects from `x` the positions in `index`. Each row of `index` (its last
    axis) is one position; `x` and `index` share their first `batch` axes."""
    count = index.shape[-1]
    lead = index.ndim - 1
    grids = [counting(index.shape[axis], lead - 1 - axis) for axis in range(batch)]
    return (*grids, *(index[..., i] for i in range(count)))


# Writing

_WRITES = {
    **{"none": ops.set_at, "add": ops.add_at, "mul": ops.mul_at},
    **{"max": ops.max_at, "min": ops.min_at},
}


def _how(node: Node) -> str:
    """Return the attribute `reduction`."""
    reduction = node.text("reduction", "none")
    if reduction not in _WRITES:
        raise node.invalid(f"reduction {reduction!r} must be none, add, mul, max or min")
    return reduction


@converter("Scatter", since=9)
@converter("ScatterElements", since=11)
def scatter_elements(node: Node, data: Value, indices: Value, updates: Value) -> Tensor:
    x, index, source = tensor(data), index_tensor(indices), tensor(updates)
    axis, how = normal_axis(node, node.integer("axis"), x.ndim), _how(node)
    if x.dtype == "bool" and how != "none":
        return _of_flags(scatter_elements, node, x, index, source)
    if index.shape != source.shape:
        raise node.invalid(f"indices {index.spec} and updates {source.spec} differ in shape")
    key = [counting(n, x.ndim - 1 - i) for i, n in enumerate(index.shape)]
    if all(
        i == axis or _same(n, m) for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))
    ):
        return ops.put_along_axis(x, index, source, axis, "set" if how == "none" else how)
    key[axis] = index
    return _WRITES[how](x, tuple(key), source)


def _of_flags(
    scatter: Callable[..., Tensor], node: Node, x: Tensor, index: Tensor, source: Tensor
) -> Tensor:
    """Reduce booleans as integers: a nonzero result is true, so a sum is a logical or."""
    numbers, added = (ops.cast(each, "int32") for each in (x, source))
    return ops.cast(scatter(node, numbers, index, added), "bool")


@converter("ScatterND", since=11)
def scatter_nd(node: Node, data: Value, indices: Value, updates: Value) -> Tensor:
    x, index, source = tensor(data), index_tensor(indices), tensor(updates)
    how = _how(node)
    if x.dtype == "bool" and how != "none":
        return _of_flags(scatter_nd, node, x, index, source)
    return _WRITES[how](x, _places(x, index, 0), source)


# Creating tensors


@converter("OneHot", since=9, known=(1,))
def one_hot(node: Node, indices: Value, depth: Value, values: Value) -> Tensor:
    count = known_integer(node, _whole(depth), "the depth")
    index, pair = tensor(indices), tensor(values)
    index = ops.cast(index, "int64") if index.dtype != "int64" else index
    index = ops.where(ops.less(index, 0), ops.add(index, count), index)
    axis = normal_axis(node, node.integer("axis"), index.ndim + 1)
    bounded([*index.shape, count])
    classes = np.arange(count).reshape(-1, *(1,) * (index.ndim - axis))
    hot = ops.equal(ops.unsqueeze(index, axis), Tensor(classes, requires_grad=False))
    return ops.where(hot, pair[1], pair[0])


def _whole(value: Value) -> Value:
    """Return a known value as int64, and any other value unchanged."""
    return value.astype(np.int64) if isinstance(value, np.ndarray) else value


@converter("EyeLike", since=9)
def eye_like(node: Node, data: Value) -> np.ndarray:
    rows, columns = bounded(data.shape)
    dtype = node.dtype("dtype", str(data.dtype))
    return np.eye(rows, columns, node.integer("k")).astype(np.dtype(dtype))


@converter("Trilu", since=14, known=(1,))
def trilu(node: Node, data: Value, k: Value | None = None) -> Tensor:
    x = tensor(data)
    diagonal = 0 if k is None else known_integer(node, k, "the diagonal")
    diagonal = max(-(2**31), min(2**31, diagonal))
    made = ops.triu if node.flag("upper") else ops.tril
    return made(x, diagonal)


# Sorting and searching


@converter("TopK", since=1)
def top_k_by_attribute(node: Node, data: Value) -> tuple[Tensor, Tensor]:
    return _top_k(node, tensor(data), node.integer("k"))


@converter("TopK", since=10, known=(1,))
def top_k(node: Node, data: Value, k: Value) -> tuple[Tensor, Tensor]:
    return _top_k(node, tensor(data), known_integer(node, k, "k"))


def _top_k(node: Node, x: Tensor, k: Any) -> tuple[Tensor, Tensor]:
    axis = normal_axis(node, node.integer("axis"), x.ndim)
    values, places = ops.topk(x, k, axis, node.flag("largest", True))
    return values, places


def data_dependent(node: Node) -> None:
    """Raise UnsupportedError while tracing, because the size of the result of `node` depends on
    values, which a trace does not have."""
    if state.trace is not None:
        raise node.unsupported(
            "the shape of its result depends on values that only a call knows; if they come from "
            "an input of the model, give the input a value with fixed={...}"
        )


@converter("NonZero", since=9)
def nonzero(node: Node, data: Value) -> Tensor:
    data_dependent(node)
    found = ops.nonzero(tensor(data))
    assert isinstance(found, Tensor)  # a tuple only with as_tuple
    return ops.transpose(found)


@converter("Compress", since=9)
def compress(node: Node, data: Value, condition: Value) -> Tensor:
    if not isinstance(condition, np.ndarray):
        data_dependent(node)
        condition = tensor(condition).numpy()
    x, at = tensor(data), np.flatnonzero(condition)
    axis = normal_axis(node, node.integer("axis"), x.ndim) if node.has("axis") else None
    return ops.take(ops.reshape(x, (-1,)) if axis is None else x, Tensor(at), axis or 0)


@converter("Unique", since=11)
def unique(node: Node, data: Value) -> tuple[np.ndarray, ...]:
    data_dependent(node)
    x = tensor(data).numpy()
    axis = normal_axis(node, node.integer("axis"), x.ndim) if node.has("axis") else None
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not node.flag("sorted"):
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values = np.take(values, order, axis or 0)
        first, counts, inverse = first[order], counts[order], place[inverse]
    return values, *(each.astype(np.int64) for each in (first, inverse, counts))


@converter("ReverseSequence", since=10)
def reverse_sequence(node: Node, data: Value, lengths: Value) -> Tensor:
    x = tensor(data)
    time, batch = node.integer("time_axis"), node.integer("batch_axis")
    if {time, batch} != {0, 1}:
        raise node.invalid(f"time_axis {time}, batch_axis {batch}: one must be 0, the other 1")
    steps = counting(x.shape[time])
    length = ops.unsqueeze(index_tensor(lengths), 1)  # (batch, 1)
    at = ops.where(ops.less(steps, length), ops.subtract(ops.subtract(length, 1), steps), steps)
    at = at if batch == 0 else ops.transpose(at)
    at = ops.broadcast_to(ops.reshape(at, (*at.shape, *(1,) * (x.ndim - 2))), x.shape)
    return ops.take_along_axis(x, at, time)


@converter("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", since=1)
@converter("RandomNormalLike", "RandomUniformLike", since=1)
def random(node: Node, *inputs: Value | None) -> Any:
    raise node.unsupported("it draws random numbers")
