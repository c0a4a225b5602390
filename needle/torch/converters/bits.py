"""Converters of functions of the bits of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import ops
from ...conversion.values import Value, tensor
from ...tensor import Tensor
from ..operands import cast
from ..program import Node
from ..registry import converter

_BITWISE: dict[str, Callable[[Any, Any], Tensor]] = {
    "bitwise_and": ops.bitwise_and,
    "bitwise_or": ops.bitwise_or,
    "bitwise_xor": ops.bitwise_xor,
    "__and__": ops.bitwise_and,
    "__or__": ops.bitwise_or,
    "__xor__": ops.bitwise_xor,
    "bitwise_left_shift": ops.left_shift,
    "__lshift__": ops.left_shift,
    "bitwise_right_shift": ops.right_shift,
    "__rshift__": ops.right_shift,
}


@converter(*(f"aten.{name}" for name in _BITWISE))
def bitwise(node: Node, x: Any, other: Any) -> Tensor:
    found = _BITWISE[node.operator.split(".")[1]]
    return found(cast(x, node.dtype), cast(other, node.dtype))


@converter("aten.bitwise_not")
def bitwise_not(node: Node, x: Value) -> Tensor:
    return ops.bitwise_not(tensor(x))
