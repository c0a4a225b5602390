"""Converters of operators that read or write elements by index: index, index_put, gather."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...common.state import state
from ...conversion.values import Value, normal_axis, shape_of, tensor
from ...sizes.extents import same
from ..operands import Number, cast
from ..program import Node
from ..registry import converter
from .index_helpers import (
    divided,
    index_key,
    index_tensor,
    is_mask,
    line,
    masked,
    neutral,
    of_flags,
    put_slices,
    reduction,
)


@converter("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(node: Node, x: Value, indices: tuple[Value | None, ...]) -> Tensor:
    if any(each is not None and is_mask(each) for each in indices):
        raise node.unsupported(
            "a mask as an index, because its number of true elements decides the result's shape: "
            "select with torch.where"
        )
    return ops.getitem(tensor(x), index_key(indices))


@converter("aten.index_select", "aten.index_select_copy")
def index_select(node: Node, x: Value, axis: int, index: Value) -> Tensor:
    found = line(x)
    made = ops.take(found, line(index_tensor(index)), normal_axis(node, axis, found.ndim))
    return ops.reshape(made, node.shape)


@converter("aten.gather")
def gather(node: Node, x: Value, axis: int, index: Value) -> Tensor:
    found, places = line(x), line(index_tensor(index))
    if 0 in shape_of(places):
        return ops.reshape(ops.cast(places, found.dtype), node.shape)
    made = ops.gather(found, normal_axis(node, axis, found.ndim), places)
    return ops.reshape(made, node.shape)


@converter("aten.embedding")
def embedding(
    node: Node,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return rows of a weight. The row `padding_idx` gets no gradient. With `scale_grad_by_freq`,
    the gradient of each row is divided by the number of times that the row is read."""
    rows, places = tensor(weight), index_tensor(indices)
    looked_up = ops.take(rows, places, 0)
    if not state.grad:
        return looked_up
    line = (*places.shape, *[1] * (rows.ndim - 1))
    if scale_grad_by_freq:
        ones = ops.broadcast_to(cast(1, "int64"), places.shape)
        zeros = ops.broadcast_to(cast(0, "int64"), (rows.shape[0],))
        counts = ops.take(ops.put(zeros, places, ones, 0, "add"), places, 0)
        kept = ops.detach(looked_up)
        change = ops.subtract(looked_up, kept)  # 0, or NaN
        share = ops.divide(change, ops.reshape(cast(counts, rows.dtype), line))
        looked_up = ops.where(ops.equal(change, 0), ops.add(kept, share), kept)
    if padding_idx < 0:
        return looked_up
    is_padding = ops.reshape(ops.equal(places, padding_idx), line)
    return ops.where(is_padding, ops.detach(looked_up), looked_up)


@converter("aten.index_add")
def index_add(
    node: Node, x: Value, axis: int, index: Value, source: Value, alpha: Number = 1
) -> Tensor:
    added = line(source)
    if alpha != 1:
        added = ops.multiply(added, cast(alpha, added.dtype))
    return put_slices(node, x, axis, index, added, "add")


@converter("aten.index_copy")
def index_copy(node: Node, x: Value, axis: int, index: Value, source: Value) -> Tensor:
    return put_slices(node, x, axis, index, line(source), "set")


@converter("aten.index_fill")
def index_fill(node: Node, x: Value, axis: int, index: Value, value: Any) -> Tensor:
    return put_slices(node, x, axis, index, cast(value, tensor(x).dtype), "set")


@converter("aten.index_reduce")
def index_reduce(
    node: Node,
    x: Value,
    axis: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    how, base = reduction(node, reduce), tensor(x)
    if not include_self:
        start = cast(neutral(how, base.dtype), base.dtype)
        base = put_slices(node, base, axis, index, start, "set")
    made = put_slices(node, base, axis, index, line(source), how)
    if reduce != "mean":
        return made
    counts = ops.broadcast_to(cast(1, "int64"), base.shape)
    if not include_self:
        counts = put_slices(node, counts, axis, index, cast(0, "int64"), "set")
    counts = put_slices(node, counts, axis, index, cast(1, "int64"), "add")
    return divided(made, counts)


@converter("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(
    node: Node,
    x: Value,
    indices: tuple[Value | None, ...],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    base = tensor(x)
    how = "add" if accumulate else "set"
    source = cast(values, "int32" if base.dtype == "bool" and accumulate else base.dtype)
    masks = [each for each in indices if each is not None and is_mask(each)]
    if masks:
        return of_flags(base, how, lambda base: _at_mask(node, base, indices, source, accumulate))
    write = ops.add_at if accumulate else ops.set_at
    key = index_key(indices)
    if all(same(n, 1) for n in source.shape):  # also if the index has no elements
        source = ops.reshape(source, ())
    return of_flags(base, how, lambda base: write(base, key, source))


def _at_mask(
    node: Node, x: Tensor, indices: tuple[Value | None, ...], source: Tensor, accumulate: bool
) -> Tensor:
    """Return x where a mask, the only index, is false, and `source` where it is true. `source` has
    one element along the axes of the mask."""
    (at,) = [i for i, each in enumerate(indices) if each is not None][:1]
    given = indices[at]
    if given is None or sum(each is not None for each in indices) > 1:
        raise node.unsupported("a mask together with another index")
    mask = cast(given, "bool")
    behind = x.ndim - at - mask.ndim
    mask = ops.reshape(mask, (*mask.shape, *[1] * behind))
    if source.ndim > behind:
        place = source.ndim - behind - 1
        if not same(source.shape[place], 1):
            if at or accumulate:
                raise node.unsupported("a mask as an index for values that differ along its axes")
            return masked(x, mask, source)
        extents = (*source.shape[:place], *[1] * (mask.ndim - behind), *source.shape[place + 1 :])
        source = ops.reshape(source, extents)
    return ops.where(mask, ops.add(x, source) if accumulate else source, x)
