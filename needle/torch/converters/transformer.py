"""Converters of PyTorch's operators for whole transformer layers in inference."""

from __future__ import annotations

from math import nan

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ...nn import functional as F
from ..operands import wide
from ..program import Node
from ..registry import converter
from .attention import attended

_OF_QUERIES, _OF_KEYS, _OF_HEADS = 0, 1, 2  # PyTorch's kinds of masks


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return ops.add(ops.matmul(x, ops.transpose(weight)), bias)


def _attention(
    node: Node,
    inputs: tuple[Tensor, Tensor, Tensor],
    heads: int,
    weights: tuple[Tensor, ...],
    mask: Value | None,
    kind: int | None,
    shown: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of `inputs`: queries (B, L, E), keys and values (B, S, E). `weights` are a
    matrix that projects all three and its bias, then the output projection and its bias. Return the
    result and the attention weights."""
    qkv_weight, qkv_bias, weight, bias = weights
    query, key, value = inputs
    batch, width = query.shape[0], query.shape[2]
    if query is key and key is value:
        projected = _linear(query, qkv_weight, qkv_bias)
        parts = [projected[..., i * width : (i + 1) * width] for i in range(3)]
    else:
        rows = [slice(i * width, (i + 1) * width) for i in range(3)]
        parts = [
            _linear(x, qkv_weight[each], qkv_bias[each])
            for x, each in zip(inputs, rows, strict=True)
        ]
    q, k, v = (
        ops.permute(ops.reshape(x, (batch, x.shape[1], heads, width // heads)), (0, 2, 1, 3))
        for x in parts
    )
    made, scores = attended(q, k, v, _seen(node, mask, kind), shown=shown, nothing=nan)
    joined = ops.reshape(ops.permute(made, (0, 2, 1, 3)), (batch, query.shape[1], width))
    return _linear(joined, weight, bias), scores


def _seen(node: Node, mask: Value | None, kind: int | None) -> Tensor | None:
    """Return the mask of the keys that are seen. PyTorch's mask marks the keys that are not seen,
    with bools or numbers."""
    if mask is None:
        return None
    seen = ops.logical_not(ops.cast(tensor(mask), "bool"))
    if kind == _OF_KEYS:
        return ops.reshape(seen, (seen.shape[0], 1, 1, seen.shape[1]))
    if kind not in (_OF_QUERIES, _OF_HEADS):
        raise node.unsupported(f"a mask of type {kind}")
    return seen


@converter("aten._native_multi_head_attention")
def multi_head_attention(
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    width: int,
    heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    weight: Value,
    bias: Value,
    mask: Value | None = None,
    need_weights: bool = True,
    average: bool = True,
    kind: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the result, and the attention weights of all heads or their mean."""
    alike = query is key and key is value
    q = wide(query)
    inputs = (q, q, q) if alike else (q, wide(key), wide(value))
    weights = tuple(map(wide, (qkv_weight, qkv_bias, weight, bias)))
    made, scores = _attention(node, inputs, heads, weights, mask, kind, need_weights)
    made = ops.cast(made, node.dtype)
    if scores is None:
        return made, None
    return made, ops.cast(ops.mean(scores, 1) if average else scores, node.result(1).dtype)


@converter("aten._transformer_encoder_layer_fwd")
def encoder_layer(
    node: Node,
    source: Value,
    width: int,
    heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    weight: Value,
    bias: Value,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Value,
    norm_bias_1: Value,
    norm_weight_2: Value,
    norm_bias_2: Value,
    weight_1: Value,
    bias_1: Value,
    weight_2: Value,
    bias_2: Value,
    mask: Value | None = None,
    kind: int | None = None,
) -> Tensor:
    """Compute an encoder layer: attention, then two linear layers, each part with a norm and a
    residual connection."""

    def normed(x: Tensor, scale: Value, shift: Value) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), wide(scale), wide(shift), eps)

    def forward(x: Tensor) -> Tensor:
        inner = _linear(x, wide(weight_1), wide(bias_1))
        inner = ops.gelu(inner) if use_gelu else ops.relu(inner)
        return _linear(inner, wide(weight_2), wide(bias_2))

    def attention(x: Tensor) -> Tensor:
        weights = tuple(map(wide, (qkv_weight, qkv_bias, weight, bias)))
        return _attention(node, (x, x, x), heads, weights, mask, kind)[0]

    x = wide(source)
    if norm_first:
        x = ops.add(x, attention(normed(x, norm_weight_1, norm_bias_1)))
        x = ops.add(x, forward(normed(x, norm_weight_2, norm_bias_2)))
    else:
        x = normed(ops.add(x, attention(x)), norm_weight_1, norm_bias_1)
        x = normed(ops.add(x, forward(x)), norm_weight_2, norm_bias_2)
    return ops.cast(x, node.dtype)
