"""Converters of matrix products."""

from __future__ import annotations

from ... import ops
from ...conversion.values import Value, tensor
from ...tensor import Tensor
from ..program import Node
from ..registry import converter


@converter("aten.linear")
def linear(node: Node, x: Value, weight: Value, bias: Value | None = None) -> Tensor:
    """x (..., K) times the transpose of a weight (N, K), plus a bias (N,)."""
    w = tensor(weight)
    made = ops.matmul(tensor(x), ops.transpose(w) if w.ndim == 2 else w)
    return made if bias is None else ops.add(made, tensor(bias))
