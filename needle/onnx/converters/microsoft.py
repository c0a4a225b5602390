"""Converters of ONNX Runtime's own operators (domain com.microsoft): products, activations, norms
and embeddings. They follow ONNX Runtime's documentation and CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_half
from ...conversion.values import Value, dtype_of, normal_axis, tensor
from ...nn import functional as F
from ..execute import applied
from ..geometry import windows
from ..graph import Node
from ..registry import converter
from .conv import convolved
from .dense import scaled
from .norm import standardized

MICROSOFT = "com.microsoft"

# Activations


@converter("Gelu", domain=MICROSOFT)
def gelu(node: Node, x: Value) -> Tensor:
    return ops.gelu(tensor(x))


@converter("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: Node, x: Value, bias: Value) -> Tensor:
    return ops.gelu(ops.add(tensor(x), tensor(bias)))


@converter("FastGelu", domain=MICROSOFT)
def fast_gelu(node: Node, data: Value, bias: Value | None = None) -> Tensor:
    x = tensor(data)
    return ops.gelu(x if bias is None else ops.add(x, tensor(bias)), "tanh")


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    return ops.multiply(x, ops.sigmoid(ops.mul_scalar(x, node.number("alpha", 1.702))))


def activated(node: Node, x: Tensor, numbers: tuple[float, ...]) -> Tensor:
    """Apply the activation of a fused layer (`node`) to `x`, with its parameters `numbers`. Raises
    UnsupportedError for an unknown activation."""
    name = node.text("activation", "")
    found = _ACTIVATIONS.get(name)
    if found is None:
        raise node.unsupported(f"the activation {name!r}")
    function, defaults = found
    return function(x, *(numbers + defaults[len(numbers) :])[: len(defaults)])


_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "": (lambda x: x, ()),
    "Clip": (lambda x, low, high: ops.clip(x, low, high), (float("-inf"), float("inf"))),
    "Elu": (lambda x, alpha: ops.elu(x, alpha), (1.0,)),
    "HardSigmoid": (
        lambda x, a, b: ops.clip(ops.add_scalar(ops.mul_scalar(x, a), b), 0.0, 1.0),
        (0.2, 0.5),
    ),
    "HardSwish": (lambda x: ops.hardswish(x), ()),
    "LeakyRelu": (lambda x, alpha: ops.leaky_relu(x, alpha), (0.01,)),
    "Relu": (lambda x: ops.relu(x), ()),
    "Sigmoid": (lambda x: ops.sigmoid(x), ()),
    "Softplus": (lambda x: ops.softplus(x), ()),
    "Tanh": (lambda x: ops.tanh(x), ()),
}

# Products


@converter("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: Node, left: Value, right: Value) -> Tensor:
    a, b = (
        _turned(tensor(x), node.flag(f"trans{n}", False), node.flag(f"transBatch{n}", False))
        for x, n in ((left, "A"), (right, "B"))
    )
    return scaled(ops.matmul(a, b), node.number("alpha", 1.0))


def _turned(x: Tensor, matrix: bool, batches: bool) -> Tensor:
    """Permute an operand of FusedMatMul. With `batches`, its first axis becomes the second to last;
    with `matrix`, the last two axes are swapped. Vectors are unchanged."""
    if x.ndim < 2:
        return x
    if batches:
        axes = [*range(1, x.ndim - 1), 0, x.ndim - 1]
        x = ops.permute(x, axes)
    return ops.swapaxes(x, -1, -2) if matrix else x


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: Node, a: Value, b: Value, c: Value | None = None) -> Tensor:
    left = ops.transpose(tensor(a)) if node.flag("transA", False) else tensor(a)
    right = ops.transpose(tensor(b)) if node.flag("transB", False) else tensor(b)
    made = scaled(ops.matmul(left, right), node.number("alpha", 1.0))
    if c is not None:
        made = ops.add(made, scaled(tensor(c), node.number("beta", 1.0)))
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    return activated(node, made, tuple(node.number(name) for name in names if node.has(name)))


@converter("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(node: Node, a: Value, b: Value, bias: Value | None = None) -> Tensor:
    x = ops.matmul(tensor(a), tensor(b))
    return ops.gelu(x if bias is None else ops.add(x, tensor(bias)), "tanh")


@converter("FusedConv", domain=MICROSOFT)
def fused_conv(
    node: Node, data: Value, weight: Value, bias: Value | None = None, added: Value | None = None
) -> Tensor:
    x, w = tensor(data), tensor(weight)
    if x.ndim != w.ndim or not 3 <= x.ndim <= 5:
        raise node.invalid(f"an input {x.spec} and a weight {w.spec} do not match")
    over = windows(node, x.shape[2:], w.shape[2:])
    shift = None if bias is None else tensor(bias)
    made = convolved(x, w, shift, over, node.integer("group", 1))
    made = made if added is None else ops.add(made, tensor(added))
    return activated(node, made, node.numbers("activation_params", ()))


@converter("MatMulNBits", domain=MICROSOFT, known=(4,))
def matmul_nbits(
    node: Node,
    data: Value,
    packed: Value,
    scales: Value,
    zeros: Value | None = None,
    groups: Value | None = None,
    bias: Value | None = None,
) -> Tensor:
    """Multiply by a weight that is stored as blocks of small integers, each with a scale."""
    bits, size = node.integer("bits", 4), node.integer("block_size")
    length, width = node.integer("K"), node.integer("N")
    if bits not in (2, 4, 8):
        raise node.unsupported(f"{bits} bits; needle has 2, 4 and 8")
    if groups is not None:
        raise node.unsupported("g_idx, columns that are ordered by their groups")
    x, blocks = tensor(data), -(-length // size)
    dtype, middle = dtype_of(scales), float(1 << (bits - 1))

    def centred(q: Tensor, *centre: Tensor) -> Tensor:
        levels = ops.cast(_unpacked(q, bits, (width, blocks, size)), dtype)
        if not centre:
            return ops.subtract(levels, middle)
        given = centre[0]
        if given.dtype == "uint8":
            row = -(-blocks * bits // 8) * 8 // bits
            given = ops.cast(_unpacked(given, bits, (width, row))[:, :blocks], dtype)
        return ops.subtract(levels, ops.reshape(given, (width, blocks, 1)))

    # Unpack known values now: compiling these ops only to fold them would take seconds per node.
    levels = applied(centred, packed, *([] if zeros is None else [zeros]))
    values = ops.multiply(tensor(levels), ops.reshape(tensor(scales), (width, blocks, 1)))
    w = ops.reshape(values, (width, blocks * size))[:, :length]
    made = ops.matmul(x, ops.transpose(ops.cast(w, x.dtype)))
    return made if bias is None else ops.add(made, tensor(bias))


def _unpacked(packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    """Unpack integers of `bits` bits from bytes, lowest bits first."""
    parts = [
        ops.bitwise_and(ops.right_shift(packed, shift) if shift else packed, (1 << bits) - 1)
        for shift in range(0, 8, bits)
    ]
    return ops.reshape(ops.stack(parts, packed.ndim), shape)


# Norms


def _norm(
    node: Node, x: Tensor, scale: Value, shift: Value | None, eps: float, wanted: bool
) -> tuple[Tensor, ...]:
    """Apply a layer norm over the last axis. Return the result and, if wanted, the mean and the
    inverse of the standard deviation."""
    weight, bias = tensor(scale), None if shift is None else tensor(shift)
    if not wanted:
        return (F.layer_norm(x, weight.shape, weight, bias, eps),)
    made, mean, inverse = standardized(_wide(x), (x.ndim - 1,), eps)
    made = ops.multiply(ops.cast(made, x.dtype), weight)
    return made if bias is None else ops.add(made, bias), mean, inverse


def _wide(x: Tensor) -> Tensor:
    return ops.cast(x, "float32") if is_half(x.dtype) else x


def _total(*values: Value | None) -> Tensor:
    first, *others = [tensor(value) for value in values if value is not None]
    for other in others:
        first = ops.add(first, other)
    return first


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(
    node: Node,
    data: Value,
    skip: Value,
    scale: Value,
    shift: Value | None = None,
    bias: Value | None = None,
) -> Any:
    x = _total(data, skip, bias)
    wanted = node.wants(1) or node.wants(2)
    made = _norm(node, x, scale, shift, node.number("epsilon", 1e-12), wanted)
    return (*made, x) if wanted else (*made, None, None, x)


@converter("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_norm(node: Node, data: Value, scale: Value) -> Any:
    x, weight = tensor(data), tensor(scale)
    axis = normal_axis(node, node.integer("axis", -1), x.ndim)
    return _rms_norm(node, x, weight, axis, node.number("epsilon", 1e-5))


def _rms_norm(node: Node, x: Tensor, weight: Tensor, axis: int, eps: float) -> tuple[Any, ...]:
    """Divide x by the root of its mean square along the axes from `axis` on. Return the result, and
    the inverse of the root or None."""
    whole = weight.shape == x.shape[axis:] and weight.dtype == x.dtype
    if whole and not any(node.wants(i) for i in (1, 2)):
        return F.rms_norm(x, weight.shape, weight, eps), None
    wide = _wide(x)
    square = ops.mean(ops.square(wide), tuple(range(axis, x.ndim)), keepdims=True)
    inverse = ops.rsqrt(ops.add_scalar(square, eps))
    made = ops.multiply(ops.cast(ops.multiply(wide, inverse), weight.dtype), weight)
    return made, inverse


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_norm(
    node: Node, data: Value, skip: Value, scale: Value, bias: Value | None = None
) -> Any:
    x = _total(data, skip, bias)
    made, inverse = _rms_norm(node, x, tensor(scale), x.ndim - 1, node.number("epsilon", 1e-5))
    return made, None, inverse, x


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(
    node: Node,
    words: Value,
    segments: Value | None = None,
    word_table: Value | None = None,
    place_table: Value | None = None,
    segment_table: Value | None = None,
    scale: Value | None = None,
    shift: Value | None = None,
    mask: Value | None = None,
    places: Value | None = None,
) -> Any:
    if word_table is None or place_table is None or scale is None or shift is None:
        raise node.invalid("an embedding, gamma or beta is missing")
    index = tensor(words)
    at = tensor(place_table)[: index.shape[1]] if places is None else _rows(place_table, places)
    x = ops.add(_rows(word_table, words), at)
    if segments is not None and segment_table is not None:
        x = ops.add(x, _rows(segment_table, segments))
    made = _norm(node, x, scale, shift, node.number("epsilon", 1e-12), False)
    if mask is None:
        lengths: Value = np.zeros(1, np.int32)
        lengths = ops.broadcast_to(tensor(lengths), (index.shape[0],))
    else:
        lengths = ops.cast(ops.sum(ops.equal(tensor(mask), 1), 1), "int32")
    return *made, lengths, x


def _rows(table: Value, index: Value) -> Tensor:
    return ops.embedding(tensor(index), tensor(table))
