"""Converters of attention, in the form that becomes one kernel."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import finfo
from ...conversion.values import Value, tensor
from ...nn import functional as F
from ...nn.functional.attention import with_masks
from ...sizes.extents import same
from ..operands import cast, wide
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
    _refuse_dropout(node, dropout)
    q, k, v = wide(query), wide(key), wide(value)
    made, _ = attended(q, k, v, mask, is_causal, scale, enable_gqa)
    return ops.cast(made, node.dtype)


def _refuse_dropout(node: Node, dropout: float) -> None:
    if dropout:
        raise node.unsupported(f"dropout_p={dropout}, which draws random numbers")


@converter("aten._scaled_dot_product_flash_attention_for_cpu")
def attention_on_cpu(
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    dropout: float = 0.0,
    is_causal: bool = False,
    mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """Return the result, and None for the sums of exponentials, which only gradients read."""
    made = attention(node, query, key, value, mask, dropout, is_causal, scale)
    return made, *[None] * (len(node.results) - 1)


@converter(
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
)
def attention_on_gpu(
    node: Node, query: Value, key: Value, value: Value, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Return the result, and None for values that only gradients read. The arguments after the
    first three differ between the operators."""
    name = node.operator
    mask = None if name.endswith("flash_attention.default") else rest[0]
    rest = rest[0 if name.endswith("flash_attention.default") else 1 :]
    rest = rest[1 if "efficient" in name or "cudnn" in name else 0 :]  # compute_log_sumexp
    made = attention(node, query, key, value, mask, rest[0], rest[1], rest[-1])
    return made, *[None] * (len(node.results) - 1)


@converter("aten._scaled_dot_product_attention_math")
def attention_by_steps(
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Value | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the result and the weights. Unlike in the other operators, a bool mask is added as 0
    and 1."""
    _refuse_dropout(node, dropout)
    q, k, v = wide(query), wide(key), wide(value)
    mask = None if mask is None else cast(mask, q.dtype)
    made, weights = attended(q, k, v, mask, is_causal, scale, enable_gqa, True)
    return tuple(  # type: ignore[return-value]
        ops.cast(each, wanted.dtype)
        for each, wanted in ((made, node.result(0)), (weights, node.result(1)))
        if each is not None
    )


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Value | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    shown: bool = False,
    nothing: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Return softmax(`scale` `q` `k`^T + `mask`) `v`, and the weights if `shown`. The result is
    `nothing` for a query that sees no key. `is_causal` and `enable_gqa` are PyTorch's.

    Leading axes are reshaped to one batch axis and one axis of heads, the form that becomes one
    kernel.
    """
    if enable_gqa:
        k, v = (_repeated(x, q.shape[-3]) for x in (k, v))
    lead = q.shape[:-2]
    shape = (*lead, q.shape[-2], v.shape[-1])
    added, rows = (None, None) if mask is None else _finite(mask, q.dtype)
    folded = len(lead) != 2 and same(lead, k.shape[:-2]) and same(lead, v.shape[:-2])
    if folded:
        heads = prod(lead[:-1]), lead[-1] if lead else 1
        q, k, v = (ops.reshape(x, (*heads, *x.shape[-2:])) for x in (q, k, v))
        added = None if added is None else _of_heads(added, lead)
        rows = None if rows is None else _of_heads(rows, lead)
    result = F.scaled_dot_product_attention(q, k, v, added, is_causal=is_causal, scale=scale)
    result = result if rows is None else ops.where(rows, result, nothing)
    weights = None
    if shown:
        scores = ops.mul_scalar(
            ops.matmul(q, ops.transpose(k)), q.shape[-1] ** -0.5 if scale is None else scale
        )
        weights = ops.softmax(with_masks(scores, [added], True, is_causal))
        weights = weights if rows is None else ops.where(rows, weights, nothing)
        weights = ops.reshape(weights, (*shape[:-1], k.shape[-2])) if folded else weights
    return ops.reshape(result, shape) if folded else result, weights


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Repeat the heads of x (..., G, S, D) to `heads` in total; a head's copies are adjacent."""
    *lead, groups, length, features = x.shape
    if groups == heads:
        return x
    split = ops.reshape(x, (*lead, groups, 1, length, features))
    wider = ops.broadcast_to(split, (*lead, groups, heads // groups, length, features))
    return ops.reshape(wider, (*lead, heads, length, features))


def _of_heads(mask: Tensor, lead: tuple[Any, ...]) -> Tensor:
    """Reshape a mask for any leading axes to a mask for one batch axis and one axis of heads."""
    if mask.ndim <= 3:
        return mask
    whole = ops.broadcast_to(mask, (*lead, *mask.shape[-2:]))
    return ops.reshape(whole, (prod(lead[:-1]), *whole.shape[-3:]))


def _finite(mask: Value, dtype: str) -> tuple[Tensor, Tensor | None]:
    """Return a mask to add, with the lowest number in place of -inf, and the mask (..., L, 1) of
    the queries that see a key, or None if all queries see one."""
    lowest = float(finfo(dtype).min)
    if isinstance(mask, np.ndarray):
        boolean = mask.dtype == bool
        seen = mask if boolean else mask.astype("float64") > -np.inf
        known = np.where(mask, 0.0, lowest) if boolean else np.maximum(mask, lowest)
        rows = np.asarray(seen.any(-1, keepdims=True))
        added = Tensor(known.astype(dtype), requires_grad=False)
        return added, None if rows.all() else tensor(rows)
    if mask.dtype == "bool":
        zero = Tensor(0.0, dtype=dtype, requires_grad=False)
        return ops.where(mask, zero, lowest), _any(mask)
    wider = ops.cast(mask, dtype)
    return ops.maximum(wider, lowest), _any(ops.greater(wider, float("-inf")))


def _any(seen: Tensor) -> Tensor | None:
    """Return the mask of the queries that see a key. Bytes are used because many fit in a
    vector."""
    if isinstance(seen.shape[-1], int) and seen.shape[-1] == 0:
        return None
    return ops.cast(ops.max(ops.cast(seen, "int8"), -1, keepdims=True), "bool")
