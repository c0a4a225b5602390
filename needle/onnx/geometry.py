"""Windows of convolutions and pools: the kernel, stride, dilation and padding of each axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..conversion.budget import bounded
from ..conversion.convolutions import Sides
from .graph import Node


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows over the axes after batch and channels. Each field has one entry per axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Sides

    @property
    def spans(self) -> tuple[int, ...]:
        """The number of elements from a window's first to its last."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def windows(node: Node, extents: Sequence[Any], kernel: Sequence[int] | None = None) -> Windows:
    """Return the windows that the attributes of a `node` describe over axes of these `extents`.
    `kernel` is the kernel of the weight, if there is one. Raises ModelError for attributes that do
    not fit."""
    count = len(extents)
    if node.has("kernel_shape"):
        given = node.integers("kernel_shape")
        if kernel is not None and tuple(kernel) != given:
            raise node.invalid(f"kernel_shape is {given}, but the weight's is {tuple(kernel)}")
        kernel = given
    if kernel is None:
        raise node.invalid("the attribute 'kernel_shape' is missing")
    sizes = tuple(kernel)
    strides, dilations = of_axes(node, "strides", count), of_axes(node, "dilations", count)
    if len(sizes) != count or min((*sizes, *strides, *dilations), default=1) < 1:
        raise node.invalid(
            f"kernel {sizes}, strides {strides} and dilations {dilations} are not 1 or more for "
            f"each of {count} axes"
        )
    spans = [(k - 1) * d + 1 for k, d in zip(sizes, dilations, strict=True)]
    sides = _pads(node, extents, spans, strides)
    bounded([n + low + high for n, (low, high) in zip(extents, sides, strict=True)])
    return Windows(sizes, strides, dilations, sides)


def of_axes(node: Node, name: str, count: int, default: int = 1) -> tuple[int, ...]:
    """Return the attribute `name` of a `node`, which has a number for each of `count` axes.
    If the attribute is missing, each number is `default`. Raises ModelError for another count of
    numbers."""
    found = node.integers(name, (default,) * count)
    if len(found) != count:
        raise node.invalid(f"{name} is {found}, not a number for each of {count} axes")
    return found


def explicit_pads(node: Node, count: int) -> Sides:
    """Return the attribute `pads` of a `node` as (low, high) pairs for `count` axes. Raises
    ModelError for another count of numbers."""
    found = node.integers("pads", (0,) * (2 * count))
    if len(found) != 2 * count:
        raise node.invalid(f"pads is {found}, not two numbers for each of {count} axes")
    return list(zip(found[:count], found[count:], strict=True))


def _pads(
    node: Node, extents: Sequence[Any], spans: Sequence[int], strides: Sequence[int]
) -> Sides:
    auto = node.text("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return explicit_pads(node, len(extents))
    if auto == "VALID":
        return [(0, 0)] * len(extents)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.invalid(f"auto_pad {auto!r} is unknown")
    sides: Sides = []
    for extent, span, stride in zip(extents, spans, strides, strict=True):
        total = span - 1 if stride == 1 else (-(-extent // stride) - 1) * stride + span - extent
        total = total if total > 0 else 0
        less, more = total // 2, total - total // 2
        sides.append((less, more) if auto == "SAME_UPPER" else (more, less))
    return sides
