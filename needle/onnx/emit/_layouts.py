"""Convert between layouts: needle's ops have channels last, ONNX has them second. Convolutions,
which need both layouts, are written here, too."""

from __future__ import annotations

from typing import Any

from ...autograd.node import Node
from ...ops import Pad
from ._rules import Site
from ._writer import Value, Writer


def first(w: Writer, x: Value) -> Value:
    """Transpose `x` (N, ..., C) to (N, C, ...) in the graph of `w`."""
    return w.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def last(w: Writer, x: Value) -> Value:
    """Transpose `x` (N, C, ...) to (N, ..., C) in the graph of `w`."""
    return w.transpose(x, (0, *range(2, x.ndim), 1))


def first_shape(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the shape of the result of `first` for an input of `shape`."""
    return (shape[0], shape[-1], *shape[1:-1])


def convolved(s: Site, node: Node, bias: Value | None) -> Value:
    """Write a convolution `node` as a Conv at `s`, with a `bias` (O,)."""
    op: Any = node.op
    w, out = s.w, node.spec
    image, weight = node.input_nodes
    p, q = op.window(weight.spec.shape).padding
    pads = [p, q, p, q]
    more = _border(s, image)
    if more is not None:
        pads = [a + b for a, b in zip(pads, more, strict=True)]
        (image,) = image.input_nodes
    window = op.window(weight.spec.shape)
    made: Value = w.node(
        "Conv",
        first(w, w.cast(s.values[image], out.dtype)),
        w.transpose(w.cast(s.values[weight], out.dtype), (3, 2, 0, 1)),
        bias,
        shape=first_shape(out.shape),
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=pads,
        dilations=list(window.dilation),
        group=op.groups,
    )
    return last(w, made)


def _border(s: Site, image: Node) -> list[int] | None:
    """Return the pads with which a Conv can replace `image`, if it is a Pad with zeros that nothing
    else reads. Return None otherwise."""
    if not isinstance(image.op, Pad) or len(s.users[image]) != 1 or image.op.value != 0:
        return None
    batch, rows, columns, channels = image.op.padding
    widths = [rows[0], columns[0], rows[1], columns[1]]
    outside = (*batch, *channels)
    if any(not isinstance(n, int) for n in (*widths, *outside)) or any(outside):
        return None
    return widths


def transposed_convolved(s: Site, node: Node, bias: Value | None) -> Value:
    """Write a conv_input `node` as a ConvTranspose at `s`, with a `bias` (C,)."""
    op: Any = node.op
    w, out = s.w, node.spec
    g, weight = node.input_nodes
    window = op.window(weight.spec.shape)
    p, q = window.padding
    least = [
        (n - 1) * stride + dilation * (k - 1) + 1 - 2 * pad
        for n, k, stride, pad, dilation in zip(g.spec.shape[1:3], *window, strict=True)
    ]
    made: Value = w.node(
        "ConvTranspose",
        first(w, w.cast(s.values[g], out.dtype)),
        w.transpose(w.cast(s.values[weight], out.dtype), (3, 2, 0, 1)),
        bias,
        shape=first_shape(out.shape),
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[p, q, p, q],
        dilations=list(window.dilation),
        group=op.groups,
        output_padding=[int(n - m) for n, m in zip(out.shape[1:3], least, strict=True)],
    )
    return last(w, made)
