"""Converters of ONNX Runtime's attention operators (domain com.microsoft). They follow ONNX
Runtime's documentation and CPU kernels. A mask adds a finite number, `mask_filter_value`, to the
scores."""

from __future__ import annotations

from typing import Any

from ... import init, ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, known_integer, size_tensor, tensor
from ...sizes.dims import Expression
from ...sizes.extents import same
from ..graph import Node
from ..heads import (
    Mask,
    attend,
    attend_in_steps,
    cached_angles,
    join_heads,
    positions,
    rotated,
    seen_before,
    seen_by_position,
    split_heads,
)
from ..registry import converter
from .microsoft import MICROSOFT


def _scale(node: Node, q: Tensor) -> float:
    return node.number("scale", 0.0) or float(q.shape[-1]) ** -0.5


def _raw(mask: Tensor) -> Tensor:
    """Return a mask (B, S), (B, L, S) or (B, 1, L, S) as a bool mask with four axes, true for keys
    that are seen."""
    seen = ops.greater(mask, 0)
    if mask.ndim == 2:
        return ops.unsqueeze(seen, (1, 2))
    return ops.unsqueeze(seen, 1) if mask.ndim == 3 else seen


def _by_lengths(mask: Value, batch: Any, keys: Any) -> Tensor:
    """Return the bool mask (B, 1, 1, S) of the keys before the end of each sequence. `mask` holds
    the ends (B,), or the ends followed by the starts; keys before a start are not seen either."""
    numbers = tensor(mask)
    seen = seen_before(numbers[:batch], keys)
    if same(numbers.shape[0], batch):
        return seen
    return ops.logical_and(seen, ops.logical_not(seen_before(numbers[batch:], keys)))


def _with_past(x: Tensor, past: Value | None) -> Tensor:
    return x if past is None else ops.concat([tensor(past), x], 2)


@converter("Attention", domain=MICROSOFT)
def attention(
    node: Node,
    data: Value,
    weight: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    past: Value | None = None,
    added: Value | None = None,
    length: Value | None = None,
) -> tuple[Any, ...]:
    if node.flag("do_rotary", False) or node.flag("past_present_share_buffer", False):
        raise node.unsupported("do_rotary and past_present_share_buffer")
    x, heads = tensor(data), node.integer("num_heads")
    sums = ops.matmul(x, tensor(weight))
    sums = sums if bias is None else ops.add(sums, tensor(bias))
    widths = list(node.integers("qkv_hidden_sizes", ())) or [sums.shape[2] // 3] * 3
    q, k, v = (split_heads(node, part, heads) for part in ops.split_sizes(sums, widths, 2))
    before = None if past is None else tensor(past)
    if before is not None:
        k, v = _with_past(k, before[0]), _with_past(v, before[1])
    y = _attended(node, q, k, v, mask, added, 0 if past is None else past.shape[3])
    present = ops.stack([k, v], 0) if node.wants(1) else None
    return join_heads(y), present


def _attended(
    node: Node,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Value | None,
    added: Value | None,
    offset: Any,
) -> Tensor:
    keys = k.shape[2]
    seen: Mask | None = None
    if node.flag("unidirectional", False):
        seen = seen_by_position(q.shape[2], keys, offset, right=0)
    total = None if added is None else tensor(added)
    if mask is not None:
        raw = _by_lengths(mask, q.shape[0], keys) if mask.ndim == 1 else _raw(tensor(mask))
        numbers = ops.where(raw, 0.0, node.number("mask_filter_value", -10000.0))
        numbers = ops.cast(numbers, q.dtype)
        total = numbers if total is None else ops.add(total, numbers)
    return attend(q, k, v, _scale(node, q), seen, total)


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    node: Node,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    mask: Value | None = None,
    added: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    *others: Value | None,
) -> tuple[Any, ...]:
    if any(other is not None for other in others):
        raise node.unsupported("past_sequence_length and cache_indirection, for shared buffers")
    heads = node.integer("num_heads")
    q, k, v = _heads_of(node, heads, query, key, value, bias)
    k, v = _with_past(k, past_key), _with_past(v, past_value)
    offset = 0 if past_key is None else past_key.shape[2]
    if mask is not None and mask.ndim == 1 and not same(mask.shape[0], q.shape[0]):
        raise node.unsupported("key_padding_mask of cumulative lengths, for packed batches")
    if node.wants(3):
        raise node.unsupported("the output of the products of queries and keys")
    y = _attended(node, q, k, v, mask, added, offset)
    return join_heads(y), k, v


def _heads_of(
    node: Node,
    heads: int,
    query: Value,
    key: Value | None,
    value: Value | None,
    bias: Value | None,
) -> tuple[Tensor, ...]:
    """Return queries, keys and values (B, H, L, E) from any of the layouts that MultiHeadAttention
    accepts."""
    q = tensor(query)
    if key is None:  # (B, L, H, 3, E)
        batch, length = q.shape[:2]
        parts = [ops.reshape(q[:, :, :, i], (batch, length, -1)) for i in range(3)]
    elif value is None:  # (B, S, H, 2, E)
        pairs = tensor(key)
        batch, length = pairs.shape[:2]
        parts = [q, *(ops.reshape(pairs[:, :, :, i], (batch, length, -1)) for i in range(2))]
    else:
        parts = [q, tensor(key), tensor(value)]
    if bias is not None:
        shift, start = tensor(bias), 0
        for i, part in enumerate(parts):
            width = part.shape[2] if part.ndim == 3 else part.shape[1] * part.shape[3]
            if part.ndim == 3:  # keys that are already split into heads include the bias
                parts[i] = ops.add(part, shift[start : start + width])
            start += width
    return tuple(x if x.ndim == 4 else split_heads(node, x, heads) for x in parts)


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: Node, data: Value, at: Value, cos: Value, sin: Value) -> Tensor:
    if node.flag("is_packed_batching", False):
        raise node.unsupported("is_packed_batching")
    x = tensor(data)
    flat, half = x.ndim == 3, cos.shape[1]
    if flat:
        heads = node.integer("num_heads", 0)
        x = split_heads(node, x, heads if heads else x.shape[2] // (2 * half))
    place = tensor(at)
    if place.ndim == 1:  # the position of the first element
        steps = tensor(positions(0, x.shape[2]))
        place = ops.reshape(ops.add(ops.cast(place, "int64"), steps), (1, x.shape[2]))
    angles = [cached_angles(table, place) for table in (cos, sin)]
    y = rotated(x, angles[0], angles[1], node.flag("interleaved", False))
    return join_heads(y) if flat else y


@converter("GroupQueryAttention", domain=MICROSOFT, known=(6,))
def group_query_attention(
    node: Node,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    lengths: Value | None = None,
    longest: Value | None = None,
    cos: Value | None = None,
    sin: Value | None = None,
    places: Value | None = None,
    added: Value | None = None,
    sink: Value | None = None,
    *others: Value | None,
) -> tuple[Any, ...]:
    if node.wants(3):
        raise node.unsupported("the output of the products of queries and keys")
    if any(other is not None for other in others):
        raise node.unsupported("caches of integers with scales")
    heads, kv_heads = node.integer("num_heads"), node.integer("kv_num_heads")
    q, k, v = _grouped(node, heads, kv_heads, query, key, value)
    most = known_integer(node, longest, "the total sequence length")
    if lengths is None:
        raise node.invalid("seqlens_k is missing")
    ends = ops.add_scalar(ops.cast(ops.reshape(tensor(lengths), (-1,)), "int64"), 1)
    length = q.shape[2]
    prompt = past_key is None or same(past_key.shape[2], 0) or same(most, length)
    steps = tensor(positions(0, length))
    begin: Any = 0
    if not prompt:
        begin = ops.subtract(ends, size_tensor(length))
    if node.flag("do_rotary", False):
        if cos is None or sin is None:
            raise node.invalid("do_rotary needs cos_cache and sin_cache")
        if places is None:
            first = begin if prompt else ops.reshape(begin, (ends.size, 1))
            at = ops.reshape(steps, (1, length)) if prompt else ops.add(first, steps)
        else:
            at = tensor(places)
        angles = [cached_angles(table, at) for table in (cos, sin)]
        turn = node.flag("rotary_interleaved", False)
        q, k = (rotated(x, angles[0], angles[1], turn) for x in (q, k))
    if past_key is not None and past_value is not None:
        k, v = (
            _written(x, tensor(past), begin, most) for x, past in ((k, past_key), (v, past_value))
        )
    window = node.integer("local_window_size", -1)
    seen = seen_by_position(length, k.shape[2], begin, window - 1 if window > 0 else -1, 0)
    bias = None if added is None else tensor(added)
    scale, softcap = _scale(node, q), node.number("softcap", 0.0)
    own = None if sink is None else tensor(sink)
    if own is None and node.flag("smooth_softmax", False):  # a sink whose score is 0
        own = init.zeros(heads, device=q.device, dtype=q.dtype)
    if own is not None and own.shape != (heads,):
        raise node.invalid(f"head_sink has the shape {own.shape}, not {(heads,)}")
    if softcap or own is not None:
        y, _ = attend_in_steps(q, k, v, scale, seen, bias, softcap=softcap, sink=own)
    else:
        y = attend(q, k, v, scale, seen, bias)
    return join_heads(y), k, v


def _grouped(
    node: Node, heads: int, kv_heads: int, query: Value, key: Value | None, value: Value | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (B, H, L, E), keys and values (B, N, L, E) from one tensor or from three."""
    if kv_heads < 1 or heads % kv_heads:
        raise node.invalid(f"kv_num_heads {kv_heads} does not divide num_heads {heads}")
    q = tensor(query)
    if key is not None and value is not None:
        return (
            split_heads(node, q, heads),
            split_heads(node, tensor(key), kv_heads),
            split_heads(node, tensor(value), kv_heads),
        )
    every = split_heads(node, q, heads + 2 * kv_heads)
    return every[:, :heads], every[:, heads : heads + kv_heads], every[:, heads + kv_heads :]


def _written(x: Tensor, past: Tensor, begin: Any, most: Any) -> Tensor:
    """Write x (B, N, L, E) into the cache `past` (B, N, P, E), starting at the positions `begin`
    (B,), or at 0 for an int. The cache is extended to at least `most` positions."""
    batch, length = x.shape[0], x.shape[2]
    if same(past.shape[2], 0):
        past = past[:, :, :0]
    room = most - past.shape[2]
    if isinstance(room, Expression) or room > 0:
        shape = (*past.shape[:2], room, past.shape[3])
        past = ops.concat([past, init.zeros(shape, dtype=x.dtype)], 2)
    steps = ops.reshape(tensor(positions(0, length)), (1, length))
    at = steps if isinstance(begin, int) else ops.add(ops.reshape(begin, (batch, 1)), steps)
    rows = ops.reshape(tensor(positions(0, batch)), (batch, 1))
    moved = ops.set_at(ops.moveaxis(past, 2, 1), (rows, at), ops.moveaxis(x, 2, 1))
    return ops.moveaxis(moved, 1, 2)
