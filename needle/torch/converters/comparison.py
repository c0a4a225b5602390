"""Converters of comparisons and of functions of booleans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import FLOATING
from ...conversion.values import Value, tensor
from ..operands import cast, promoted
from ..program import Node
from ..registry import converter

_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


@converter(*(f"{space}.{name}" for space in ("aten", "prims") for name in _COMPARISONS))
def compare(node: Node, x: Any, other: Any) -> Tensor:
    return ops.compare(_COMPARISONS[node.operator.split(".")[1]], *promoted(node, x, other))


_LOGICAL: dict[str, Callable[[Any, Any], Tensor]] = {
    "aten.logical_and": ops.logical_and,
    "aten.logical_or": ops.logical_or,
    "aten.logical_xor": ops.logical_xor,
}


@converter(*_LOGICAL)
def logical(node: Node, x: Value, other: Value) -> Tensor:
    return _LOGICAL[node.operator.rpartition(".")[0]](tensor(x), tensor(other))


@converter("aten.logical_not")
def logical_not(node: Node, x: Value) -> Tensor:
    return ops.logical_not(tensor(x))


@converter("aten.isnan")
def is_nan(node: Node, x: Value) -> Tensor:
    return ops.isnan(tensor(x))


@converter("aten.isinf")
def is_inf(node: Node, x: Value) -> Tensor:
    return ops.isinf(tensor(x))


@converter("aten.isfinite", "prims.isfinite")
def is_finite(node: Node, x: Value) -> Tensor:
    return ops.isfinite(tensor(x))


@converter("aten.isposinf")
def is_positive_infinity(node: Node, x: Value) -> Tensor:
    return _equal_to(float("inf"), x)


@converter("aten.isneginf")
def is_negative_infinity(node: Node, x: Value) -> Tensor:
    return _equal_to(float("-inf"), x)


def _equal_to(infinity: float, x: Value) -> Tensor:
    found = tensor(x)
    return ops.equal(found, infinity) if found.dtype in FLOATING else ops.isnan(found)


@converter("aten.where", "prims.where")
def where(node: Node, condition: Value, x: Any, other: Any) -> Tensor:
    return ops.where(tensor(condition), cast(x, node.dtype), cast(other, node.dtype))


@converter("aten.masked_fill")
def masked_fill(node: Node, x: Value, mask: Value, value: Any) -> Tensor:
    return ops.where(tensor(mask), cast(value, node.dtype), tensor(x))
