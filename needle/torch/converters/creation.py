"""Converters of operators that create tensors from numbers and sizes.

PyTorch computes tensors of fixed sizes when a model is loaded; these converters are for open sizes.
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value
from ..operands import Number, cast, number
from ..program import Node
from ..registry import converter


def filled(node: Node, value: Any) -> Tensor:
    """Return a tensor of the shape and dtype of `node`, filled with `value`."""
    return ops.broadcast_to(cast(value, node.dtype), node.shape)


@converter("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten._efficientzerotensor")
@converter("aten.empty.memory_format", "aten.empty_like", "aten.new_empty", "aten.empty_strided")
@converter("aten.new_empty_strided", "aten.empty_permuted")
def zeros(node: Node, *_: Any) -> Tensor:
    return filled(node, 0)


@converter("aten.ones", "aten.ones_like", "aten.new_ones")
def ones(node: Node, *_: Any) -> Tensor:
    return filled(node, 1)


@converter("aten.full", "aten.full_like")
def full(node: Node, _: Any, value: Number, *others: Any) -> Tensor:
    return filled(node, value)


@converter("aten.new_full")
def new_full(node: Node, _: Any, size: Any, value: Number, *others: Any) -> Tensor:
    return filled(node, value)


@converter("aten.fill", "aten.fill_copy")
def fill(node: Node, x: Value, value: Any) -> Tensor:
    return filled(node, value)


@converter("aten.scalar_tensor")
def scalar_tensor(node: Node, value: Number, *_: Any) -> Tensor:
    return number(value, node.dtype)


@converter("aten.arange.default")
def arange(node: Node, end: Any, *_: Any) -> Tensor:
    return counted(node, 0, 1)


@converter("aten.arange.start")
def arange_from(node: Node, start: Any, end: Any, *_: Any) -> Tensor:
    return counted(node, start, 1)


@converter("aten.arange.start_step")
def arange_by(node: Node, start: Any, end: Any, step: Any = 1, *_: Any) -> Tensor:
    return counted(node, start, step)


def counted(node: Node, start: Any, step: Any) -> Tensor:
    """Return `start`, `start` + `step`, ... , as many numbers as the result of `node` has."""
    kind = "float64" if isinstance(start, float) or isinstance(step, float) else "int64"
    places = ops.arange(node.shape[0], dtype=kind)
    if step != 1:
        places = ops.multiply(places, number(step, kind))
    if not isinstance(start, (int, float)) or start != 0:
        places = ops.add(places, number(start, kind))
    return cast(places, node.dtype)
