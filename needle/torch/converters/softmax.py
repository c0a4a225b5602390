"""Converters of softmax and related functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ..operands import cast, wide, with_axis
from ..program import Node
from ..registry import converter


def _along(node: Node, x: Value, dim: int, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Apply a function along an axis, and cast to the result's dtype. An input of another dtype is
    first cast to the result's dtype; a half-precision input that already has it is cast to
    float32."""
    source = tensor(x)
    source = wide(source) if source.dtype == node.dtype else cast(source, node.dtype)
    made = function(with_axis(source), dim)
    return ops.cast(made if source.ndim else ops.reshape(made, ()), node.dtype)


@converter("aten.softmax.int", "aten._softmax", "aten.special_softmax")
def softmax(node: Node, x: Value, dim: int, dtype: Any = None) -> Tensor:
    """Return the softmax along an axis. `dtype` is not read, because `node` has the result's dtype.
    For `_softmax`, it is a bool: whether a half-precision input gives a float32 result."""
    return _along(node, x, dim, ops.softmax)


@converter("aten.log_softmax.int", "aten._log_softmax", "aten.special_log_softmax")
def log_softmax(node: Node, x: Value, dim: int, dtype: Any = None) -> Tensor:
    return _along(node, x, dim, ops.logsoftmax)


@converter("aten._safe_softmax")
def safe_softmax(node: Node, x: Value, dim: int, dtype: str | None = None) -> Tensor:
    """Return the softmax along an axis, with zeros where all elements along the axis are -inf."""
    source = tensor(x)
    made = _along(node, source, dim, ops.softmax)
    seen = ops.any(ops.not_equal(source, float("-inf")), dim if source.ndim else None, True)
    return ops.where(seen, made, 0.0)
