"""Fuse sums with the operators that compute their terms: a Linear becomes one Gemm, a convolution
gets its bias, and a BatchNorm with known statistics becomes one BatchNormalization."""

from __future__ import annotations

from ... import ops
from ...autograd.node import Node
from ...backend_ndarray.dtypes import is_floating
from ...sizes.extents import same
from ._dtypes import has_kernel
from ._layouts import convolved, first, first_shape, last, transposed_convolved
from ._rules import Site
from ._writer import Value


def fused(s: Site) -> Value | None:
    """Write the sum at `s` as part of another operator. Return None for a plain sum."""
    if not is_floating(s.out.dtype) or any(n.spec.dtype != s.out.dtype for n in s.node.input_nodes):
        return None
    for product, bias in (s.node.input_nodes, s.node.input_nodes[::-1]):
        if product.op is None:
            continue
        made = _normalized(s, product, bias) if isinstance(product.op, ops.Multiply) else None
        if made is None and s.is_read_once(product):
            made = _with_bias(s, product, bias)
        if made is not None:
            return made
    return None


def _with_bias(s: Site, product: Node, bias: Node) -> Value | None:
    if not isinstance(product.op, (ops.Matmul, ops.Conv, ops.ConvInput)):
        return None
    w, width = s.w, product.spec.shape[-1:]
    operands = [s.values[node] for node in product.input_nodes]
    if any(node.spec.dtype != s.out.dtype for node in product.input_nodes):
        return None
    if isinstance(product.op, ops.Matmul):
        fits = bias.spec.shape in (width, (1, *width)) if not _symbolic(bias) else False
        if not fits or any(x.ndim != 2 for x in operands) or not has_kernel("Gemm", s.out.dtype):
            return None
        made: Value = w.node("Gemm", *operands, s.values[bias], shape=product.spec.shape)
        return made
    if _symbolic(bias) or bias.spec.shape != width or not has_kernel("Conv", s.out.dtype):
        return None
    how = convolved if isinstance(product.op, ops.Conv) else transposed_convolved
    return how(s, product, s.values[bias])


def _normalized(s: Site, product: Node, shift: Node) -> Value | None:
    """Fuse the expression that `ops.batch_norm` computes: x * scale + (bias - mean * scale) with
    scale = weight / sqrt(variance + eps). All but x are vectors along the last axis."""
    if not isinstance(shift.op, ops.Subtract) or shift.spec.ndim != 1:
        return None
    x, scale = product.input_nodes
    bias, shifted = shift.input_nodes
    if x.spec.ndim < 2 or not isinstance(scale.op, ops.Multiply):
        return None
    if not isinstance(shifted.op, ops.Multiply) or shifted.input_nodes[1] is not scale:
        return None
    weight, root = scale.input_nodes
    if not isinstance(root.op, ops.Rsqrt) or not isinstance(root.input_nodes[0].op, ops.AddScalar):
        return None
    (spread,) = root.input_nodes
    assert isinstance(spread.op, ops.AddScalar)
    vectors = weight, bias, shifted.input_nodes[0], spread.input_nodes[0]
    one = s.out._replace(shape=x.spec.shape[-1:])
    if x.spec.dtype != one.dtype or not all(same(v.spec, one) for v in vectors):
        return None
    given = s.values[x]
    y: Value = s.w.node(
        "BatchNormalization",
        given if x.spec.ndim == 2 else first(s.w, given),
        *[s.values[v] for v in vectors],
        epsilon=float(spread.op.scalar),
    )
    y.shape = first_shape(given.extents)
    return y if x.spec.ndim == 2 else last(s.w, y)


def _symbolic(node: Node) -> bool:
    return any(not isinstance(n, int) for n in node.spec.shape)
