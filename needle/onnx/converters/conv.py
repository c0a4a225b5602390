"""Converters of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.budget import bounded
from ...conversion.convolutions import Sides, kernels_last, padded, transposed_convolved, whole_size
from ...conversion.values import Value, known_integers, tensor
from ...nn import functional as F
from ..geometry import Windows, explicit_pads, of_axes, windows
from ..graph import Node
from ..registry import converter

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _checked(node: Node, data: Value, weight: Value) -> tuple[Tensor, Tensor, int]:
    """Return the input and the weight as Tensors, and the number of axes along which the kernel
    moves."""
    x, w = tensor(data), tensor(weight)
    if x.ndim != w.ndim or x.ndim < 3:
        raise node.invalid(f"an input {x.spec} and a weight {w.spec} do not match")
    if x.ndim > 5:
        raise node.unsupported(f"a convolution over {x.ndim - 2} axes; needle has 1, 2 and 3")
    return x, w, x.ndim - 2


@converter("Conv", since=1)
def conv(node: Node, data: Value, weight: Value, bias: Value | None = None) -> Tensor:
    x, w, _ = _checked(node, data, weight)
    return convolved(
        x,
        w,
        None if bias is None else tensor(bias),
        windows(node, x.shape[2:], w.shape[2:]),
        node.integer("group"),
    )


def convolved(x: Tensor, w: Tensor, bias: Tensor | None, over: Windows, groups: int) -> Tensor:
    """Return the convolution of `x` (N, C, ...) with `w` (channels, C / `groups`, ...) in the
    windows `over`, plus `bias`."""
    w = kernels_last(w)
    if all(low == high for low, high in over.pads):
        padding = tuple(low for low, _ in over.pads)
    else:
        x, padding = padded(x, over.pads), (0,) * len(over.pads)
    function = _CONV[len(over.kernel)]
    return function(x, w, bias, over.strides, padding, over.dilations, groups)


@converter("ConvTranspose", since=1)
def conv_transpose(node: Node, data: Value, weight: Value, bias: Value | None = None) -> Tensor:
    x, w, count = _checked(node, data, weight)
    strides, dilations = of_axes(node, "strides", count), of_axes(node, "dilations", count)
    extra = of_axes(node, "output_padding", count, 0)
    whole = whole_size(x.shape[2:], w.shape[2:], strides, dilations)
    pads = _transposed_pads(node, x, strides, whole, extra)
    groups = node.integer("group")
    widened = [n + more for n, more in zip(whole, extra, strict=True)]
    bounded((x.shape[0], w.shape[1] * groups, *widened))
    shift = None if bias is None else tensor(bias)
    return transposed_convolved(x, w, shift, strides, pads, extra, dilations, groups)


def _transposed_pads(
    node: Node, x: Tensor, strides: tuple[int, ...], whole: list[Any], extra: tuple[int, ...]
) -> Sides:
    """Return how many elements to cut from the result at both ends of each axis."""
    auto, extents = node.text("auto_pad", "NOTSET"), x.shape[2:]
    if node.has("output_shape"):
        asked: tuple[Any, ...] = node.integers("output_shape")[-len(extents) :]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        asked = tuple(n * stride for n, stride in zip(extents, strides, strict=True))
    elif auto == "VALID":
        return [(0, 0)] * len(extents)
    else:
        return explicit_pads(node, len(extents))
    if len(asked) != len(extents):
        raise node.invalid(f"output_shape {asked} is not a number for each of {len(extents)} axes")
    sides: Sides = []
    for full, more, n in zip(whole, extra, asked, strict=True):
        total = full + more - n
        less = total // 2
        sides.append((less, total - less) if auto == "SAME_UPPER" else (total - less, less))
    return sides


@converter("Col2Im", since=18, known=(1, 2))
def col2im(node: Node, data: Value, image: Value, block: Value) -> Tensor:
    x = tensor(data)  # (N, channels * block, positions)
    extents = known_integers(node, image, "the image's shape")
    kernel = known_integers(node, block, "the block's shape")
    count = len(extents)
    strides, dilations = of_axes(node, "strides", count), of_axes(node, "dilations", count)
    pads = explicit_pads(node, count)
    whole = [n + low + high for n, (low, high) in zip(extents, pads, strict=True)]
    bounded((*x.shape[:1], *whole))
    bounded(kernel)
    axes = []  # per axis: the index in the padded image of each tap (row) of each block (column)
    for n, k, stride, dilation, (low, high) in zip(
        extents, kernel, strides, dilations, pads, strict=True
    ):
        steps = (n + low + high - (k - 1) * dilation - 1) // stride + 1
        bounded((k, max(0, steps)))
        axes.append(np.arange(k)[:, None] * dilation + np.arange(steps) * stride)
    bounded([n for axis in axes for n in axis.shape])
    positions = np.zeros((1, 1), np.int64)
    for n, axis in zip(whole, axes, strict=True):
        positions = (positions[:, None, :, None] * n + axis[None, :, None, :]).reshape(
            positions.shape[0] * axis.shape[0], -1
        )
    if x.ndim != 3 or x.shape[1] % positions.shape[0] or x.shape[2] != positions.shape[1]:
        raise node.invalid(
            f"an input {x.spec} does not hold blocks of {kernel} at {positions.shape[1]} positions"
        )
    channels = x.shape[1] // positions.shape[0]
    flat = ops.reshape(x, (x.shape[0], channels, positions.size))
    index = Tensor(positions.reshape(-1), requires_grad=False)
    summed = ops.segment_sum(flat, index, int(np.prod(whole)), 2)
    made = ops.reshape(summed, (x.shape[0], channels, *whole))
    return padded(made, [(-low, -high) for low, high in pads])
