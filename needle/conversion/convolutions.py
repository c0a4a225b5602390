"""Convolutions and padding, by the definitions that ONNX and PyTorch share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import ops
from ..autograd.tensor import Tensor
from ..nn import functional as F
from .budget import bounded

Sides = list[tuple[Any, Any]]  # numbers of elements before and after, for each axis
_TRANSPOSE: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


def kernels_last(w: Tensor) -> Tensor:
    """Return a weight (out, in, ...) in needle's layout, (..., in, out)."""
    return ops.permute(w, (*range(2, w.ndim), 1, 0))


def channelwise(x: Tensor, ndim: int) -> Tensor:
    """Reshape x, which has one element per channel, to broadcast along axis 1 of `ndim` axes."""
    return ops.reshape(x, (*x.shape, *(1,) * (ndim - 2)))


def whole_size(
    extents: Sequence[Any], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[Any]:
    """Return the extents of a transposed convolution's result before anything is cut off."""
    return [
        stride * (n - 1) + (k - 1) * dilation + 1
        for n, k, stride, dilation in zip(extents, kernel, strides, dilations, strict=True)
    ]


def transposed_convolved(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    strides: tuple[int, ...],
    pads: Sides,
    extra: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Return the transposed convolution of x (N, in, ...) with w (in, out / groups, ...). `pads`
    elements are cut off both ends of each axis of the result, and `extra` elements are added at its
    end."""
    count, kernel = w.ndim - 2, w.shape[2:]
    function, w = _TRANSPOSE[count], kernels_last(w)
    plain = all(
        low == high and low < (k - 1) * dilation + 1 and more < stride
        for (low, high), more, k, stride, dilation in zip(
            pads, extra, kernel, strides, dilations, strict=True
        )
    )
    if plain:
        padding = tuple(low for low, _ in pads)
        return function(x, w, bias, strides, padding, extra, groups, dilations)
    made = function(x, w, None, strides, (0,) * count, (0,) * count, groups, dilations)
    sides = [(-low, more - high) for (low, high), more in zip(pads, extra, strict=True)]
    made = padded(made, sides)
    return made if bias is None else ops.add(made, channelwise(bias, made.ndim))


def padded(x: Tensor, sides: Sides, value: float = 0) -> Tensor:
    """Return `x` with its last axes padded with `value`; negative widths cut elements off."""
    lead = x.ndim - len(sides)
    widened = [n + low + high for n, (low, high) in zip(x.shape[lead:], sides, strict=True)]
    bounded((*x.shape[:lead], *widened))
    cut = tuple(
        slice(max(0, -low), x.shape[axis] + high if high < 0 else None)
        for axis, (low, high) in enumerate(sides, lead)
    )
    if any(low < 0 or high < 0 for low, high in sides):
        key = (slice(None),) * lead + cut
        x = x[key]
    widths = [(max(low, 0), max(high, 0)) for low, high in sides]
    if not any(low or high for low, high in widths):
        return x
    return ops.pad(x, ((0, 0),) * lead + tuple(widths), value)
