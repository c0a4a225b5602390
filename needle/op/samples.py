"""Descriptions of example inputs of ops; `needle.testing` draws their values.

An op lists `samples` (inputs that it must compute correctly) and `error_samples` (inputs for which
it must raise an error). They are plain data, so importing needle draws no random numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Arg:
    """One array whose elements are distinct and drawn uniformly from [low, high).

    A `dtype` of None means the dtype under test. Integers are drawn from the same range. If
    `special`, values outside the range are valid too: NaN, infinities, negative zero, and the least
    and the largest integers. It is False for inputs such as indices.
    """

    shape: Shape
    low: float = -2.0
    high: float = 2.0
    dtype: str | None = None
    special: bool = True


@dataclasses.dataclass(frozen=True)
class Sample:
    """Attributes and inputs of an op; an input that is a list stands for a tuple of arrays.

    `gradient` is False if central differences cannot check it: the op rounds, or stops gradients.
    """

    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gradient: bool = True


@dataclasses.dataclass(frozen=True)
class ErrorSample:
    """Inputs that must raise `error` with a message matching the regular expression `match`."""

    inputs: tuple[Any, ...]
    error: type[Exception]
    match: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


SHAPES: tuple[Shape, ...] = ((), (1,), (7,), (3, 4), (2, 3, 5), (0, 3))
PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()),
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((2, 1, 5), (3, 1)),
    ((), (2, 3)),
    ((0, 3), (1, 3)),
)


def sample(*inputs: Any, **attributes: Any) -> Sample:
    """Return a sample whose inputs are shapes or Args."""
    return Sample(tuple(_arg(x) for x in inputs), attributes)


def error(kind: type[Exception], match: str, /, *inputs: Any, **attributes: Any) -> ErrorSample:
    """Return an error sample whose inputs are shapes or Args."""
    return ErrorSample(tuple(_arg(x) for x in inputs), kind, match, attributes)


def unary(
    low: float = -2.0,
    high: float = 2.0,
    shapes: Sequence[Shape] = SHAPES,
    gradient: bool = True,
    **attributes: Any,
) -> tuple[Sample, ...]:
    """Return one-input samples over the usual shapes."""
    return tuple(Sample((Arg(shape, low, high),), attributes, gradient) for shape in shapes)


def binary(
    low: float = -2.0, high: float = 2.0, low2: float | None = None, high2: float | None = None
) -> tuple[Sample, ...]:
    """Return two-input samples over broadcasting pairs; low2 and high2 bound the second input."""
    second = (low if low2 is None else low2, high if high2 is None else high2)
    return tuple(sample(Arg(a, low, high), Arg(b, *second)) for a, b in PAIRS)


def _arg(x: Any) -> Any:
    if isinstance(x, list):
        return [_arg(item) for item in x]
    return Arg(x) if isinstance(x, tuple) else x
