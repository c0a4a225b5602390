"""Helpers for the converters of window operators: numbers per axis, missing batch axes, and windows
that divide an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from .. import ops
from ..autograd.tensor import Tensor
from ..conversion.values import along, size_tensor
from ..nn.functional.pool import first_largest
from ..sizes.extents import is_symbolic

Made = TypeVar("Made", Tensor, tuple[Tensor, Tensor])


def each_axis(given: Any, count: int) -> tuple[Any, ...]:
    """Return an argument with a number for each of `count` axes. A single number applies to all
    axes."""
    found = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return found * count if len(found) == 1 else found


def batched(x: Tensor, count: int, function: Callable[[Tensor], Made]) -> Made:
    """Apply a `function` to `x` (N, C and `count` more axes), which may lack the batch axis N."""
    if x.ndim != count + 1:
        return function(x)
    made = function(ops.unsqueeze(x, 0))
    if isinstance(made, tuple):
        return ops.squeeze(made[0], 0), ops.squeeze(made[1], 0)
    return ops.squeeze(made, 0)


def equal_parts(extents: Sequence[Any], sizes: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the kernel of windows that divide axes evenly. Return None if `sizes` do not divide
    `extents`, or if dims leave an extent open."""
    if is_symbolic(extents) or is_symbolic(sizes):
        return None
    if any(not m or n % m or not n for n, m in zip(extents, sizes, strict=True)):
        return None
    return tuple(n // m for n, m in zip(extents, sizes, strict=True))


class Parts(NamedTuple):
    """Windows that divide an axis: their first positions (size,), the length of the longest window,
    and the lengths (size,)."""

    first: Tensor
    longest: Any
    lengths: Tensor

    @classmethod
    def dividing(cls, extent: Any, size: Any) -> Parts:
        """Divide an axis of `extent` into `size` windows. Window i goes from floor(i extent / size)
        to ceil((i + 1) extent / size)."""
        number, whole = ops.arange(size, dtype="int64"), size_tensor(extent)
        first = ops.floor_divide(ops.multiply(number, whole), size_tensor(size))
        after = ops.multiply(ops.add_scalar(number, 1), whole)
        ends = ops.floor_divide(ops.add(after, size_tensor(size - 1)), size_tensor(size))
        longest = (
            (extent + size - 1) // size + 1
            if is_symbolic((extent, size))
            else (
                max(
                    (-(-(i + 1) * extent // size) - i * extent // size for i in range(size)),
                    default=0,
                )
            )
        )
        return cls(first, longest, ops.subtract(ends, first))


def gathered(x: Tensor, parts: Sequence[Parts]) -> tuple[Tensor, Tensor, Tensor]:
    """Return all windows of `x` (N, C, ...) as (N, C, size, longest, size, longest, ...), a mask of
    the elements that belong to their window, and the elements' positions in the flattened image.
    The mask broadcasts to the windows. `parts` are the windows of each axis."""
    inside: Any = None
    flat: Any = None
    extents = x.shape[2:]
    for number, (first, longest, lengths) in enumerate(parts):
        step = ops.arange(longest, dtype="int64")
        last = size_tensor(extents[number] - 1)
        places = ops.minimum(ops.add(ops.unsqueeze(first, 1), step), last)
        x = x[along(2 + 2 * number, places)]
        shape = (*places.shape, *(1,) * (2 * (len(parts) - 1 - number)))
        own = ops.reshape(ops.less(step, ops.unsqueeze(lengths, 1)), shape)
        places = ops.reshape(places, shape)
        if number:
            inside = ops.logical_and(inside, own)
            flat = ops.add(ops.multiply(flat, size_tensor(extents[number])), places)
        else:
            inside, flat = own, places
    return x, inside, ops.broadcast_to(ops.unsqueeze(flat, (0, 1)), x.shape)


def chosen_of(seen: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest elements of `seen` along the last axis, and their `places`. Of several
    equal elements, the first is chosen; of several NaN, the last."""
    chosen = ops.unsqueeze(first_largest(seen, -1), -1)
    values, found = (ops.gather(each, -1, chosen) for each in (seen, places))
    return ops.squeeze(values, -1), ops.squeeze(found, -1)
