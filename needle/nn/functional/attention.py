"""Attention and position encodings."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from ... import init, ops
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray import Device, DeviceLike, NDArray, full
from ...backend_ndarray.arguments import count, fraction
from ...backend_ndarray.dtypes import finfo, is_floating
from ...errors import ShapeError
from ...sizes.extents import is_symbolic
from .basic import dropout


@functools.lru_cache(maxsize=32)
def causal_mask(
    queries: int, keys: int, dtype: str, device: Device, to_last: bool = True
) -> NDArray:
    """Return a mask (queries, keys): 0 where a query sees a key, dtype's minimum for later keys.

    With `to_last`, the last query sees all keys. Otherwise, the first query sees only the first
    key.
    """
    lowest = float(finfo(dtype).min)
    behind = keys - queries if to_last else 0
    mask = np.triu(np.full((queries, keys), lowest), behind + 1)
    return NDArray(mask, device=device, dtype=dtype)


def is_later(scores: Tensor, to_last: bool = True) -> Tensor:
    """Return a bool mask (queries, keys) for scores (..., queries, keys): True where the key is
    later than the query, as in `causal_mask`."""
    queries, keys = scores.shape[-2:]
    first = keys - queries if to_last else 0
    rows = ops.arange(first, first + queries, device=scores.device)
    return ops.reshape(rows, (queries, 1)) < ops.arange(keys, device=scores.device)


def causal(scores: Tensor, to_last: bool = True) -> Tensor:
    """Return `scores` (..., queries, keys) with the dtype's lowest number added where the key is
    later than the query."""
    if not is_floating(scores.dtype):
        return scores
    queries, keys = scores.shape[-2:]
    if not is_symbolic((queries, keys)):
        mask = causal_mask(queries, keys, scores.dtype, scores.device, to_last)
        return scores + make_const(mask)
    lowest = init.constant(
        c=float(finfo(scores.dtype).min), device=scores.device, dtype=scores.dtype
    )
    return ops.where(is_later(scores, to_last), scores + lowest, scores)


def with_masks(
    scores: Tensor, masks: Sequence[Tensor | None], sees: bool, is_causal: bool
) -> Tensor:
    """Apply `masks`, which broadcast to the scores, to `scores` (..., queries, keys). With
    is_causal, keys after the query's position are masked too. Float masks are added; a bool mask
    equals `sees` where a query sees a key. Raises TypeError for a mask of another dtype.

    The masks are summed first, because fused attention supports only one addition to the scores.
    """
    total = None
    for mask in masks:
        if mask is not None:
            added = _added(mask, scores, sees)
            total = added if total is None else total + added
    queries, keys = scores.shape[-2:]
    if total is not None:
        if is_causal and not is_symbolic((queries, keys)):
            total = total + make_const(
                causal_mask(queries, keys, scores.dtype, scores.device, False)
            )
            is_causal = False
        scores = scores + total
    return causal(scores, to_last=False) if is_causal else scores


def _added(mask: Tensor, scores: Tensor, sees: bool) -> Tensor:
    """Return a mask as numbers to add: 0 or the lowest finite number. For a query that sees no key,
    an infinite number would give NaN; the finite one gives all keys the same weight."""
    if is_floating(mask.dtype):
        return mask
    if mask.dtype != "bool":
        raise TypeError(f"attention: a mask is {mask.dtype}, not bool or floating point")
    zero = make_const(full((), 0, scores.dtype, scores.device))
    nothing = float(finfo(scores.dtype).min)
    return ops.where(mask, zero, nothing) if sees else ops.where(mask, nothing, zero)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(query key^T * scale + mask) value: query (..., L, E), key (..., S, E), value
    (..., S, V) -> (..., L, V) (Vaswani et al. 2017).

    `attn_mask` broadcasts to (..., L, S): a float mask is added, and a bool mask is True where a
    query sees a key. With `is_causal`, query i sees the keys 0..i; combined with a mask, this
    raises ValueError. `scale` is 1 / sqrt(E) by default. With `enable_gqa`, the number of heads of
    query (..., heads, L, E) may be a multiple of the number for key and value; each head of key and
    value then serves a group of adjacent query heads. `dropout_p` drops attention weights; pass 0
    in eval mode. Raises ShapeError for shapes that do not fit.

    >>> q, k = ndl.randn(2, 4, 10, 16), ndl.randn(2, 4, 10, 16)
    >>> F.scaled_dot_product_attention(q, k, k, is_causal=True).shape
    (2, 4, 10, 16)
    """
    owner = "scaled_dot_product_attention"
    fraction(owner, "dropout_p", dropout_p)
    if is_causal and attn_mask is not None:
        raise ValueError(f"{owner}: give attn_mask or is_causal, not both")
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 2:
            raise ShapeError(f"{owner}: {name} has shape {x.shape}, not (..., length, features)")
    if enable_gqa:
        key, value = (_repeated_heads(owner, x, query) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = ops.matmul(query, ops.transpose(key)) * scale
    scores = with_masks(scores, [attn_mask], True, is_causal)
    weights = dropout(ops.softmax(scores), dropout_p, dropout_p > 0)
    return ops.matmul(weights, value)


def _repeated_heads(owner: str, x: Tensor, query: Tensor) -> Tensor:
    """Repeat each head of x (..., heads, S, E), so that x has as many heads as query."""
    if query.ndim < 3 or x.ndim < 3 or query.shape[-3] % x.shape[-3]:
        raise ShapeError(
            f"{owner}: the heads of {x.shape} must divide the heads of query {query.shape} (axis "
            "-3)"
        )
    heads, length, features = x.shape[-3:]
    times = query.shape[-3] // heads
    if times == 1:
        return x
    wide = ops.reshape(x, (*x.shape[:-3], heads, 1, length, features))
    wide = ops.broadcast_to(wide, (*x.shape[:-3], heads, times, length, features))
    return ops.reshape(wide, (*x.shape[:-3], heads * times, length, features))


@functools.lru_cache(maxsize=32)
def _angles(length: int, dim: int, base: float, dtype: str, device: Device) -> tuple[NDArray, ...]:
    """Return cos and sin (length, dim / 2) of position / base ** (2 i / dim)."""
    rates = base ** (-np.arange(0, dim, 2) / dim)
    angles = np.arange(length)[:, None] * rates
    return tuple(NDArray(f(angles), device=device, dtype=dtype) for f in (np.cos, np.sin))


def rotary_embedding(
    x: Tensor,
    base: float = 10000.0,
    offset: int = 0,
    traditional: bool = False,
    dim: int | None = None,
) -> Tensor:
    """Return x (..., length, features) with pairs of its first `dim` features (None: all) rotated
    by the angle position / base ** (2 i / dim) (Su et al. 2021). Pair i is (i, i + dim / 2) or, if
    `traditional`, (2 i, 2 i + 1). The first position is `offset`. Raises ShapeError if x has fewer
    than two axes, and ValueError for a dim that is odd or above the number of features."""
    if x.ndim < 2:
        raise ShapeError(f"rotary_embedding: x has shape {x.shape}, not (..., length, features)")
    length, features = x.shape[-2:]
    dim = features if dim is None else count("rotary_embedding", "dim", dim)
    if dim % 2 or dim > features:
        raise ValueError(f"rotary_embedding: dim {dim} is not an even number up to {features}")
    offset = count("rotary_embedding", "offset", offset, 0)
    tables = _angles(offset + length, dim, float(base), x.dtype, x.device)
    cos, sin = (make_const(table[offset:]) for table in tables)
    turned = x if dim == features else x[..., :dim]
    if traditional:
        pairs = ops.reshape(turned, (*x.shape[:-1], dim // 2, 2))
        first, second = pairs[..., 0], pairs[..., 1]
        parts = [first * cos - second * sin, first * sin + second * cos]
        y = ops.reshape(ops.stack(parts, x.ndim), turned.shape)
    else:
        first, second = turned[..., : dim // 2], turned[..., dim // 2 :]
        y = ops.concat([first * cos - second * sin, first * sin + second * cos], -1)
    return y if dim == features else ops.concat([y, x[..., dim:]], -1)


@functools.lru_cache(maxsize=32)
def sinusoidal_encoding(
    length: int, dim: int, dtype: str = "float32", device: DeviceLike | None = None
) -> NDArray:
    """Return an NDArray (length, dim) of `dtype` on `device`. Its even features 2 i are
    sin(position / 10000 ** (2 i / dim)), and its odd features 2 i + 1 are the cos of the same angle
    (Vaswani et al. 2017)."""
    rates = np.exp(-math.log(10000.0) * np.arange(0, dim, 2) / dim)
    angles = np.arange(length)[:, None] * rates
    table = np.empty((length, dim))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)[:, : dim // 2]
    return NDArray(table, device=device, dtype=dtype)
