"""Spec, the description of a value before it is computed, and the rules for shapes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any, NamedTuple

from ..backend_ndarray import Device
from ..errors import ShapeError, TraceError
from ..sizes.extents import as_extent

Shape = tuple[int, ...]  # in a trace with dims it may also have expressions
Axes = int | Sequence[int] | None


class Spec(NamedTuple):
    """Shape, dtype name and device of one array; device None means any."""

    shape: Shape
    dtype: str
    device: Device | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def as_shape(name: str, shape: Any, open_extent: bool = False) -> Shape:
    """Return `shape` (an int, a sequence of ints, or a sequence whose only item is such a sequence)
    as a tuple of ints >= 0; expressions in dims stay expressions.

    With `open_extent`, -1 is allowed. Raises TypeError or ShapeError for anything else.
    """
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    if len(items) == 1 and isinstance(items[0], (tuple, list)):
        items = items[0]
    try:
        out = tuple([n if type(n) is int else as_extent(n) for n in items])
    except TypeError:
        raise TypeError(f"{name}: shape {shape!r} must be made of integers") from None
    if any(n < 0 and not (open_extent and n == -1) for n in out):
        raise ShapeError(f"{name}: shape {out} has a negative extent")
    if any(n >= 2**63 for n in out):
        raise ShapeError(f"{name}: shape {out} has an extent beyond 2**63 - 1")
    return out


def as_axes(name: str, axes: Axes) -> int | tuple[int, ...] | None:
    """Return `axes` in the hashable form of op attributes: None, an int, or a tuple of ints."""
    try:
        if axes is None:
            return None
        if isinstance(axes, (tuple, list)):
            return tuple(as_int(a) for a in axes)
        return as_int(axes)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: axes {axes!r} must be None, an int or ints") from None


def normalize_axis(name: str, axis: int, ndim: int) -> int:
    """Return `axis` counted from the front. Raises ShapeError if it is out of range."""
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{name}: axis {axis} is out of range for {ndim} dimensions")
    return axis % ndim


def normalize_axes(name: str, axes: Axes, ndim: int) -> tuple[int, ...]:
    """Return `axes` (None: all) counted from the front. Raises ShapeError if an axis is repeated or
    out of range."""
    if axes is None:
        return tuple(range(ndim))
    named = axes if isinstance(axes, (tuple, list)) else (axes,)
    out = tuple(normalize_axis(name, a, ndim) for a in named)
    if len(set(out)) != len(out):
        raise ShapeError(f"{name}: axes {tuple(named)} name an axis twice")
    return out


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """Return the common shape by NumPy's rule: from the last axis back, extents are equal or 1."""
    first = shapes[0]
    try:
        if all(shape == first for shape in shapes):
            return first
    except TraceError:  # extents that dims leave open
        pass
    ndim = max(map(len, shapes))
    out = [1] * ndim
    for shape in shapes:
        lead = ndim - len(shape)
        for i, n in enumerate(shape, lead):
            if is_one(out[i]):  # n may be an expression, and 1 one of its values
                out[i] = n
            elif not is_one(n) and n != out[i]:
                listed = " and ".join(str(s) for s in shapes)
                raise ShapeError(
                    f"{name}: shapes {listed} do not broadcast: extents {out[i]} and {n} at axis "
                    f"{i - ndim} differ and neither is 1"
                )
    return tuple(out)


def is_one(n: Any) -> bool:
    """Return whether an extent is the number 1. False for an expression, even if it may be 1 at
    some size."""
    return type(n) is int and n == 1


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return `shape` with the extents of `axes` (normalized) set to 1 or removed."""
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def common_device(name: str, *specs: Spec) -> Device | None:
    """Return the device of all specs. Raises ValueError if they differ."""
    device = specs[0].device
    for spec in specs[1:]:
        if spec.device is not device and spec.device is not None:
            if device is not None:
                raise ValueError(
                    f"{name}: inputs are on different devices: {device} and {spec.device}"
                )
            device = spec.device
    return device
