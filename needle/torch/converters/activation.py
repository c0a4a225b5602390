"""Converters of activation functions."""

from __future__ import annotations

from ... import ops
from ...conversion.values import Value, tensor
from ...tensor import Tensor
from ..program import Node
from ..registry import converter


@converter("aten.relu")
def relu(node: Node, x: Value) -> Tensor:
    return ops.relu(tensor(x))
