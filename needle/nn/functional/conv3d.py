"""Three-dimensional convolutions over (N, channels, D, H, W), composed of two-dimensional ones.

The planes in a window become channels of one image, so one 2-D convolution sums over all planes.
The transpose computes the planes of all windows at once and adds the overlapping ones.
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from .basic import with_bias
from .conv import numbers, same_padding, transposed_size, transposed_window


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return x (N, in, D, H, W) convolved with weight (kd, kh, kw, in / groups, out), plus bias
    (out,): (N, out, planes, rows, columns). PyTorch's weight is (out, in / groups, kd, kh, kw). The
    other arguments are as in `conv2d`, as ints or sequences of three ints."""
    s, d = numbers("conv3d", "stride", stride, 3), numbers("conv3d", "dilation", dilation, 3)
    if isinstance(padding, str):
        sides = same_padding("conv3d", padding, weight.shape[:3], s, d)
    else:
        sides = [(n, n) for n in numbers("conv3d", "padding", padding, 3)]
    x = ops.permute(x, (0, 2, 3, 4, 1))
    if any(low != high for low, high in sides):
        x = ops.pad(x, ((0, 0), *sides, (0, 0)))
        sides = [(0, 0)] * 3
    deep, *around = (low for low, _ in sides)
    kd, kh, kw, inputs, outputs = weight.shape
    batch, depth, rows, columns, channels = x.shape
    x = ops.reshape(x, (batch, depth, rows * columns, channels))
    x = ops.sliding_windows(x, (kd, 1), (s[0], 1), (deep, 0), (d[0], 1))
    planes = x.shape[1]
    if groups > 1:  # the channels of a group stay together
        x = ops.reshape(x, (batch, planes, rows * columns, kd, groups, inputs))
        x = ops.permute(x, (0, 1, 2, 4, 3, 5))
    images = ops.reshape(x, (batch * planes, rows, columns, kd * channels))
    kernels = ops.reshape(ops.permute(weight, (1, 2, 0, 3, 4)), (kh, kw, kd * inputs, outputs))
    y = ops.conv(images, kernels, s[1:], tuple(around), d[1:], groups)
    y = with_bias(y, bias)
    y = ops.reshape(y, (batch, planes, *y.shape[1:]))
    return ops.permute(y, (0, 4, 1, 2, 3))


def conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return the transpose of a convolution: x (N, in, planes, rows, columns), weight (kd, kh, kw,
    out / groups, in) -> (N, out, D, H, W). PyTorch's weight is (in, out / groups, kd, kh, kw). The
    other arguments are as in `conv_transpose2d`, as ints or sequences of three ints."""
    window = transposed_window("conv_transpose3d", 3, stride, padding, output_padding, dilation)
    s, p, _, d = window
    batch, channels, planes, *image = x.shape
    kd, kh, kw, each, inputs = weight.shape
    depth, rows, columns = transposed_size(x.shape[2:], weight.shape, window)
    images = ops.reshape(ops.permute(x, (0, 2, 3, 4, 1)), (batch * planes, *image, channels))
    kernels = ops.reshape(ops.permute(weight, (1, 2, 0, 3, 4)), (kh, kw, kd * each, inputs))
    y = ops.conv_input(images, kernels, (rows, columns), s[1:], p[1:], d[1:], groups)
    y = ops.reshape(y, (batch, planes, rows, columns, groups, kd, each))
    y = ops.permute(y, (0, 1, 5, 2, 3, 4, 6))
    outputs = groups * each
    y = ops.reshape(y, (batch, planes, 1, kd, 1, rows * columns * outputs))
    y = ops.overlap_add(y, (depth, 1), (s[0], 1), (p[0], 0), (d[0], 1))
    y = ops.reshape(y, (batch, depth, rows, columns, outputs))
    y = with_bias(y, bias)
    return ops.permute(y, (0, 4, 1, 2, 3))
