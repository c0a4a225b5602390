"""Padding of (N, channels, ...) with values of the input itself."""

from __future__ import annotations

from collections.abc import Sequence

from ...autograd.tensor import Tensor
from ...errors import ShapeError
from ...ops import concat, flip


def _span(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    key = (*(slice(None),) * axis, slice(begin, end))
    return x[key]


def _reflect(x: Tensor, axis: int, low: int, high: int) -> list[Tensor]:
    n = x.shape[axis]
    before, behind = _span(x, axis, 1, low + 1), _span(x, axis, n - 1 - high, n - 1)
    return [flip(before, axis), x, flip(behind, axis)]


def _replicate(x: Tensor, axis: int, low: int, high: int) -> list[Tensor]:
    n = x.shape[axis]
    return [_span(x, axis, 0, 1)] * low + [x] + [_span(x, axis, n - 1, n)] * high


def _circular(x: Tensor, axis: int, low: int, high: int) -> list[Tensor]:
    n = x.shape[axis]
    return [_span(x, axis, n - low, n), x, _span(x, axis, 0, high)]


# The function that extends an axis in each mode, and how much shorter than the axis the padding
# must be (None: no limit).
_MODES = {"reflect": (_reflect, 1), "replicate": (_replicate, None), "circular": (_circular, 0)}
PADDING_MODES = ("zeros", *_MODES)


def border(owner: str, x: Tensor, sides: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """Return `x` with its last axes padded by the widths in `sides`, (before, after) for each axis.
    The `mode` "reflect" mirrors the input without its edge, "replicate" repeats the edge, and
    "circular" wraps around. Raises ShapeError if an axis is too short."""
    extend, less = _MODES[mode]
    for axis, (low, high) in enumerate(sides, start=x.ndim - len(sides)):
        if not low and not high:
            continue
        if less is not None and max(low, high) > x.shape[axis] - less:
            raise ShapeError(
                f"{owner}: padding {max(low, high)} in mode {mode!r} is too long for an axis of "
                f"{x.shape[axis]}"
            )
        parts = [part for part in extend(x, axis, low, high) if part.shape[axis]]
        x = concat(parts, axis)
    return x
