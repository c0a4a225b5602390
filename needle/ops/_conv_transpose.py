"""The transposed convolution as a convolution of stride 1 into blocks of neighbouring results.

Along one axis with stride s, result `q * s + r` of the unpadded transposed convolution is the sum
over t of g[q - t] w[t * s + r]. So the s results of block q are the output channels of a dense
convolution. A permutation puts them side by side (Shi et al., "Real-time single image and video
super-resolution", 2016), and a slice applies the padding.

If s does not divide the kernel, that convolution multiplies by zeros. In that case, if a block has
few results, each result gets its own convolution with only the taps that it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

from ..op.signatures import Expr, Extent
from ._windows import Pair, Window


class Axis(NamedTuple):
    """One axis of the convolution that computes blocks of results."""

    stride: int
    kernel: int
    taps: int  # of the convolution; the kernel, padded with zeros, has `taps * stride` elements
    dilation: int
    before: int  # zeros before the input
    after: int  # zeros after the input
    blocks: int
    begin: int  # where the result begins in the row of all blocks
    size: int  # size of the result


Axes = tuple[Axis, Axis]

_MOST_PHASES = 4


def axes_of(g: Sequence[Extent], window: Window, size: Pair) -> Axes | None:
    """Return both axes for outputs of shape `g`, or None if `axis_of` returns None for one."""
    high, wide = (axis_of(*each) for each in zip(g[1:3], size, *window, strict=True))
    return None if high is None or wide is None else (high, wide)


def axis_of(n: Extent, m: Extent, k: int, s: int, p: int, d: int) -> Axis | None:
    """Return the Axis that turns `n` elements into `m` with a kernel of `k`, stride `s`, padding
    `p` and dilation `d`. Return None if extents are symbolic, if both stride and dilation are above
    1, or if the padding cuts off more than the first and the last block."""
    if not (is_known(n) and is_known(m)) or (s > 1 and d > 1):
        return None
    taps = -(-k // s)
    first, last = p // s, (int(m) - 1 + p) // s
    before, after = d * (taps - 1) - first, last - (int(n) - 1)
    if before < 0 or after < 0:
        return None
    return Axis(s, k, taps, d, before, after, last - first + 1, p % s, int(m))


def is_known(n: Extent) -> bool:
    """Return whether an extent is a number above 0."""
    value = getattr(n, "value", n)
    return isinstance(value, int) and value > 0


def emit(r: ModuleType, g: Expr, w: Expr, axes: Axes, groups: int) -> Expr | None:
    """Return the transposed convolution of g (N, rows, columns, O) with w (kh, kw, C / groups,
    O)."""
    (high, wide), op = axes, r.op
    *_, each, outputs = (int(n) for n in w.ty.shape)
    batch, channels = g.ty.shape[0], each * groups
    if not each or not outputs:
        return None
    if groups == 1 and _in_phases(axes):
        y = op.concat([_phase(r, g, w, axes, (i, j)) for i, j in _phases(axes)], axis=3)
    else:
        y = _conv(r, g, _weights(r, w, axes, groups), axes, (high.taps, wide.taps), groups)
    extents = [axis.blocks * axis.stride for axis in axes]
    if high.stride * wide.stride > 1:
        blocks = (batch, high.blocks, wide.blocks, groups, high.stride, wide.stride, each)
        y = op.permute_dims(op.reshape(y, blocks), [0, 1, 4, 2, 5, 3, 6])
        y = op.reshape(y, (batch, *extents, channels))
    begin, end = [axis.begin for axis in axes], [axis.begin + axis.size for axis in axes]
    if any(begin) or end != extents:
        y = op.strided_slice(y, [1, 2], begin, end, assume_inbound=True)
    return y


def _conv(r: ModuleType, g: Expr, w: Expr, axes: Axes, taps: Pair, groups: int) -> Expr:
    """Return the convolution of g with weights of `taps` taps. It has one position per block."""
    lacking = [axis.dilation * (axis.taps - n) for axis, n in zip(axes, taps, strict=True)]
    before = [axis.before - n for axis, n in zip(axes, lacking, strict=True)]
    return r.op.nn.conv2d(
        g,
        w,
        padding=[*before, *(axis.after for axis in axes)],
        dilation=[axis.dilation for axis in axes],
        groups=groups,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )


def _in_phases(axes: Axes) -> bool:
    """Return whether each result of a block gets its own convolution."""
    uneven = any(axis.kernel % axis.stride for axis in axes)
    few = axes[0].stride * axes[1].stride <= _MOST_PHASES
    # Each result must have a tap, and those with fewer taps must not need negative padding.
    return (
        uneven
        and few
        and all(a.kernel >= a.stride for a in axes)
        and all(axis.before > 0 or axis.kernel % axis.stride == 0 for axis in axes)
    )


def _phases(axes: Axes) -> Iterator[Pair]:
    """Return the positions of the results in a block."""
    high, wide = axes
    return itertools.product(range(high.stride), range(wide.stride))


def _phase(r: ModuleType, g: Expr, w: Expr, axes: Axes, at: Pair) -> Expr:
    """Return the results at one position in all blocks."""
    op, ends = r.op, [axis.kernel for axis in axes]
    strides = [axis.stride for axis in axes]
    w = op.strided_slice(w, [0, 1], list(at), ends, strides, assume_inbound=True)
    taps = [-(-(k - i) // s) for k, i, s in zip(ends, at, strides, strict=True)]
    w = op.permute_dims(_reversed(r, w, (0, 1), taps), [0, 1, 3, 2])
    return _conv(r, g, w, axes, (taps[0], taps[1]), 1)


def _reversed(r: ModuleType, w: Expr, positions: Pair, taps: Sequence[int]) -> Expr:
    for position, count in zip(positions, taps, strict=True):
        if count > 1:
            w = r.op.flip(w, position)
    return w


def _weights(r: ModuleType, w: Expr, axes: Axes, groups: int) -> Expr:
    """Return the weights (kh, kw, C / groups, O) as (taps, taps, O / groups, groups * stride *
    stride * C / groups), with the taps reversed."""
    (high, wide), op = axes, r.op
    *_, each, outputs = (int(n) for n in w.ty.shape)
    more = [axis.taps * axis.stride - axis.kernel for axis in axes]
    if any(more):
        w = op.nn.pad(w, [0, more[0], 0, more[1], 0, 0, 0, 0])
    parts = (high.taps, high.stride, wide.taps, wide.stride, each, groups, outputs // groups)
    w = op.reshape(w, parts)
    w = _reversed(r, w, (0, 2), (high.taps, wide.taps))
    w = op.permute_dims(w, [0, 2, 6, 5, 1, 3, 4])
    shape = (high.taps, wide.taps, outputs // groups, high.stride * wide.stride * each * groups)
    return op.reshape(w, shape)
