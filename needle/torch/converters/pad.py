"""Converters of padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, along, tensor
from ...nn.functional.border import border
from ..operands import Number
from ..program import Node
from ..registry import converter

Pairs = list[tuple[Any, Any]]


def pairs(pad: tuple[Any, ...], ndim: int) -> Pairs:
    """Convert PyTorch's widths `pad`, last axis first, to a (low, high) pair for each of `ndim`
    axes."""
    found = [*zip(pad[::2], pad[1::2], strict=True)][::-1]
    return [(0, 0)] * (ndim - len(found)) + found


def cropped(x: Tensor, sides: Pairs) -> tuple[Tensor, Pairs]:
    """Crop `x` by the negative widths of `sides`. Return the rest, and the widths with 0 in place
    of the negative ones."""
    rest = []
    for axis, (low, high) in enumerate(sides):
        n = x.shape[axis]
        if low < 0 or high < 0:
            x = ops.slice(x, along(axis, slice(max(-low, 0), n - max(-high, 0))))
        rest.append((max(low, 0), max(high, 0)))
    return x, rest


@converter("aten.constant_pad_nd")
def constant_pad(node: Node, x: Value, pad: tuple[Any, ...], value: Number = 0) -> Tensor:
    found = tensor(x)
    found, sides = cropped(found, pairs(pad, found.ndim))
    if found.dtype == "bool":
        value = bool(value)
    elif found.dtype.startswith(("int", "uint")):
        value = int(value)
    return ops.pad(found, sides, value) if any(map(any, sides)) else found


@converter("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
def reflection_pad(node: Node, x: Value, pad: tuple[Any, ...]) -> Tensor:
    return _bordered(x, pad, "reflect")


@converter("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def replication_pad(node: Node, x: Value, pad: tuple[Any, ...]) -> Tensor:
    return _bordered(x, pad, "replicate")


@converter("aten._pad_circular")
def circular_pad(node: Node, x: Value, pad: tuple[Any, ...]) -> Tensor:
    return _bordered(x, pad, "circular")


def _bordered(x: Value, pad: tuple[Any, ...], mode: str) -> Tensor:
    result = tensor(x)
    sides = pairs(pad, result.ndim)
    count = len(pad) // 2
    if mode != "circular" and min(pad) < 0:  # cropped elements may be repeated on the other side
        for axis, (low, high) in enumerate(sides[-count:], result.ndim - count):
            n = result.shape[axis]
            at = np.arange(-low, n + high)
            at = np.clip(at, 0, n - 1) if mode == "replicate" else _reflected(at, n)
            result = ops.take(result, Tensor(at, requires_grad=False), axis)
        return result
    result, sides = cropped(result, sides)
    return border("pad", result, sides[-count:], mode)


def _reflected(at: np.ndarray, n: int) -> np.ndarray:
    """Reflect positions beyond an axis of extent n at its ends."""
    at = np.abs(at)
    return np.where(at >= n, 2 * (n - 1) - at, at)
