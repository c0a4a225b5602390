"""Transformers ("Attention Is All You Need", Vaswani et al. 2017): PyTorch's encoder and decoder,
and the course's pre-norm Transformer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .. import init, ops
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, counts, finite
from ..errors import ShapeError
from . import functional as F
from .activations import ReLU
from .attention import AttentionLayer, MultiheadAttention
from .basic import Dropout, Linear
from .containers import ModuleList, Sequential
from .embedding import Embedding
from .module import Module
from .norm import LayerNorm, LayerNorm1d

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class _Layer(Module):
    """Base class of the encoder and decoder layers, with the self-attention, the feed-forward block
    and the norms. The attributes have PyTorch's names."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        counts(name, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        if not callable(activation) and activation not in ("relu", "gelu"):
            raise ValueError(
                f"{name}: activation {activation!r} is not 'relu', 'gelu' or a function"
            )
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self.norm_first = norm_first
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        attention = {"dropout": dropout, "bias": bias, "batch_first": batch_first, **where}
        self.self_attn = MultiheadAttention(d_model, nhead, **attention)
        if self.norms == 3:
            self.multihead_attn = MultiheadAttention(d_model, nhead, **attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **where)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **where)
        for i in range(1, self.norms + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, **where))
            setattr(self, f"dropout{i}", Dropout(dropout))

    norms: int

    def _added(self, number: int, x: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x plus dropout of the result of `block`. The norm is applied before the block or
        after the sum."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + dropout(block(norm(x)))
        return norm(x + dropout(block(x)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def extra_repr(self) -> str:
        name = getattr(self.activation, "__name__", repr(self.activation))
        return f"activation={name}, norm_first={self.norm_first}"


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward block with one hidden layer of dim_feedforward features,
    each added to its input: (T, B, d_model), or (B, T, d_model) with batch_first -> the same shape.

    The attention has `nhead` heads. The norms, with the eps `layer_norm_eps`, are applied after the
    sums or, with norm_first, before the blocks. `activation` is "relu", "gelu" or a function.
    `bias` applies to all linear layers and norms.

    >>> layer = nn.TransformerEncoderLayer(16, nhead=4, dim_feedforward=32, batch_first=True)
    >>> layer(ndl.zeros(2, 5, 16)).shape
    (2, 5, 16)
    """

    norms = 2

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """src is the sequence; src_mask (T, T), src_key_padding_mask (B, T) and is_causal are as
        in MultiheadAttention."""

        def attention(x: Tensor) -> Tensor:
            masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
            return _attended(self.self_attn, x, x, **masks, is_causal=is_causal)

        return self._added(2, self._added(1, src, attention), self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to `memory` and a feed-forward block, each added to its input. The
    arguments are as in TransformerEncoderLayer."""

    norms = 3

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """tgt (T, B, d_model) and memory (S, B, d_model), or (B, T, d_model) and (B, S, d_model)
        with batch_first -> the shape of tgt. tgt_mask (T, T), memory_mask (T, S),
        tgt_key_padding_mask (B, T), memory_key_padding_mask (B, S), tgt_is_causal and
        memory_is_causal are as in MultiheadAttention."""

        def attention(x: Tensor) -> Tensor:
            masks = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
            return _attended(self.self_attn, x, x, **masks, is_causal=tgt_is_causal)

        def cross(x: Tensor) -> Tensor:
            masks = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
            return _attended(self.multihead_attn, x, memory, **masks, is_causal=memory_is_causal)

        x = self._added(2, self._added(1, tgt, attention), cross)
        return self._added(3, x, self._feed_forward)


def _attended(attention: Module, x: Tensor, memory: Tensor, **options: Any) -> Tensor:
    """Return the result of attention from x to `memory`. As in PyTorch's layers, the options are
    keywords, so that a forward pre-hook with kwargs can request the weights."""
    result: Tensor = attention(x, memory, memory, **options, need_weights=False)[0]
    return result


class _Stack(Module):
    """Base class of encoder and decoder: `num_layers` copies of `layer` and an optional final
    norm."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(layer, _Layer):
            raise TypeError(f"{name}: layer is a {type(layer).__name__}, not a Transformer layer")
        self.num_layers = count(name, "num_layers", num_layers)
        # As in PyTorch, all layers start with the same weights.
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.norm = norm

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """`num_layers` copies of `encoder_layer`, one after the other, and an optional final `norm`."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """src, src_key_padding_mask and is_causal are as in TransformerEncoderLayer; mask is its
        src_mask."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return self._normed(src)


class TransformerDecoder(_Stack):
    """`num_layers` copies of `decoder_layer`, one after the other, and an optional final `norm`."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt: Tensor, memory: Tensor, *masks: Any, **named_masks: Any) -> Tensor:
        """tgt, memory and all masks, by position (`masks`) or by name (`named_masks`), are as in
        TransformerDecoderLayer."""
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, **named_masks)
        return self._normed(tgt)


class RotaryEmbedding(Module):
    """x (..., length, features) with pairs of its first `dim` features rotated by angles that grow
    with the position (Su et al. 2021); `needle.nn.functional.rotary_embedding` has the formula.

    `dim` must be even (raises ValueError otherwise); base and traditional are as in
    rotary_embedding. The first position is the `offset` of the call.
    """

    def __init__(self, dim: int, base: float = 10000.0, traditional: bool = False) -> None:
        super().__init__()
        self.dim = count("RotaryEmbedding", "dim", dim)
        if dim % 2:
            raise ValueError(f"RotaryEmbedding: dim {dim} is not even")
        self.base = finite("RotaryEmbedding", "base", base)
        self.traditional = traditional

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return F.rotary_embedding(x, self.base, offset, self.traditional, self.dim)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}, traditional={self.traditional}"


class SinusoidalEncoding(Module):
    """Add sines and cosines of the positions to x (Vaswani et al. 2017), then apply dropout: (T, B,
    dim), or (B, T, dim) with batch_first -> the same shape.

    `needle.nn.functional.sinusoidal_encoding` has the formula. Raises ShapeError if x does not fit.
    """

    def __init__(self, dim: int, dropout: float = 0.0, batch_first: bool = False) -> None:
        super().__init__()
        self.dim = count("SinusoidalEncoding", "dim", dim)
        self.dropout = Dropout(dropout)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[2] != self.dim:
            form = "(B, T" if self.batch_first else "(T, B"
            raise ShapeError(f"SinusoidalEncoding: x has shape {x.shape}, not {form}, {self.dim})")
        length = x.shape[1 if self.batch_first else 0]
        table = make_const(F.sinusoidal_encoding(length, self.dim, x.dtype, x.device))
        if not self.batch_first:
            table = ops.reshape(table, (length, 1, self.dim))
        return self.dropout(x + table)

    def extra_repr(self) -> str:
        return f"{self.dim}, batch_first={self.batch_first}"


class TransformerLayer(Module):
    """x + dropout(attention(x)), then x + dropout(mlp(norm(x))), where the MLP has one hidden layer
    of `hidden_size` features with ReLU and dropout: (B, T, q_features) -> the same shape. num_head,
    dim_head and causal are as in AttentionLayer."""

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
    """Add learned position embeddings to x, then apply `num_layers` TransformerLayers. Returns (x,
    h). The arguments for the layers are as in TransformerLayer.

    x is (T, B, embedding_size), or (B, T, embedding_size) with `batch_first`; T is at most
    `sequence_len`. h is not used; it is returned unchanged (None: zeros like x), so that a
    Transformer can replace an RNN. Raises ShapeError if x does not fit.
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
