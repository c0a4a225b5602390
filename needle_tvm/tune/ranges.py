"""The ranges of sizes of a symbolic kernel: each is a task of a search by itself.

What suits one row does not suit many. A kernel's sizes are told apart by their product: one, few,
or many. A task is the kernel with the bounds of one range, so that a rule writes only what the
range needs, and it is judged and measured at sizes in the middle of the range. The search's choices
are put together again in one kernel, which picks by size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.kernels.variants import either
from needle_tvm.tir import nests
from needle_tvm.tir.extents import BOUNDS, UNBOUNDED, bounds_of, substituted, symbols_of

SIZES = "needle.sizes"  # function attribute: the number to measure at, of each of `symbols_of`

_ENDS = (1, 16, None)  # the largest product of sizes in each range; one register tile has up to 16
_STEPS = 64  # of the walk from a range's least sizes to its most


@dataclass(frozen=True)
class Range:
    """A part of the sizes of a kernel: those of a product up to `end`, and in no range before.

    `function` is the kernel with the range's bounds and its SIZES.
    """

    function: PrimFunc
    sizes: tuple[int, ...]
    end: int | None

    def __str__(self) -> str:
        names = [str(symbol.name) for symbol in symbols_of(self.function)]
        return ", ".join(f"{n}={size}" for n, size in zip(names, self.sizes, strict=True))


def ranges(function: PrimFunc) -> list[Range]:
    """The ranges that a kernel has sizes in, from the least; none if it is of one size."""
    if not symbols_of(function):
        return []
    function = _of_arrays(function)
    bounds = [
        (max(1, low), UNBOUNDED if high is None else high)
        for low, high in bounds_of(function).values()
    ]
    found, least = [], 1
    for end in _ENDS:
        within = _narrowed(bounds, least, end or UNBOUNDED ** len(bounds))
        sizes = _middle(within, least, end)
        if sizes is not None:
            narrowed = function.with_attrs({BOUNDS: [list(each) for each in within], SIZES: sizes})
            found.append(Range(narrowed, sizes, end))
        least = (end or 0) + 1
    return found


def _of_arrays(function: PrimFunc) -> PrimFunc:
    """The function with an array of n bytes, which it does not read, for each parameter n: what is
    judged and measured takes arrays alone."""
    parameters = [
        each if tirx.is_buffer_var(each) else tirx.decl_buffer([each], "int8", f"{each.name}_bytes")
        for each in function.params
    ]
    return PrimFunc(parameters, function.body, attrs=function.attrs)


def _narrowed(bounds: Sequence[tuple[int, int]], least: int, most: int) -> list[tuple[int, int]]:
    """Bounds that hold if the product of all sizes is from `least` to `most`."""
    lows, highs = (math.prod(each) for each in zip(*bounds, strict=True))
    return [
        (max(low, -(-least // (highs // high))), min(high, most // (lows // low)))
        for low, high in bounds
    ]


def _middle(
    bounds: Sequence[tuple[int, int]], least: int, end: int | None
) -> tuple[int, ...] | None:
    """Sizes in the middle, by ratio, of those whose product is from `least` to `end`."""
    if any(low > high for low, high in bounds):
        return None
    walk = [
        tuple(round(low * (high / low) ** (step / _STEPS)) for low, high in bounds)
        for step in range(_STEPS + 1)
    ]
    inside = [each for each in walk if least <= math.prod(each) <= (end or math.inf)]
    if not inside:
        return None
    middle = math.sqrt(math.prod(inside[0]) * math.prod(inside[-1]))
    return min(inside, key=lambda each: abs(math.log(math.prod(each) / middle)))


def joined(function: PrimFunc, parts: Sequence[tuple[Range, PrimFunc]]) -> PrimFunc:
    """The kernel that runs, for each range, its schedule; the last one also for larger sizes."""
    product: Any = tirx.const(1, "int64")
    for symbol in symbols_of(function):
        product = product * symbol
    return either(function, [(product <= (part.end or 0), made) for part, made in parts])


def at_sizes(function: PrimFunc) -> PrimFunc:
    """The unscheduled function at its SIZES; itself if it has none."""
    noted = (function.attrs or {}).get(SIZES)
    if noted is None:
        return function
    numbers = [tirx.const(int(size), "int64") for size in noted]
    values: dict[Any, Any] = dict(zip(symbols_of(function), numbers, strict=True))
    parameters = []
    for parameter in function.params:
        shape = [substituted(extent, values) for extent in parameter.shape]
        values[parameter] = tirx.decl_buffer(shape, parameter.dtype, parameter.name)
        parameters.append(values[parameter])
    fixed = PrimFunc(parameters, nests.substitute(function.body, values), attrs=function.attrs)
    return fixed.without_attr(SIZES).without_attr(BOUNDS)
