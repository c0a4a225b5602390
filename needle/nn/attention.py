"""Attention ("Attention Is All You Need", Vaswani et al. 2017): PyTorch's MultiheadAttention, and
the course's MultiHeadAttention and pre-norm AttentionLayer."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import init, ops
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import counts, fraction
from ..errors import ShapeError
from ..sizes.extents import same
from . import functional as F
from .basic import Dropout, Linear
from .functional.attention import causal, is_later, with_masks
from .module import Module
from .norm import LayerNorm1d
from .parameter import Parameter


class MultiheadAttention(Module):
    """Attention with `num_heads` heads and projections of queries, keys, values and the result. It
    has PyTorch's arguments.

    Queries and results have embed_dim features, keys have kdim features, and values have vdim
    (None: embed_dim). Raises ValueError unless embed_dim is a multiple of num_heads. `dropout`
    drops attention weights. With `batch_first`, the batch is the first axis, otherwise the second.
    If kdim and vdim equal embed_dim, all three input projections share the weight in_proj_weight
    (embed_dim, 3 * embed_dim); otherwise their weights are q_proj_weight, k_proj_weight and
    v_proj_weight. Weights have Xavier uniform initial values; biases start as zeros. With
    add_bias_kv, every sequence gets an additional key and value, bias_k and bias_v (1, 1,
    embed_dim), with Xavier normal initial values. With add_zero_attn, it gets an additional key and
    value of zeros.

    >>> x = ndl.randn(2, 5, 16)
    >>> y, weights = nn.MultiheadAttention(16, num_heads=4, batch_first=True)(x, x, x)
    >>> y.shape, weights.shape
    ((2, 5, 16), (2, 5, 5))
    """

    _parameter_names = frozenset({"in_proj_bias", "bias_k", "bias_v"})
    _torch_axes: ClassVar = {f"{name}_proj_weight": (1, 0) for name in ("in", "q", "k", "v")}

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        name = "MultiheadAttention"
        kdim = embed_dim if kdim is None else kdim
        vdim = embed_dim if vdim is None else vdim
        counts(name, embed_dim=embed_dim, num_heads=num_heads, kdim=kdim, vdim=vdim)
        if embed_dim % num_heads:
            raise ValueError(f"{name}: num_heads {num_heads} does not divide embed_dim {embed_dim}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kdim, self.vdim = kdim, vdim
        self.dropout = fraction(name, "dropout", dropout)
        self.batch_first = batch_first
        where: dict[str, Any] = {"device": device, "dtype": dtype}

        def weight(features: int, times: int = 1) -> Parameter:
            return Parameter(init.xavier_uniform(features, times * embed_dim, **where))

        if kdim == vdim == embed_dim:
            self.in_proj_weight = weight(embed_dim, 3)
        else:
            self.q_proj_weight = weight(embed_dim)
            self.k_proj_weight = weight(kdim)
            self.v_proj_weight = weight(vdim)
        self.in_proj_bias = Parameter(init.zeros(3 * embed_dim, **where)) if bias else None
        self.add_zero_attn = add_zero_attn
        self.bias_k = self.bias_v = None
        if add_bias_kv:
            std = embed_dim**-0.5  # for this shape, PyTorch uses embed_dim as both fans
            self.bias_k, self.bias_v = (
                Parameter(init.randn(1, 1, embed_dim, std=std, **where)) for _ in range(2)
            )
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(init.zeros(1, embed_dim, **where))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from query (L, B, embed_dim) to key (S, B, kdim) and value (S, B, vdim); with
        batch_first, B is the first axis. Return the result, shaped like query, and the attention
        weights: averaged over heads (B, L, S) or, without average_attn_weights, (B, num_heads, L,
        S). Without need_weights, the weights are None. add_bias_kv and add_zero_attn each append a
        key, so S grows by 1; no mask hides these keys.

        A bool mask is True where a query must not see a key; a float mask is added to the scores.
        key_padding_mask is (B, S), attn_mask (L, S) or (B * num_heads, L, S). With is_causal, query
        i sees the keys 0..i, and attn_mask may be None. Raises ShapeError for shapes that do not
        fit.
        """
        self._check(query, key, value)
        if not self.batch_first:
            is_self = query is key and key is value
            query, key, value = (
                (ops.transpose(query, (0, 1)),) * 3
                if is_self
                else tuple(ops.transpose(x, (0, 1)) for x in (query, key, value))
            )
        batch, queries, _ = query.shape
        q, k, v = self._projected(query, key, value)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (_appended(x, bias) for x, bias in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (ops.pad(x, ((0, 0), (0, 1), (0, 0))) for x in (k, v))
        q, k, v = (self._heads(x) for x in (q, k, v))
        scores = ops.matmul(q, ops.transpose(k)) * q.shape[-1] ** -0.5
        keys = key.shape[1]
        if attn_mask is not None:
            shapes = (queries, keys), (batch * self.num_heads, queries, keys)
            _check_mask("attn_mask", attn_mask, *shapes)
            if attn_mask.ndim == 3:
                attn_mask = ops.reshape(attn_mask, (batch, self.num_heads, queries, keys))
        if key_padding_mask is not None:
            _check_mask("key_padding_mask", key_padding_mask, (batch, keys))
            key_padding_mask = ops.reshape(key_padding_mask, (batch, 1, 1, keys))
        further = k.shape[2] - keys
        masks = [_widened(mask, further) for mask in (attn_mask, key_padding_mask)]
        if is_causal and attn_mask is None and further:
            is_causal, own = False, is_later(scores[..., :keys], to_last=False)
            masks.append(_widened(own, further))
        scores = with_masks(scores, masks, False, is_causal and attn_mask is None)
        weights = F.dropout(ops.softmax(scores), self.dropout, self.training)
        side_by_side = ops.permute(ops.matmul(weights, v), (0, 2, 1, 3))
        y = self.out_proj(ops.reshape(side_by_side, (batch, queries, self.embed_dim)))
        y = y if self.batch_first else ops.transpose(y, (0, 1))
        if not need_weights:
            return y, None
        return y, ops.mean(weights, 1) if average_attn_weights else weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        form = "(B, length" if self.batch_first else "(length, B"
        given = {
            "query": (query, self.embed_dim), "key": (key, self.kdim), "value": (value, self.vdim)
        }  # fmt: skip
        for name, (x, features) in given.items():
            if x.ndim != 3 or x.shape[2] != features:
                raise ShapeError(
                    f"MultiheadAttention: {name} has shape {x.shape}, not {form}, {features})"
                )

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return queries, keys and values (B, length, embed_dim)."""
        size = self.embed_dim
        inputs = (query, key, value)
        parts = [slice(i * size, (i + 1) * size) for i in range(3)]
        if self.kdim == self.vdim == size:
            if query is key and key is value:
                y = F.linear(query, self.in_proj_weight, self.in_proj_bias)
                return [y[..., part] for part in parts]
            weights = [self.in_proj_weight[:, part] for part in parts]
        else:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        bias = self.in_proj_bias
        return [
            F.linear(x, w, None if bias is None else bias[part])
            for x, w, part in zip(inputs, weights, parts, strict=True)
        ]

    def _heads(self, x: Tensor) -> Tensor:
        """Split x into heads: (B, T, embed_dim) -> (B, num_heads, T, embed_dim / num_heads)."""
        batch, length, _ = x.shape
        each = self.embed_dim // self.num_heads
        return ops.permute(ops.reshape(x, (batch, length, self.num_heads, each)), (0, 2, 1, 3))

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, batch_first={self.batch_first}"


def _appended(x: Tensor, bias: Tensor) -> Tensor:
    """Return x (B, length, embed_dim) with `bias` (1, 1, embed_dim) appended to each sequence."""
    return ops.concat([x, ops.broadcast_to(bias, (x.shape[0], *bias.shape[1:]))], 1)


def _widened(mask: Tensor | None, further: int) -> Tensor | None:
    """Return the mask (..., keys) extended by `further` keys, which stay visible."""
    if mask is None or not further:
        return mask
    return ops.pad(mask, (*[(0, 0)] * (mask.ndim - 1), (0, further)))


def _check_mask(what: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    """Raise ShapeError unless the mask has one of `shapes`."""
    if not any(same(mask.shape, shape) for shape in shapes):
        known = " or ".join(map(str, shapes))
        raise ShapeError(f"MultiheadAttention: {what} has shape {mask.shape}, not {known}")


class MultiHeadAttention(Module):
    """softmax(q k^T / sqrt(dim) [+ mask]) v for each head, without parameters.

    Takes q (B, heads, queries, dim), k and v (B, heads, keys, dim). Returns the result (B, heads,
    queries, dim) and the weights after dropout (B, heads, queries, keys). With `causal`, a query
    does not see later keys.
    """

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        causal: bool = False,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = ops.matmul(q, ops.transpose(k)) * q.shape[-1] ** -0.5
        if self.causal:
            scores = causal(scores)
        probs = self.dropout(ops.softmax(scores))
        return ops.matmul(probs, v), probs

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


class AttentionLayer(Module):
    """Attention with its projections: (B, queries, q_features) -> (B, queries, out_features).

    q, k and v are each normalized and projected (without bias) to `num_head` heads of `dim_head`;
    the concatenated results of the heads are projected (without bias) to out_features. k (B, keys,
    k_features) and v (B, keys, v_features) default to q; k_features, v_features and out_features
    default to q_features. `dropout` drops attention weights; if `causal`, a query does not see
    later keys.
    """

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        *,
        k_features: int | None = None,
        v_features: int | None = None,
        out_features: int | None = None,
        dropout: float = 0.0,
        causal: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        k_features = q_features if k_features is None else k_features
        v_features = q_features if v_features is None else v_features
        out_features = q_features if out_features is None else out_features
        counts(
            "AttentionLayer",
            q_features=q_features,
            num_head=num_head,
            dim_head=dim_head,
            k_features=k_features,
            v_features=v_features,
            out_features=out_features,
        )
        self.num_head = num_head
        self.dim_head = dim_head
        inner = num_head * dim_head
        self.prenorm_q = LayerNorm1d(q_features, **where)
        self.prenorm_k = LayerNorm1d(k_features, **where)
        self.prenorm_v = LayerNorm1d(v_features, **where)
        self.q_projection = Linear(q_features, inner, bias=False, **where)
        self.k_projection = Linear(k_features, inner, bias=False, **where)
        self.v_projection = Linear(v_features, inner, bias=False, **where)
        self.attn = MultiHeadAttention(dropout=dropout, causal=causal, **where)
        self.out_projection = Linear(inner, out_features, bias=False, **where)

    def forward(self, q: Tensor, k: Tensor | None = None, v: Tensor | None = None) -> Tensor:
        k = q if k is None else k
        v = q if v is None else v
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.ndim != 3:
                raise ShapeError(
                    f"AttentionLayer: {name} has shape {x.shape}, not (B, T, features)"
                )
        x, _ = self.attn(
            self._heads(self.q_projection(self.prenorm_q(q))),
            self._heads(self.k_projection(self.prenorm_k(k))),
            self._heads(self.v_projection(self.prenorm_v(v))),
        )
        batch, _, count, _ = x.shape
        side_by_side = ops.permute(x, (0, 2, 1, 3))
        return self.out_projection(
            ops.reshape(side_by_side, (batch, count, self.num_head * self.dim_head))
        )

    def _heads(self, x: Tensor) -> Tensor:
        """Split x into heads: (B, T, heads * dim) -> (B, heads, T, dim)."""
        batch, count, _ = x.shape
        x = ops.reshape(x, (batch, count, self.num_head, self.dim_head))
        return ops.permute(x, (0, 2, 1, 3))

    def extra_repr(self) -> str:
        return f"num_head={self.num_head}, dim_head={self.dim_head}"
