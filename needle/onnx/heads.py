"""Attention over heads (B, H, L, E) for the converters of several domains: masks from positions,
the attention itself, and rotary embeddings.

A mask is a Tensor or, if it is known while tracing, a NumPy array. A bool mask says which keys a
query sees; a mask of numbers is added to the scores. It broadcasts to (B, H, L, S).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import finfo, is_half
from ..conversion.values import Value, tensor
from ..nn import functional as F
from ..sizes.extents import is_symbolic
from .graph import Node

Mask = Tensor | np.ndarray


def split_heads(node: Node, x: Tensor, heads: int) -> Tensor:
    """Reshape `x` (B, L, H E) to (B, H, L, E) for `heads` H. Raises ModelError for a `node` whose
    input has another shape."""
    if heads < 1 or x.ndim != 3 or x.shape[2] % heads:
        raise node.invalid(f"an input of shape {x.shape} cannot be split into {heads} heads")
    batch, length, width = x.shape
    return ops.permute(ops.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def join_heads(x: Tensor) -> Tensor:
    """Reshape `x` (B, H, L, E) to (B, L, H E)."""
    batch, heads, length, width = x.shape
    return ops.reshape(ops.permute(x, (0, 2, 1, 3)), (batch, length, heads * width))


# Masks


def positions(start: Any, count: Any) -> Mask:
    """Return `count` integers from `start` on, as a NumPy array if both numbers are known."""
    if is_symbolic((start, count)):
        return ops.arange(start, start + count, dtype="int64")
    return np.arange(start, start + count)


def seen_by_position(
    queries: Any, keys: Any, offset: Any = 0, left: int = -1, right: int = -1
) -> Mask:
    """Return the mask of the `keys` that each of the `queries` sees by position. Query i is at the
    position `offset` + i and sees the keys from `left` positions before it to `right` positions
    after it; -1 means no bound. `offset` is a number, or a Tensor (B,) with one number per sequence
    of the batch. The mask is (queries, keys), or (B, 1, queries, keys)."""
    columns = positions(0, keys)
    if isinstance(offset, Tensor):
        rows: Mask = ops.add(
            ops.reshape(ops.cast(offset, "int64"), (offset.size, 1, 1, 1)),
            ops.reshape(tensor(positions(0, queries)), (queries, 1)),
        )
    else:
        rows = positions(offset, queries)
        rows = rows[:, None] if isinstance(rows, np.ndarray) else ops.reshape(rows, (queries, 1))
    if not (isinstance(rows, np.ndarray) and isinstance(columns, np.ndarray)):
        rows, columns = tensor(rows), tensor(columns)
    seen: Mask | None = None
    if right >= 0:
        seen = columns <= rows + right
    if left >= 0:
        seen = intersection(seen, columns >= rows - left)
    return np.ones((1, 1), bool) if seen is None else seen


def intersection(a: Mask | None, b: Mask | None) -> Mask | None:
    """Return the bool mask of the keys that are seen in both masks `a` and `b`. None stands for a
    mask in which all keys are seen."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.asarray(a & b)
    return ops.logical_and(tensor(a), tensor(b))


def seen_before(lengths: Tensor, keys: Any) -> Tensor:
    """Return the mask (B, 1, 1, keys) of the first `lengths` (B,) keys of each sequence."""
    ends = ops.reshape(ops.cast(lengths, "int64"), (lengths.size, 1, 1, 1))
    return ops.less(tensor(positions(0, keys)), ends)


def total(seen: Mask | None, added: Mask | None, dtype: str, unseen: float) -> Mask | None:
    """Combine the masks `seen` and `added` into one mask of numbers of `dtype`. A key that is not
    seen gets the number `unseen`."""
    if seen is None or added is None:
        if seen is None:
            return added
        if isinstance(seen, np.ndarray):
            return np.where(seen, 0.0, unseen)
        return ops.cast(ops.where(seen, 0.0, unseen), dtype)
    if isinstance(seen, np.ndarray) and isinstance(added, np.ndarray):
        return np.where(seen, added, unseen)
    return ops.where(tensor(seen), tensor(added), unseen)


def finite_mask(added: Mask, dtype: str) -> Mask:
    """Return the mask `added` with the lowest finite number of `dtype` in place of -inf, because
    inf - inf is NaN."""
    lowest = float(finfo(dtype).min)
    if isinstance(added, np.ndarray):
        return np.maximum(added, np.asarray(lowest, added.dtype))
    return ops.maximum(added, lowest)


def sees_any(seen: Mask | None, added: Mask | None) -> Mask | None:
    """Return the mask (..., L, 1) of the queries that see a key, or None if all queries see a key.
    A key whose mask in `added` is -inf is not seen."""
    if added is not None:
        infinite = float("-inf")
        if isinstance(added, np.ndarray):
            by_added: Mask | None = added.astype("float64") > infinite
        else:
            by_added = ops.greater(added, infinite)
        seen = intersection(seen, by_added)
    if seen is None:
        return None
    if isinstance(seen, np.ndarray):
        rows = seen.any(-1, keepdims=True)
        return None if rows.all() else np.asarray(rows)
    return ops.any(seen, -1, keepdims=True)


# Attention


class Steps(NamedTuple):
    """The intermediate results of attention, each (B, H, L, S): the products of queries and keys,
    the capped products, the masked products, and the weights."""

    products: Tensor
    capped: Tensor
    masked: Tensor
    weights: Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    seen: Mask | None = None,
    added: Mask | None = None,
    zero_rows: bool = False,
) -> Tensor:
    """Return softmax(`scale` `q` `k`^T + masks) `v` (B, H, L, V), in a form that becomes one
    kernel. The masks are `seen` and `added`. Keys and values may have fewer heads; each serves the
    same number of adjacent heads of `q`. A query that sees no key gives zeros with `zero_rows`,
    otherwise the mean of all values."""
    lowest = float(finfo(q.dtype).min)
    rows = sees_any(seen, added) if zero_rows else None
    added = None if added is None else finite_mask(added, q.dtype)
    mask = _as_mask(total(seen, added, q.dtype, lowest), q)
    fewer = q.shape[1] != k.shape[1]
    y = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=fewer)
    return y if rows is None else ops.where(tensor(rows), y, 0.0)


def _as_mask(mask: Mask | None, q: Tensor) -> Tensor | None:
    if isinstance(mask, np.ndarray):
        return Tensor(mask, device=q.device, dtype=q.dtype, requires_grad=False)
    return mask


def attend_in_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    seen: Mask | None = None,
    added: Mask | None = None,
    zero_rows: bool = False,
    softcap: float = 0.0,
    precision: str | None = None,
    sink: Tensor | None = None,
) -> tuple[Tensor, Steps]:
    """Return the result of `attend` and its intermediate results. `q`, `k`, `v`, `scale`, `seen`,
    `added` and `zero_rows` are as in `attend`. Before masking, each score x becomes `softcap` *
    tanh(x / `softcap`); a `softcap` of 0 means no cap. Weights are computed in the dtype
    `precision`. `sink` (H,) is the score of one more key per head, whose value is zeros."""
    k, v = repeated_heads(k, q), repeated_heads(v, q)
    products = ops.matmul(ops.mul_scalar(q, scale), ops.swapaxes(k, -1, -2))
    capped = products
    if softcap:
        capped = ops.mul_scalar(ops.tanh(ops.mul_scalar(products, 1.0 / softcap)), softcap)
    mask = _as_mask(total(seen, added, q.dtype, float("-inf")), q)
    masked = capped if mask is None else ops.add(capped, mask)
    scores = ops.cast(masked, precision or q.dtype)
    if sink is None:
        weights = ops.softmax(scores)
    else:
        column = ops.reshape(ops.cast(sink, scores.dtype), (1, q.shape[1], 1, 1))
        column = ops.broadcast_to(column, (*scores.shape[:-1], 1))
        weights = ops.softmax(ops.concat([scores, column], -1))[..., :-1]
    weights = ops.cast(weights, q.dtype)
    rows = sees_any(seen, added) if zero_rows else None
    if rows is not None:
        weights = ops.where(tensor(rows), weights, 0.0)
    return ops.matmul(weights, v), Steps(products, capped, masked, weights)


def repeated_heads(x: Tensor, q: Tensor) -> Tensor:
    """Return `x` (B, N, S, E) with each head repeated until `x` has as many heads as `q`."""
    heads, more = x.shape[1], q.shape[1]
    return x if heads == more else ops.repeat_interleave(x, more // heads, 1)


def softmax_dtype(dtype: str, asked: str | None) -> str | None:
    """Return the dtype `asked` if the scores must be cast to it before the softmax, else None.
    needle computes a half-precision softmax in float32 anyway, so that needs no cast."""
    if asked is None or asked == dtype or (asked == "float32" and is_half(dtype)):
        return None
    return asked


# Rotary embeddings


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate pairs of the first D features of `x` (..., E). `cos` and `sin` (..., D / 2) are the
    cosines and sines of the angles, and broadcast. Pair i is (i, i + D / 2), or (2 i, 2 i + 1) if
    `interleaved` (Su et al. 2021)."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        pairs = ops.reshape(turned, (*x.shape[:-1], half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = turned[..., :half], turned[..., half:]
    real = ops.subtract(ops.multiply(cos, first), ops.multiply(sin, second))
    imaginary = ops.add(ops.multiply(sin, first), ops.multiply(cos, second))
    if interleaved:
        y = ops.reshape(ops.stack([real, imaginary], x.ndim), turned.shape)
    else:
        y = ops.concat([real, imaginary], -1)
    return y if x.shape[-1] == 2 * half else ops.concat([y, rest], -1)


def cached_angles(cache: Value, at: Value | None) -> Tensor:
    """Return the rows (B, 1, L, D / 2) of a table of angles (`cache`) for the positions `at` (B,
    L). Without positions the table is (B, L, D / 2)."""
    table = tensor(cache)
    return ops.unsqueeze(table if at is None else table[tensor(at)], 1)
