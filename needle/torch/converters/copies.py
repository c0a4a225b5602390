"""Converters of operators that copy one tensor into another, in functional form."""

from __future__ import annotations

from typing import Any

from ... import ops
from ..operands import cast
from ..program import Node
from ..registry import converter


@converter("aten.copy")
def _copy(node: Node, x: Any, source: Any, *_: Any) -> Any:
    """Return `source` in the shape and dtype of `x`."""
    return ops.broadcast_to(cast(source, node.dtype), node.shape)
