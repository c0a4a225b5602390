"""Converters of attention and related operators: rotary embeddings and caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, normal_axis, size_tensor, tensor
from ...sizes.extents import is_symbolic
from ..graph import Node
from ..guards import DOMAIN
from ..heads import (
    Mask,
    attend,
    attend_in_steps,
    cached_angles,
    finite_mask,
    intersection,
    join_heads,
    rotated,
    seen_before,
    seen_by_position,
    sees_any,
    softmax_dtype,
    split_heads,
)
from ..registry import converter


@converter("Attention", since=23)
def attention(
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    lengths: Value | None = None,
) -> tuple[Any, ...]:
    q, k, v = (tensor(x) for x in (query, key, value))
    flat = q.ndim == 3
    if flat:
        q = split_heads(node, q, node.integer("q_num_heads"))
        k, v = (split_heads(node, x, node.integer("kv_num_heads")) for x in (k, v))
    if not q.ndim == k.ndim == v.ndim == 4:
        raise node.invalid(
            f"{query.shape}, {key.shape} and {value.shape} must all have 3 axes, or all 4"
        )
    if q.shape[1] % k.shape[1]:
        raise node.invalid(
            f"{k.shape[1]} heads of keys do not divide {q.shape[1]} heads of queries"
        )
    if (past_key is None) != (past_value is None):
        raise node.invalid("past_key and past_value belong together")
    if past_key is not None and past_value is not None:
        k, v = ops.concat([tensor(past_key), k], 2), ops.concat([tensor(past_value), v], 2)
    seen, added = _masks(node, q, k, mask, past_key, lengths)
    scale = node.number("scale", 0.0) or float(q.shape[3]) ** -0.5
    softcap = node.number("softcap", 0.0)
    asked = node.dtype("softmax_precision") if node.has("softmax_precision") else None
    precision = softmax_dtype(q.dtype, asked)
    if softcap or precision or node.wants(3):
        y, steps = attend_in_steps(q, k, v, scale, seen, added, True, softcap, precision)
        mode = node.integer("qk_matmul_output_mode", 0)
        if not 0 <= mode < len(steps):
            raise node.invalid(f"qk_matmul_output_mode is {mode}, not 0 to 3")
        shown: Tensor | None = steps[mode]
    else:
        y, shown = attend(q, k, v, scale, seen, added, True), None
    return join_heads(y) if flat else y, k, v, shown


def _masks(
    node: Node,
    q: Tensor,
    k: Tensor,
    mask: Value | None,
    past_key: Value | None,
    lengths: Value | None,
) -> tuple[Mask | None, Mask | None]:
    """Return the bool mask of the keys that each query sees, and the mask to add to the scores."""
    queries, keys = q.shape[2], k.shape[2]
    seen: Mask | None = None
    added: Mask | None = None
    offset: Any = 0
    if lengths is not None:
        if past_key is not None:
            raise node.invalid("nonpad_kv_seqlen is not used with past_key")
        ends = tensor(lengths)
        seen = seen_before(ends, keys)
        offset = ops.subtract(ops.cast(ends, "int64"), size_tensor(queries))
    elif past_key is not None:
        offset = past_key.shape[2]
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    if node.flag("is_causal", False):
        right = 0
    if left >= 0 or right >= 0:
        seen = intersection(seen, seen_by_position(queries, keys, offset, left, right))
    if mask is not None:
        given = _widened(mask, keys)
        if str(given.dtype) == "bool":
            seen = intersection(seen, given)
        else:
            added = given
    return seen, added


def _widened(mask: Mask, keys: Any) -> Mask:
    """Extend a mask so that its last axis covers all keys. No query sees the additional keys."""
    extent = mask.shape[-1]
    if is_symbolic((extent, keys)) or extent in (1, keys):
        return mask
    nothing = False if str(mask.dtype) == "bool" else float("-inf")
    widths = [(0, 0)] * (mask.ndim - 1) + [(0, keys - extent)]
    if isinstance(mask, np.ndarray):
        return np.pad(mask, widths, constant_values=nothing)
    return ops.pad(mask, widths, nothing)


@converter("RotaryEmbedding", since=23)
def rotary_embedding(
    node: Node, data: Value, cos: Value, sin: Value, at: Value | None = None
) -> Tensor:
    x = tensor(data)
    flat = x.ndim == 3
    if flat:
        x = split_heads(node, x, node.integer("num_heads", 0))
    angles = [cached_angles(cache, at) for cache in (cos, sin)]
    dim = node.integer("rotary_embedding_dim", 0) or x.shape[-1]
    if any(table.shape[-1] * 2 != dim for table in angles):
        raise node.invalid(f"caches of {cos.shape} and {sin.shape} do not fit {dim} features")
    y = rotated(x, angles[0], angles[1], node.flag("interleaved", False))
    return join_heads(y) if flat else y


@converter("TensorScatter", since=24)
def tensor_scatter(node: Node, cache: Value, update: Value, starts: Value | None = None) -> Tensor:
    past, new = tensor(cache), tensor(update)
    axis = normal_axis(node, node.integer("axis", -2), past.ndim)
    mode = node.text("mode", "linear")
    if axis == 0 or mode not in ("linear", "circular"):
        raise node.invalid(f"axis {axis} is 0, or mode {mode!r} is not linear or circular")
    batch, length = new.shape[0], new.shape[axis]
    begin = np.zeros(1, np.int64) if starts is None else starts
    at = ops.add(
        ops.reshape(ops.cast(tensor(begin), "int64"), (tensor(begin).size, 1)),
        ops.arange(length, dtype="int64"),
    )
    if mode == "circular":
        at = ops.remainder(at, size_tensor(past.shape[axis]))
    rows = ops.reshape(ops.arange(batch, dtype="int64"), (batch, 1))
    moved = ops.set_at(ops.moveaxis(past, axis, 1), (rows, at), ops.moveaxis(new, axis, 1))
    return ops.moveaxis(moved, 1, axis)


# The operators that `guards` inserts into attention exported by PyTorch


@converter("Finite", domain=DOMAIN)
def finite(node: Node, mask: Value) -> Value:
    """Return a mask with the lowest finite number in place of -inf."""
    return finite_mask(mask, str(mask.dtype))


@converter("ZeroRows", domain=DOMAIN)
def zero_rows(node: Node, data: Value, mask: Value) -> Tensor:
    """Return the results of attention, with 0 for a query whose mask is -inf for every key."""
    x, rows = tensor(data), sees_any(None, mask)
    return x if rows is None else ops.where(tensor(rows), x, 0.0)
