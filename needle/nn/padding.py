"""Padding layers, which extend or cut the last axes of x (N, channels, ...) or (channels, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..autograd.tensor import Tensor
from ..backend_ndarray.arguments import count, finite
from .functional.padding import padded
from .module import Module


class ConstantPad1d(Module):
    """Extend the last axis with elements of `value`. `padding` is one width for both sides, or a
    pair (before, after); a negative width cuts elements off. Raises ValueError for any other number
    of widths.

    >>> nn.ConstantPad1d((1, 2), 7.0)(ndl.zeros(1, 1, 2)).tolist()
    [[[7.0, 0.0, 0.0, 7.0, 7.0]]]
    """

    axes: ClassVar[int] = 1
    mode: ClassVar[str] = "constant"
    value: float | None = None

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__()
        self._set_padding(padding)
        # A float may be infinite or NaN; other numbers must be finite.
        is_float = isinstance(value, float)
        self.value = value if is_float else finite(type(self).__name__, "value", value)

    def _set_padding(self, padding: Any) -> None:
        name, number = type(self).__name__, 2 * self.axes
        widths = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * number
        for width in widths:
            count(name, "padding", width, -(2**31))
        if len(widths) != number:
            raise ValueError(f"{name}: padding {padding!r} is not an int or {number} ints")
        self.padding = widths

    def forward(self, x: Tensor) -> Tensor:
        return padded(type(self).__name__, x, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        value = "" if self.value is None else f", value={self.value}"
        return f"padding={self.padding}{value}"


class ConstantPad2d(ConstantPad1d):
    """Extend the last two axes with elements of `value`. `padding` is one width for all sides, or
    (left, right, top, bottom). Otherwise like ConstantPad1d."""

    axes = 2


class ConstantPad3d(ConstantPad1d):
    """Extend the last three axes with elements of `value`. `padding` is one width for all sides, or
    (left, right, top, bottom, front, back). Otherwise like ConstantPad1d."""

    axes = 3


class ZeroPad1d(ConstantPad1d):
    """Extend the last axis with zeros; `padding` is as in ConstantPad1d."""

    value: float | None = 0.0

    def __init__(self, padding: int | Sequence[int]) -> None:
        Module.__init__(self)
        self._set_padding(padding)

    def extra_repr(self) -> str:
        return f"padding={self.padding}"


class ZeroPad2d(ZeroPad1d):
    """Extend the last two axes with zeros; `padding` is as in ConstantPad2d."""

    axes = 2


class ZeroPad3d(ZeroPad1d):
    """Extend the last three axes with zeros; `padding` is as in ConstantPad3d."""

    axes = 3


class ReflectionPad1d(ZeroPad1d):
    """Extend the last axis with a mirror image of its elements, without the edge itself; `padding`
    is as in ConstantPad1d. Raises ShapeError for a width that is not below the extent."""

    mode = "reflect"
    value = None


class ReflectionPad2d(ReflectionPad1d):
    """Extend the last two axes with mirrored elements; `padding` is as in ConstantPad2d. Otherwise
    like ReflectionPad1d."""

    axes = 2


class ReflectionPad3d(ReflectionPad1d):
    """Extend the last three axes with mirrored elements; `padding` is as in ConstantPad3d.
    Otherwise like ReflectionPad1d."""

    axes = 3


class ReplicationPad1d(ZeroPad1d):
    """Extend the last axis with copies of its edge elements; `padding` is as in ConstantPad1d."""

    mode = "replicate"
    value = None


class ReplicationPad2d(ReplicationPad1d):
    """Extend the last two axes with copies of their edge elements; `padding` is as in
    ConstantPad2d."""

    axes = 2


class ReplicationPad3d(ReplicationPad1d):
    """Extend the last three axes with copies of their edge elements; `padding` is as in
    ConstantPad3d."""

    axes = 3


class CircularPad1d(ZeroPad1d):
    """Extend the last axis with the elements at its other end; `padding` is as in ConstantPad1d.
    Raises ShapeError for a width above the extent."""

    mode = "circular"
    value = None


class CircularPad2d(CircularPad1d):
    """Extend the last two axes with the elements at their other ends; `padding` is as in
    ConstantPad2d. Otherwise like CircularPad1d."""

    axes = 2


class CircularPad3d(CircularPad1d):
    """Extend the last three axes with the elements at their other ends; `padding` is as in
    ConstantPad3d. Otherwise like CircularPad1d."""

    axes = 3
