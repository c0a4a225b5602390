"""Converters of padding, and of operators that move blocks of pixels to channels or back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_floating
from ...conversion.budget import bounded
from ...conversion.convolutions import Sides, padded
from ...conversion.values import Value, along, known_integers, known_number, normal_axes, tensor
from ...sizes.dims import Expression
from ..graph import Node
from ..registry import converter


@converter("Pad", since=2)
def pad_by_attributes(node: Node, data: Value) -> Tensor:
    return _pad(node, tensor(data), list(node.integers("pads")), node.number("value"))


@converter("Pad", since=11, known=(1, 2, 3))
def pad(
    node: Node, data: Value, pads: Value, value: Value | None = None, axes: Value | None = None
) -> Tensor:
    x = tensor(data)
    widths = list(known_integers(node, pads, "pads"))
    number = 0 if value is None or value.size == 0 else known_number(node, value, "the value")
    if axes is not None:
        over = normal_axes(node, known_integers(node, axes, "the axes"), x.ndim)
        count = len(over)
        if len(widths) != 2 * count:
            raise node.invalid(f"pads has {len(widths)} numbers for {count} axes")
        full = [0] * (2 * x.ndim)
        for i, axis in enumerate(over):
            full[axis], full[x.ndim + axis] = widths[i], widths[count + i]
        widths = full
    return _pad(node, x, widths, number)


def _pad(node: Node, x: Tensor, pads: list[Any], value: Any) -> Tensor:
    if len(pads) != 2 * x.ndim:
        raise node.invalid(f"pads has {len(pads)} numbers for {x.spec}")
    sides: Sides = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    bounded([n + low + high for n, (low, high) in zip(x.shape, sides, strict=True)])
    mode = node.text("mode")
    if mode == "constant":
        if x.dtype == "bool":
            return padded(x, sides, bool(value))
        return padded(x, sides, float(value) if is_floating(x.dtype) else int(value))
    places = {"reflect": _reflected, "edge": _nearest, "wrap": _wrapped}
    if mode not in places:
        raise node.invalid(f"mode {mode!r} is not constant, reflect, edge or wrap")
    for axis, (low, high) in enumerate(sides):
        if any(isinstance(n, Expression) or n for n in (low, high)):
            n = x.shape[axis]
            if any(isinstance(each, Expression) for each in (low, high, n)):
                x = _extended(node, x, axis, low, high, mode)
                continue
            if n == 0:
                raise node.invalid(f"an axis without elements cannot be padded in mode {mode!r}")
            index = places[mode](np.arange(-low, n + high), n)
            x = ops.take(x, Tensor(index, requires_grad=False), axis)
    return x


def _reflected(at: np.ndarray, n: int) -> np.ndarray:
    """Reflect positions outside 0..n - 1 at the ends, as often as needed. The end elements are not
    repeated."""
    if n == 1:
        return np.zeros_like(at)
    folded = np.mod(at, 2 * (n - 1))
    return np.minimum(folded, 2 * (n - 1) - folded)


def _nearest(at: np.ndarray, n: int) -> np.ndarray:
    return np.clip(at, 0, n - 1)


def _wrapped(at: np.ndarray, n: int) -> np.ndarray:
    return np.mod(at, n)


def _extended(node: Node, x: Tensor, axis: int, low: Any, high: Any, mode: str) -> Tensor:
    """Pad x with slices of its own ends, along an axis of symbolic size."""
    if any(isinstance(n, Expression) or n < 0 for n in (low, high)):
        raise node.unsupported(f"widths {low} and {high} along an axis of open size")
    n: Any = x.shape[axis]
    least = n.bounds[0]
    if max(low, high) > least - (mode == "reflect"):
        raise node.unsupported(f"padding {max(low, high)} of an axis that may have {least}")
    if mode == "edge":
        first, last = x[along(axis, slice(0, 1))], x[along(axis, slice(n - 1, n))]
        parts = [first] * low + [x] + [last] * high
    elif mode == "wrap":
        parts = [x[along(axis, slice(n - low, n))], x, x[along(axis, slice(0, high))]]
    else:
        before = x[along(axis, slice(1, low + 1))]
        behind = x[along(axis, slice(n - 1 - high, n - 1))]
        parts = [ops.flip(before, axis), x, ops.flip(behind, axis)]
    kept = parts if mode == "edge" else [p for p, m in zip(parts, (low, 1, high), strict=True) if m]
    return ops.concat(kept, axis)


@converter("CenterCropPad", since=18, known=(1,))
def center_crop_pad(node: Node, data: Value, shape: Value) -> Tensor:
    x = tensor(data)
    asked = known_integers(node, shape, "the shape")
    axes = node.integers("axes") if node.has("axes") else tuple(range(x.ndim))
    sides: Sides = [(0, 0)] * x.ndim
    for axis, n in zip(normal_axes(node, axes, x.ndim), asked, strict=True):
        less = n - x.shape[axis]
        before = less // 2 if less >= 0 else -((-less) // 2)
        sides[axis] = (before, less - before)
    return padded(x, sides)


@converter("DepthToSpace", since=1)
def depth_to_space(node: Node, data: Value) -> Tensor:
    x, size = tensor(data), node.integer("blocksize")
    n, channels, rows, columns = x.shape
    each = channels // (size * size)
    mode = node.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise node.invalid(f"mode {mode!r} is neither DCR nor CRD")
    if mode == "DCR":
        parts = ops.reshape(x, (n, size, size, each, rows, columns))
        moved = ops.permute(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = ops.reshape(x, (n, each, size, size, rows, columns))
        moved = ops.permute(parts, (0, 1, 4, 2, 5, 3))
    return ops.reshape(moved, (n, each, rows * size, columns * size))


@converter("SpaceToDepth", since=1)
def space_to_depth(node: Node, data: Value) -> Tensor:
    x, size = tensor(data), node.integer("blocksize")
    n, channels, rows, columns = x.shape
    parts = ops.reshape(x, (n, channels, rows // size, size, columns // size, size))
    mode = node.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise node.invalid(f"mode {mode!r} is neither DCR nor CRD")
    moved = ops.permute(parts, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return ops.reshape(moved, (n, channels * size * size, rows // size, columns // size))
