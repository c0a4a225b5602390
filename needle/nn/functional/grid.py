"""Sampling of images at the points of a grid (Jaderberg et al. 2015, section 3.3)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

from ... import init, ops
from ...autograd.dispatch import apply
from ...autograd.engine import pulled_back
from ...autograd.node import Node, spec_of
from ...autograd.shapes import Spec, common_device
from ...autograd.tensor import Tensor
from ...backend_ndarray import Device, NDArray
from ...backend_ndarray.dtypes import compute_dtype, is_floating, is_half
from ...backend_ndarray.ndarray import wrap
from ...common.state import state
from ...errors import ShapeError
from ...op import Op
from ...op.signatures import ArrayGradients, Gradients
from ...ops._arguments import check_tensors
from ...ops.weighted_elements import WeightedElements
from ...sizes.extents import same
from .resize import cubic_weights

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    x: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Return x (N, C, H, W) sampled at the points of grid (N, rows, columns, 2): (N, C, rows,
    columns). For x (N, C, D, H, W) and grid (N, planes, rows, columns, 3), the result is (N, C,
    planes, rows, columns).

    A point is (column, row) or (column, row, plane), each from -1 to 1. With `align_corners`, -1
    and 1 are the centres of the outermost elements, otherwise their outer edges. `mode` is
    "bilinear" (trilinear for three axes), "nearest" or "bicubic" (only for two axes, with a =
    -0.75). `padding_mode` determines the values outside x: "zeros", the nearest element ("border")
    or the mirrored image ("reflection").

    Gradients flow to x and to grid. Raises ShapeError, TypeError or ValueError for arguments that
    do not fit.
    """
    op = _op(mode, padding_mode, bool(align_corners))
    if state.trace is None and isinstance(x, Tensor) and isinstance(grid, Tensor):
        value = x._data
        # The kernel indexes the elements of a channel with 32 bits.
        if value is not None and value.view.size < 2**31 and _has_kernel(value.device):
            return apply(op, (x, grid))
    check_tensors("grid_sample", x=x, grid=grid)
    op.infer(x.spec, grid.spec)
    return op.composed(x, grid)


def _has_kernel(device: Device) -> bool:
    return hasattr(device.kernels, "grid_sample")


@dataclasses.dataclass(frozen=True, eq=False)
class _GridSample(Op):
    """`grid_sample` as one kernel, for devices that have it. The op is not registered, because
    compiled code and gradients of gradients use `composed` instead."""

    mode: str
    padding_mode: str
    align_corners: bool

    name = "grid_sample"
    arity = 2
    reads = frozenset({"inputs"})

    def infer(self, x: Spec, grid: Spec) -> Spec:
        axes = x.ndim - 2
        if axes not in (2, 3) or grid.ndim != x.ndim or grid.shape[-1] != axes:
            raise ShapeError(
                f"grid_sample: x has shape {x.shape} and the grid {grid.shape}; they must be "
                "(N, C, H, W) and (N, rows, columns, 2), or (N, C, D, H, W) and (N, planes, rows, "
                "columns, 3)"
            )
        if any(same(n, 0) for n in x.shape[2:]):
            raise ShapeError(f"grid_sample: x of shape {x.shape} has no elements to read")
        if grid.shape[0] != x.shape[0]:
            raise ShapeError(
                f"grid_sample: batches of {x.shape[0]} and {grid.shape[0]} do not match"
            )
        if not is_floating(x.dtype) or x.dtype != grid.dtype:
            raise TypeError(
                f"grid_sample: x is {x.dtype}, grid is {grid.dtype}; give one float dtype for both"
            )
        if self.mode not in _MODES or (self.mode == "bicubic" and axes == 3):
            raise ValueError(
                f"grid_sample: mode {self.mode!r} for {axes} axes is not one of {', '.join(_MODES)}"
            )
        if self.padding_mode not in _PADDINGS:
            raise ValueError(
                f"grid_sample: padding_mode {self.padding_mode!r} is not {' or '.join(_PADDINGS)}"
            )
        device = common_device(self.name, x, grid)
        return Spec((*x.shape[:2], *grid.shape[1:-1]), x.dtype, device)

    def compute(self, x: NDArray, grid: NDArray) -> NDArray:
        device, dtype = x.device, x.view.dtype
        if is_half(dtype):
            self.infer(spec_of(x), spec_of(grid))
            return self.compute(x.astype("float32"), grid.astype("float32")).astype(dtype)
        how = self.mode, self.padding_mode, self.align_corners
        return wrap(device, device.kernels.grid_sample(x.view, grid.view, *how))

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        x, grid = node.saved
        given = (out_grad, x, grid)
        wide = [part.astype(compute_dtype(part.dtype), copy=False).view for part in given]
        found = x.device.kernels.grid_sample_grad(*wide, *self._how())
        return tuple([wrap(x.device, part).astype(x.dtype, copy=False) for part in found])

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        inputs = node.inputs
        found = pulled_back(self.composed, inputs, out_grad)
        # In mode nearest, no gradient flows to the grid; return zeros, as the kernel does.
        pairs = zip(inputs, found, strict=True)
        return tuple([init.zeros_like(x) if y is None else y for x, y in pairs])

    def composed(self, x: Tensor, grid: Tensor) -> Tensor:
        """Compute the kernel's result with other ops."""
        return sampled(x, grid, *self._how())

    def _how(self) -> tuple[str, str, bool]:
        return self.mode, self.padding_mode, self.align_corners


_op = functools.lru_cache(maxsize=64, typed=True)(_GridSample)


def sampled(x: Tensor, grid: Tensor, mode: str, padding: str, align_corners: bool) -> Tensor:
    """Apply `grid_sample` for any number of axes, in any mode, without checks."""
    last = x.ndim - 3
    taps = [
        _taps(grid[..., last - i], n, mode, padding, align_corners)
        for i, n in enumerate(x.shape[2:])
    ]
    return _gathered(x, taps)


Tap = tuple[Tensor, Tensor | None]  # an element's position along an axis, and its weight


def _taps(at: Tensor, n: int, mode: str, padding: str, align_corners: bool) -> list[Tap]:
    """Return positions and weights along an axis of extent n. The weighted sum of the elements at
    these positions is the value at each point. Positions may lie outside the axis."""
    place = (at + 1) / 2 * (n - 1) if align_corners else ((at + 1) * n - 1) / 2
    if mode == "bicubic":
        low = ops.floor(place)
        weights = cubic_weights(place - low)
        return [(_within(low + i, n, padding, align_corners), w) for i, w in enumerate(weights, -1)]
    place = _within(place, n, padding, align_corners)
    if mode == "nearest":
        return [(ops.round(place), None)]
    low = ops.floor(place)
    share = place - low
    return [(low, 1 - share), (low + 1, share)]


def _within(place: Tensor, n: int, padding: str, align_corners: bool) -> Tensor:
    """Return the positions, moved into the axis unless `padding` is "zeros"."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, span = (0.0, n - 1) if align_corners else (-0.5, n)
        far = ops.abs(place - low)
        if span == 0:
            return place * 0
        extra = ops.fmod(far, span)
        is_even = ops.remainder(ops.floor(far / span), 2) == 0
        place = ops.where(is_even, extra, span - extra) + low
    # Use `where` instead of `minimum` and `maximum`, so that NaN becomes 0 and the gradient at a
    # border is 0, as in PyTorch.
    return ops.where(place > 0, ops.where(place < n - 1, place, n - 1), 0)


def _gathered(x: Tensor, taps: list[list[Tap]]) -> Tensor:
    """Return the weighted sums of the elements of x at the taps; elements outside x count as 0."""
    batch, channels, *size = x.shape
    points = taps[0][0][0].shape
    plane = prod(size)
    kind = "int32" if isinstance(plane, int) and plane < 2**31 else "int64"
    indices, weights = [], []
    for corner in itertools.product(*taps):
        index: Any = 0
        is_inside: Any = None
        weight: Any = None
        for (place, share), n in zip(corner, size, strict=True):
            inside = (place >= 0) & (place <= n - 1)
            is_inside = inside if is_inside is None else is_inside & inside
            index = index * n + ops.where(inside, place, 0).astype(kind)  # 0 for NaN too
            if share is not None:
                weight = share if weight is None else weight * share
        indices.append(ops.where(is_inside, index, -1))
        weights.append(is_inside.astype(x.dtype) if weight is None else weight)
    index, weight = (
        ops.reshape(ops.stack(each, 1), (batch, len(each), prod(points[1:])))
        for each in (indices, weights)
    )
    channels_of = ops.reshape(x, (batch, channels, plane))
    out = apply(WeightedElements(), (channels_of, index, weight))
    return ops.reshape(out, (batch, channels, *points[1:]))


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Return the grid with which `grid_sample` transforms images by the affine maps theta. theta
    (N, 2, 3) and size (N, C, rows, columns) give (N, rows, columns, 2); theta (N, 3, 4) and size
    (N, C, planes, rows, columns) give (N, planes, rows, columns, 3).

    A point is theta times (column, row, 1), or (column, row, plane, 1), with coordinates from -1 to
    1; `align_corners` is as in `grid_sample`. Raises ShapeError for a theta that does not fit the
    size, and TypeError unless theta is floating.
    """
    check_tensors("affine_grid", theta=theta)
    axes = len(size) - 2
    if axes not in (2, 3) or theta.shape != (size[0], axes, axes + 1):
        raise ShapeError(
            f"affine_grid: theta has shape {theta.shape} for size {tuple(size)}; they must be "
            "(N, 2, 3) for (N, C, rows, columns), or (N, 3, 4) for one more axis"
        )
    if not is_floating(theta.dtype):
        raise TypeError(f"affine_grid: theta is {theta.dtype}, not floating point")
    extents = tuple(size[2:])
    parts = []
    for axis in reversed(range(axes)):
        n = extents[axis]
        line = ops.arange(n, dtype=theta.dtype, device=theta.device)
        scale = max(n - 1, 1) if align_corners else n
        line = (2 * line - (n - 1)) / scale
        line = ops.reshape(line, (n, *(1,) * (axes - axis - 1)))
        parts.append(ops.broadcast_to(line, extents))
    parts.append(ops.broadcast_to(line * 0 + 1, extents))
    points = ops.reshape(ops.stack(parts, -1), (prod(extents), axes + 1))
    grid = ops.matmul(points, ops.transpose(theta))
    return ops.reshape(grid, (size[0], *extents, axes))
