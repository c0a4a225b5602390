"""Converters of convolutions. Weights have PyTorch's layout and are permuted in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import ops
from ...autograd.engine import pulled_back
from ...autograd.tensor import Tensor
from ...conversion.convolutions import kernels_last, transposed_convolved
from ...conversion.values import Value, tensor
from ...nn import functional as F
from ..operands import in_float32
from ..program import Node
from ..registry import converter
from ..windows import batched, each_axis

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def convolved(
    node: Node,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Any,
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Return the convolution of `x` (N, C, ...) with `w` (out, C / `groups`, ...), plus `bias`.
    `stride`, `padding` and `dilation` are PyTorch's. Raises UnsupportedError, which names the
    `node`, for more than 3 axes."""
    count = _axes(node, w)
    if not isinstance(padding, str):
        padding = each_axis(padding, count)
    window = each_axis(stride, count), padding, each_axis(dilation, count), groups

    def of_batch(batch: Tensor) -> Tensor:
        return in_float32(lambda *each: _CONV[count](*each, *window), batch, kernels_last(w), bias)

    return batched(x, count, of_batch)


def _axes(node: Node, w: Tensor) -> int:
    """Return the number of axes along which a kernel moves."""
    count = w.ndim - 2
    if not 1 <= count <= 3:
        raise node.unsupported(f"a convolution over {count} axes; needle has 1, 2 and 3")
    return count


@converter("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten._convolution_mode")
def conv(
    node: Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    shift = None if bias is None else tensor(bias)
    return convolved(node, tensor(x), tensor(weight), shift, stride, padding, dilation, groups)


@converter("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def conv_transpose(
    node: Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    extra: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    w = tensor(weight)
    count = _axes(node, w)
    pads = [(n, n) for n in each_axis(padding, count)]
    strides, extras, dilations = (each_axis(each, count) for each in (stride, extra, dilation))

    def of_batch(batch: Tensor) -> Tensor:
        def transposed(x: Tensor, w: Tensor, shift: Tensor | None) -> Tensor:
            return transposed_convolved(x, w, shift, strides, pads, extras, dilations, groups)

        return in_float32(transposed, batch, w, None if bias is None else tensor(bias))

    return batched(tensor(x), count, of_batch)


@converter("aten.convolution", "aten._convolution")
def convolution(
    node: Node,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: int,
    *how: Any,
) -> Tensor:
    """Convolve, or apply the transposed convolution. `how` selects a kernel in PyTorch and is
    ignored."""
    if transposed:
        return conv_transpose(node, x, weight, bias, stride, padding, extra, groups, dilation)
    return conv(node, x, weight, bias, stride, padding, dilation, groups)


@converter("aten.convolution_backward")
def convolution_backward(
    node: Node,
    out_grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the `wanted` gradients of the input, the weight and the bias."""
    grad, window = tensor(out_grad), (stride, padding, dilation, transposed, extra, groups)
    inputs = [tensor(each).detach() for each in (x, weight)]
    for each, is_wanted in zip(inputs, wanted, strict=False):
        if is_wanted:
            each.requires_grad = True

    def made(batch: Tensor, w: Tensor) -> Tensor:
        return convolution(node, batch, w, None, *window)

    of_both = pulled_back(made, inputs, grad) if any(wanted[:2]) else (None, None)
    axes = (0, *range(2, grad.ndim))
    return (*of_both, ops.summation(grad, axes) if wanted[2] else None)


@converter("aten.conv_tbc")
def conv_of_steps(node: Node, x: Value, weight: Value, bias: Value, padding: int = 0) -> Tensor:
    """Convolve x (steps, N, in) with a weight (k, in, out)."""

    def convolved(steps: Tensor, w: Tensor, shift: Tensor) -> Tensor:
        return F.conv1d(steps, w, shift, padding=padding)

    turned = ops.permute(tensor(x), (1, 2, 0))
    made = in_float32(convolved, turned, tensor(weight), tensor(bias))
    return ops.permute(made, (2, 0, 1))


@converter("aten.im2col")
def im2col(node: Node, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Return the patches of images as columns (torch.nn.functional.unfold)."""
    windows = (each_axis(each, 2) for each in (kernel, dilation, padding, stride))
    return ops.unfold(tensor(x), *windows)


@converter("aten.col2im")
def col2im(
    node: Node, x: Value, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Tensor:
    """Assemble images from patches, summed where they overlap (torch.nn.functional.fold)."""
    windows = [each_axis(each, 2) for each in (size, kernel, dilation, padding, stride)]
    found = tensor(x)
    made = ops.fold(ops.cast(found, "int8") if found.dtype == "bool" else found, *windows)
    return ops.greater(made, 0) if found.dtype == "bool" else made
