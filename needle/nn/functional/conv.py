"""Convolutions of one and two dimensions over (N, channels, ...).

All use the op for two-dimensional convolutions with channels last; a one-dimensional input becomes
an image with one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from .basic import with_bias


def channels_last(x: Tensor) -> Tensor:
    """Permute (N, C, H, W) -> (N, H, W, C)."""
    return ops.permute(x, (0, 2, 3, 1))


def channels_first(x: Tensor) -> Tensor:
    """Permute (N, H, W, C) -> (N, C, H, W)."""
    return ops.permute(x, (0, 3, 1, 2))


def numbers(owner: str, what: str, value: Any, count: int) -> tuple[int, ...]:
    """Return `value`, an int or a sequence of `count` ints, as a tuple. Raises TypeError or
    ValueError for any other value."""
    given = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if any(not isinstance(n, int) or isinstance(n, bool) for n in given):
        raise TypeError(f"{owner}: {what} {value!r} is not an int or {count} ints")
    if len(given) != count:
        raise ValueError(f"{owner}: {what} {value!r} must be an int or {count} ints")
    return given


def as_row(x: Tensor) -> Tensor:
    """Reshape (N, C, L) to images (N, C, 1, L)."""
    return ops.reshape(x, (*x.shape[:2], 1, x.shape[2]))


def from_row(x: Tensor) -> Tensor:
    """Reshape (N, C, 1, L) -> (N, C, L)."""
    return ops.reshape(x, (*x.shape[:2], x.shape[3]))


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return x (N, in, L) convolved with weight (k, in / groups, out), plus bias (out,): (N, out,
    length). PyTorch's weight is (out, in / groups, k). The other arguments are as in `conv2d`,
    with one number each."""
    (s,), (d,) = (
        numbers("conv1d", *each, 1) for each in (("stride", stride), ("dilation", dilation))
    )
    pad = padding if isinstance(padding, str) else (0, *numbers("conv1d", "padding", padding, 1))
    kernel, steps = ops.reshape(weight, (1, *weight.shape)), ops.swapaxes(x, 1, 2)
    row = ops.reshape(steps, (steps.shape[0], 1, *steps.shape[1:]))
    y = _conv_last(row, kernel, bias, (1, s), pad, (1, d), groups)
    return ops.swapaxes(ops.reshape(y, (y.shape[0], *y.shape[2:])), 1, 2)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return x (N, in, H, W) convolved with weight (kh, kw, in / groups, out), plus bias (out,):
    (N, out, rows, columns). PyTorch's weight is (out, in / groups, kh, kw).

    stride, padding and dilation are ints or pairs (rows, columns); padding "valid" is 0, and "same"
    keeps the extents at stride 1 (raises ValueError for any other stride). Raises ShapeError for
    shapes that do not fit.

    >>> F.conv2d(ndl.zeros(1, 3, 8, 8), ndl.zeros(3, 3, 3, 16), padding="same").shape
    (1, 16, 8, 8)
    """
    return channels_first(
        _conv_last(channels_last(x), weight, bias, stride, padding, dilation, groups)
    )


def _conv_last(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, *rest: Any
) -> Tensor:
    """Apply `conv2d` with channels last: x (N, H, W, in) -> (N, rows, columns, out)."""
    if isinstance(padding, str):
        x, padding = _padded(x, padding, weight.shape[:2], stride, rest[0])
    y = ops.conv(x, weight, stride, padding, *rest)
    return with_bias(y, bias)


def _padded(
    x: Tensor, padding: str, kernel: Any, stride: Any, dilation: Any
) -> tuple[Tensor, tuple[int, int]]:
    """Resolve the `padding` "same" or "valid". Return x (N, H, W, C), already padded if the padding
    is not symmetric, and the symmetric padding that is left to the convolution."""
    sides = same_padding("conv2d", padding, kernel, stride, dilation)
    if all(low == high for low, high in sides):
        return x, (sides[0][0], sides[1][0])
    return ops.pad(x, ((0, 0), *sides, (0, 0))), (0, 0)


def same_padding(
    owner: str, padding: str, kernel: Sequence[int], stride: Any, dilation: Any
) -> list[tuple[int, int]]:
    """Return the widths (before, after) of each axis for the `padding` "valid" or "same". Raises
    ValueError for any other string, and for "same" with a stride above 1."""
    if padding not in ("same", "valid"):
        raise ValueError(f"{owner}: padding {padding!r} is not 'same', 'valid' or numbers")
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if any(s != 1 for s in numbers(owner, "stride", stride, len(kernel))):
        raise ValueError(f"{owner}: padding 'same' needs stride 1, not {stride}")
    dilations = numbers(owner, "dilation", dilation, len(kernel))
    total = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    return [(n // 2, n - n // 2) for n in total]  # an odd total pads the end more, as in PyTorch


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return the transpose of a convolution: x (N, in, L), weight (k, out / groups, in) -> (N, out,
    length). PyTorch's weight is (in, out / groups, k). The other arguments are as in
    `conv_transpose2d`, with one number each."""
    (s,), (p,), (o,), (d,) = transposed_window(
        "conv_transpose1d", 1, stride, padding, output_padding, dilation
    )
    kernel = ops.reshape(weight, (1, *weight.shape))
    y = conv_transpose2d(as_row(x), kernel, bias, (1, s), (0, p), (0, o), groups, (1, d))
    return from_row(y)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return the transpose of a convolution: x (N, in, rows, columns), weight (kh, kw, out /
    groups, in) -> (N, out, H, W) with H = (rows - 1) * stride - 2 * padding + dilation * (kh - 1) +
    output_padding + 1. PyTorch's weight is (in, out / groups, kh, kw).

    bias is (out,). stride, padding, output_padding and dilation are ints or pairs (rows, columns).
    Raises ValueError unless each output_padding is below the stride or the dilation along its axis,
    and ShapeError for shapes that do not fit.
    """
    window = transposed_window("conv_transpose2d", 2, stride, padding, output_padding, dilation)
    s, p, _, d = window
    size = transposed_size(x.shape[2:4], weight.shape, window)
    y = ops.conv_input(channels_last(x), weight, size, s, p, d, groups)
    return channels_first(with_bias(y, bias))


def transposed_window(
    owner: str, axes: int, stride: Any, padding: Any, output_padding: Any, dilation: Any
) -> tuple[tuple[int, ...], ...]:
    """Return stride, padding, output_padding and dilation, each as a tuple with a number per axis.
    Raises ValueError unless each output_padding is below the stride or the dilation along its
    axis."""
    s = numbers(owner, "stride", stride, axes)
    p = numbers(owner, "padding", padding, axes)
    o = numbers(owner, "output_padding", output_padding, axes)
    d = numbers(owner, "dilation", dilation, axes)
    for more, step, apart in zip(o, s, d, strict=True):
        if not 0 <= more < max(step, apart):
            raise ValueError(
                f"{owner}: output_padding {more} is not below stride {step} or dilation {apart}"
            )
    return s, p, o, d


def transposed_size(
    extents: Sequence[int], kernel: Sequence[int], window: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """Return the extents of a transposed convolution's result."""
    return tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, k, s, p, o, d in zip(extents, kernel, *window, strict=False)
    )
