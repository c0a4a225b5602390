"""Converters of arithmetic, element by element."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...conversion.values import Value
from ...tensor import Tensor
from ..operands import Number, cast
from ..program import Node
from ..registry import converter


@converter("aten.add")
def add(node: Node, x: Value, other: Any, alpha: Number = 1) -> Tensor:
    a, b = (cast(each, node.dtype) for each in (x, other))
    if node.dtype == "bool":
        return ops.logical_or(a, b) if alpha else a
    return ops.add(a, b if alpha == 1 else ops.mul_scalar(b, alpha))


@converter("aten.sub")
def subtract(node: Node, x: Value, other: Any, alpha: Number = 1) -> Tensor:
    a, b = (cast(each, node.dtype) for each in (x, other))
    return ops.subtract(a, b if alpha == 1 else ops.mul_scalar(b, alpha))


@converter("aten.mul")
def multiply(node: Node, x: Value, other: Any) -> Tensor:
    a, b = (cast(each, node.dtype) for each in (x, other))
    return ops.logical_and(a, b) if node.dtype == "bool" else ops.multiply(a, b)
