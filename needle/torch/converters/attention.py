"""Converters of attention, in the form that becomes one kernel."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...backend_ndarray.dtypes import finfo
from ...conversion.values import Value, tensor
from ...nn import functional as F
from ...tensor import Tensor
from ..operands import wide
from ..program import Node
from ..registry import converter


@converter("aten.scaled_dot_product_attention")
def attention(
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout:
        raise node.unsupported(f"dropout_p={dropout}, which draws random numbers")
    return attended(node, query, key, value, mask, is_causal, scale, enable_gqa)


def attended(
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale q k^T + mask) v, 0 for a query that sees no key."""
    q, k, v = wide(query), wide(key), wide(value)
    added, rows = (None, None) if mask is None else _finite(mask, q.dtype)
    made = F.scaled_dot_product_attention(
        q, k, v, added, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    made = made if rows is None else ops.where(tensor(rows), made, 0.0)
    return ops.cast(made, node.dtype)


def _finite(mask: Value, dtype: str) -> tuple[Tensor, Value | None]:
    """A mask to add, with the lowest number in the place of -inf, and which queries see a key
    (..., L, 1), None if all do."""
    lowest = float(finfo(dtype).min)
    if isinstance(mask, np.ndarray):
        seen = mask if mask.dtype == bool else mask.astype("float64") > -np.inf
        known = np.where(mask, 0.0, lowest) if mask.dtype == bool else np.maximum(mask, lowest)
        rows = np.asarray(seen.any(-1, keepdims=True))
        added = Tensor(known.astype(dtype), requires_grad=False)
        return added, None if rows.all() else rows
    if mask.dtype == "bool":
        return mask, ops.any(mask, -1, keepdims=True)
    wider = ops.cast(mask, dtype)
    seen_keys = ops.greater(wider, float("-inf"))
    return ops.maximum(wider, lowest), ops.any(seen_keys, -1, keepdims=True)
