"""PyTorch's `pad`, which extends the last axes with a value or with elements of the input, or cuts
them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any

from ... import ops
from ...autograd.tensor import Tensor
from ...errors import ShapeError
from ...ops._arguments import check_tensors
from .border import PADDING_MODES, border

MODES = ("constant", *PADDING_MODES[1:])


def pad(
    x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Return x with its last axes extended. As in PyTorch, `pad` has two widths (before, after) for
    each of these axes, starting with the last axis; `needle.pad` takes a pair for every axis. A
    negative width cuts elements off.

    The new elements are `value` (None: 0). In mode "reflect" they mirror the elements next to the
    edge, in mode "replicate" they are copies of the edge, and in mode "circular" they are the
    elements at the other end. These three modes pad one to three axes of x (N, C, ...) or (C, ...).
    Raises ShapeError for widths that do not fit.

    >>> F.pad(ndl.tensor([[1, 2, 3]]), (1, 2)).tolist()
    [[0, 1, 2, 3, 0, 0]]
    """
    return padded("pad", x, pad, mode, value)


def padded(owner: str, x: Tensor, widths: Any, mode: str, value: float | None) -> Tensor:
    """Run `pad`, with errors that name `owner`."""
    if mode not in MODES:
        raise ValueError(f"{owner}: mode {mode!r} is not one of {', '.join(map(repr, MODES))}")
    check_tensors(owner, x=x)
    numbers = [as_int(n) for n in widths]
    count = len(numbers) // 2
    if len(numbers) % 2 or count > x.ndim:
        raise ShapeError(f"{owner}: {len(numbers)} widths for x {x.shape}; give two for each axis")
    if mode != "constant" and not (1 <= count <= 3 and x.ndim in (count + 1, count + 2)):
        raise ShapeError(
            f"{owner}: mode {mode!r} with {len(numbers)} widths takes x of {count + 1} or "
            f"{count + 2} axes, not of shape {x.shape}"
        )
    if mode != "constant" and value is not None:
        raise ValueError(f"{owner}: value {value} is for mode 'constant', not {mode!r}")
    given = list(zip(numbers[::2], numbers[1::2], strict=True))[::-1]
    sides = [(0, 0)] * (x.ndim - count) + given
    for n, (low, high) in zip(x.shape, sides, strict=True):
        if low + high < 0 and n + low + high < 0:
            raise ShapeError(f"{owner}: an axis of {n} cannot be cut by {-low} and {-high}")
    wider = [(max(low, 0), max(high, 0)) for low, high in sides]
    if mode == "constant":
        return _cut(ops.pad(x, wider, 0 if value is None else value), sides)
    wider = wider[x.ndim - count :]
    if mode == "circular":  # cut first, because the padding comes from the remaining elements
        return border(owner, _cut(x, sides), wider, mode)
    return _cut(border(owner, x, wider, mode), sides)


def _cut(x: Tensor, sides: Sequence[tuple[int, int]]) -> Tensor:
    """At each end of x that has a negative width, cut off -width elements."""
    if all(low >= 0 and high >= 0 for low, high in sides):
        return x
    cuts = [(max(-low, 0), max(-high, 0)) for low, high in sides]
    return x[tuple(slice(b, n - e) for n, (b, e) in zip(x.shape, cuts, strict=True))]
