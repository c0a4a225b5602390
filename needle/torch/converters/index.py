"""Converters of operators that take elements by index."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...common.state import state
from ...conversion.values import Value, dtype_of, normal_axis, shape_of, tensor
from ..operands import cast
from ..program import Node
from ..registry import converter


def index_tensor(value: Value) -> Tensor:
    """A value as indices: int64 or int32."""
    found = tensor(value)
    return found if found.dtype in ("int64", "int32") else ops.cast(found, "int64")


def line(x: Value) -> Tensor:
    """A tensor of no axis as one of one element; any other as it is."""
    found = tensor(x)
    return found if found.ndim else ops.reshape(found, (1,))


def is_mask(index: Value) -> bool:
    return dtype_of(index) in ("bool", "uint8")


@converter("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(node: Node, x: Value, indices: tuple[Value | None, ...]) -> Tensor:
    if any(each is not None and is_mask(each) for each in indices):
        raise node.unsupported(
            "a mask as an index, for which the number of true elements decides the result's shape: "
            "choose by torch.where"
        )
    return ops.getitem(tensor(x), index_key(indices))


def index_key(indices: tuple[Value | None, ...]) -> tuple[Any, ...]:
    """The key of indices for the first axes, of which None takes a whole one."""
    return tuple(slice(None) if each is None else index_tensor(each) for each in indices)


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
    """Rows of a weight. That of `padding_idx` gets no gradient, and with `scale_grad_by_freq` those
    of others are divided by how often the indices name the row."""
    rows, places = tensor(weight), index_tensor(indices)
    found = ops.take(rows, places, 0)
    if not state.grad:
        return found
    line = (*places.shape, *[1] * (rows.ndim - 1))
    if scale_grad_by_freq:
        ones = ops.broadcast_to(cast(1, "int64"), places.shape)
        zeros = ops.broadcast_to(cast(0, "int64"), (rows.shape[0],))
        counts = ops.take(ops.put(zeros, places, ones, 0, "add"), places, 0)
        kept = ops.detach(found)
        change = ops.subtract(found, kept)  # 0, or NaN
        share = ops.divide(change, ops.reshape(cast(counts, rows.dtype), line))
        found = ops.where(ops.equal(change, 0), ops.add(kept, share), kept)
    if padding_idx < 0:
        return found
    is_padding = ops.reshape(ops.equal(places, padding_idx), line)
    return ops.where(is_padding, ops.detach(found), found)
