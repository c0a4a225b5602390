"""Attention and Transformers with PyTorch's arguments and names ("Attention Is All You Need",
Vaswani et al. 2017). needle.nn.attention has those of the course."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .. import init, ops
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, counts, finite, fraction
from ..errors import ShapeError
from ..sizes.extents import same
from . import functional as F
from .basic import Dropout, Linear
from .containers import ModuleList
from .functional.attention import is_later, with_masks
from .layout import Layout, transposed
from .module import Module
from .norm import LayerNorm
from .parameter import Parameter

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class MultiheadAttention(Module):
    """Attention of `num_heads` heads with projections of queries, keys and values and of the
    result, with PyTorch's arguments.

    Features of queries and results are embed_dim, which num_heads divides (ValueError otherwise);
    those of keys and values are kdim and vdim (None: embed_dim). `dropout` drops weights; with
    `batch_first` the batch is the first axis, otherwise the second. The weights of the three
    projections are in_proj_weight (embed_dim, 3 * embed_dim) if all features are equal, otherwise
    q_proj_weight, k_proj_weight and v_proj_weight; they are drawn Xavier-uniform, and biases are
    zeros. With add_bias_kv every sequence has one key and value more, bias_k and bias_v (1, 1,
    embed_dim), drawn Xavier-normal; with add_zero_attn it has another one, of zeros.

    >>> x = ndl.randn(2, 5, 16)
    >>> y, weights = nn.MultiheadAttention(16, num_heads=4, batch_first=True)(x, x, x)
    >>> y.shape, weights.shape
    ((2, 5, 16), (2, 5, 5))
    """

    _parameter_names = frozenset({"in_proj_bias", "bias_k", "bias_v"})

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
            std = embed_dim**-0.5  # PyTorch takes embed_dim for both fans of (1, 1, embed_dim)
            self.bias_k, self.bias_v = (
                Parameter(init.randn(1, 1, embed_dim, std=std, **where)) for _ in range(2)
            )
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(init.zeros(1, embed_dim, **where))

    def torch_layout(self) -> Layout:
        names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        return {name: transposed(name) for name in names}

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
        """query (L, B, embed_dim), key (S, B, kdim), value (S, B, vdim), or with batch_first (B, L,
        ...) -> the result, like query, and the weights (B, L, S), averaged over heads, or (B,
        num_heads, L, S) without average_attn_weights, or None without need_weights. add_bias_kv and
        add_zero_attn each make S one longer, at the end; no mask hides these keys.

        Bool masks are True where nothing is seen; floats are added. key_padding_mask is (B, S),
        attn_mask (L, S) or (B * num_heads, L, S). With is_causal query i sees the keys 0..i, and
        attn_mask may be None. ShapeError for shapes that do not fit.
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
        """Queries, keys and values (B, length, embed_dim)."""
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
        """(B, T, embed_dim) -> (B, num_heads, T, embed_dim / num_heads)."""
        batch, length, _ = x.shape
        each = self.embed_dim // self.num_heads
        return ops.permute(ops.reshape(x, (batch, length, self.num_heads, each)), (0, 2, 1, 3))

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, batch_first={self.batch_first}"


def _appended(x: Tensor, bias: Tensor) -> Tensor:
    """x (B, length, embed_dim) and the bias (1, 1, embed_dim) behind each sequence."""
    return ops.concat([x, ops.broadcast_to(bias, (x.shape[0], *bias.shape[1:]))], 1)


def _widened(mask: Tensor | None, further: int) -> Tensor | None:
    """A mask (..., keys) for so many keys more, which it does not hide."""
    if mask is None or not further:
        return mask
    return ops.pad(mask, (*[(0, 0)] * (mask.ndim - 1), (0, further)))


def _check_mask(what: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    """ShapeError unless the mask has one of `shapes`."""
    if not any(same(mask.shape, shape) for shape in shapes):
        known = " or ".join(map(str, shapes))
        raise ShapeError(f"MultiheadAttention: {what} has shape {mask.shape}, not {known}")


class _Layer(Module):
    """Base of both layers: the feed-forward block and the norms, whose names are PyTorch's."""

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
        """x plus the dropped result of a block; the norm comes before it or after the sum."""
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
    """Self-attention and a feed-forward block of one hidden layer (dim_feedforward), each added to
    its input: (T, B, d_model), or (B, T, d_model) with batch_first -> the same.

    The attention has `nhead` heads, and the norms the eps `layer_norm_eps`. The norms come after
    the sums, or with norm_first before the blocks. `activation` is "relu", "gelu" or a function;
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
        """src is the sequence; src_mask (T, T), src_key_padding_mask (B, T) and is_causal are those
        of MultiheadAttention."""

        def attention(x: Tensor) -> Tensor:
            masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
            return _attended(self.self_attn, x, x, **masks, is_causal=is_causal)

        return self._added(2, self._added(1, src, attention), self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to `memory` and a feed-forward block, each added to its input; the
    arguments are those of TransformerEncoderLayer."""

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
        """tgt (T, B, d_model) and memory (S, B, d_model), or with batch_first (B, T, d_model) and
        (B, S, d_model) -> like tgt. tgt_mask (T, T), memory_mask (T, S), tgt_key_padding_mask (B,
        T), memory_key_padding_mask (B, S), tgt_is_causal and memory_is_causal are those of
        MultiheadAttention."""

        def attention(x: Tensor) -> Tensor:
            masks = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
            return _attended(self.self_attn, x, x, **masks, is_causal=tgt_is_causal)

        def cross(x: Tensor) -> Tensor:
            masks = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
            return _attended(self.multihead_attn, x, memory, **masks, is_causal=memory_is_causal)

        x = self._added(2, self._added(1, tgt, attention), cross)
        return self._added(3, x, self._feed_forward)


def _attended(attention: Module, x: Tensor, memory: Tensor, **options: Any) -> Tensor:
    """The result of x's attention to `memory`. The options are keywords, as in PyTorch's layers, so
    that a forward pre-hook with kwargs can ask for the weights."""
    result: Tensor = attention(x, memory, memory, **options, need_weights=False)[0]
    return result


class _Stack(Module):
    """Base of encoder and decoder: `num_layers` new layers like `layer`, and a last norm."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(layer, _Layer):
            raise TypeError(f"{name}: the layer is a {type(layer).__name__}, not one of its layers")
        self.num_layers = count(name, "num_layers", num_layers)
        # As in PyTorch, all layers begin with the same weights.
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.norm = norm

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """`num_layers` copies of `encoder_layer`, one after the other, and a norm if given."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """src, mask (its src_mask), src_key_padding_mask and is_causal are those of
        TransformerEncoderLayer."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return self._normed(src)


class TransformerDecoder(_Stack):
    """`num_layers` copies of `decoder_layer`, one after the other, and a norm if given."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt: Tensor, memory: Tensor, *masks: Any, **named_masks: Any) -> Tensor:
        """tgt, memory and all masks, `masks` by position and `named_masks` by name, are those of
        TransformerDecoderLayer."""
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, **named_masks)
        return self._normed(tgt)


class RotaryEmbedding(Module):
    """x (..., length, features) with pairs of its first `dim` features turned by angles that grow
    with their positions (Su et al. 2021); `needle.nn.functional.rotary_embedding` has the formula.

    `dim` is even (ValueError otherwise); base and traditional are those of that function. Positions
    count from the `offset` of the call.
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
    """x plus sines and cosines of positions (Vaswani et al. 2017), then dropout: (T, B, dim), or
    (B, T, dim) with batch_first -> the same.

    `needle.nn.functional.sinusoidal_encoding` has the formula. ShapeError if x does not fit.
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
