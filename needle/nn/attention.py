"""Attention ("Attention Is All You Need", Vaswani et al. 2017), pre-norm, and the Transformer."""

from __future__ import annotations

from typing import Any

from .. import init, ops
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import counts
from ..errors import ShapeError
from .activations import ReLU
from .basic import Dropout, Linear
from .containers import Sequential
from .embedding import Embedding
from .functional.attention import causal
from .module import Module
from .norm import LayerNorm1d


class MultiHeadAttention(Module):
    """softmax(q k^T / sqrt(dim) [+ mask]) v for each head; no parameters.

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
    k_features) and v (B, keys, v_features) default to q, and feature counts to q_features.
    `dropout` drops weights; if `causal`, a query does not see later keys.
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
        """(B, T, heads * dim) -> (B, heads, T, dim)."""
        batch, count, _ = x.shape
        x = ops.reshape(x, (batch, count, self.num_head, self.dim_head))
        return ops.permute(x, (0, 2, 1, 3))

    def extra_repr(self) -> str:
        return f"num_head={self.num_head}, dim_head={self.dim_head}"


class TransformerLayer(Module):
    """x + dropout(attention(x)), then x + dropout(mlp(norm(x))), where the MLP has one hidden layer
    of `hidden_size` with ReLU and dropout: (B, T, q_features) -> the same. num_head, dim_head and
    causal are those of AttentionLayer."""

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        causal: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts(
            "TransformerLayer",
            q_features=q_features,
            num_head=num_head,
            dim_head=dim_head,
            hidden_size=hidden_size,
        )
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.attention = AttentionLayer(
            q_features, num_head, dim_head, dropout=dropout, causal=causal, **where
        )
        self.dropout = Dropout(dropout)
        self.mlp = Sequential(
            LayerNorm1d(q_features, **where),
            Linear(q_features, hidden_size, **where),
            ReLU(),
            Dropout(dropout),
            Linear(hidden_size, q_features, **where),
            Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(x))
        return x + self.mlp(x)


class Transformer(Module):
    """Learned positions added to x, then `num_layers` TransformerLayers. Returns (x, h). The
    layers' arguments are those of TransformerLayer.

    x is (T, B, embedding_size), or (B, T, embedding_size) with `batch_first`; T is at most
    `sequence_len`. h has no meaning: it is returned unchanged (None: zeros like x), so that a
    Transformer can replace an RNN. ShapeError if x does not fit.
    """

    def __init__(
        self,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        num_head: int = 8,
        dim_head: int = 32,
        dropout: float = 0.0,
        causal: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        batch_first: bool = False,
        sequence_len: int = 2048,
    ) -> None:
        super().__init__()
        counts(
            "Transformer",
            embedding_size=embedding_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_head=num_head,
            dim_head=dim_head,
            sequence_len=sequence_len,
        )
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding_size = embedding_size
        self.batch_first = batch_first
        self.sequence_len = sequence_len
        self.positions = Embedding(sequence_len, embedding_size, **where)
        self.layers = [
            TransformerLayer(
                embedding_size,
                num_head,
                dim_head,
                hidden_size,
                dropout=dropout,
                causal=causal,
                **where,
            )
            for _ in range(num_layers)
        ]

    def forward(self, x: Tensor, h: Any = None) -> tuple[Tensor, Any]:
        if x.ndim != 3 or x.shape[2] != self.embedding_size:
            form = "(B, T" if self.batch_first else "(T, B"
            raise ShapeError(
                f"Transformer: x has shape {x.shape}, not {form}, {self.embedding_size})"
            )
        if not self.batch_first:
            x = ops.transpose(x, (0, 1))
        count = x.shape[1]
        if count > self.sequence_len:
            raise ShapeError(
                f"Transformer: a sequence of {count} is longer than sequence_len "
                f"{self.sequence_len}"
            )
        x = x + self.positions.weight[:count]
        for layer in self.layers:
            x = layer(x)
        if not self.batch_first:
            x = ops.transpose(x, (0, 1))
        return x, init.zeros_like(x) if h is None else h

    def extra_repr(self) -> str:
        return (
            f"{self.embedding_size}, batch_first={self.batch_first}, "
            f"sequence_len={self.sequence_len}"
        )
