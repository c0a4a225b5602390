"""Dims of a random program: drawing them, extents that depend on them, and sizes to test."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from needle.sizes.dims import Dim, Expression, bounds_of
from needle.sizes.extents import same

_NAME = re.compile(r"\bn\d+\b")  # a dim's name in a step's text
_LEAST = (1, 1, 1, 2, 3, 8)
_LARGEST = (13, 16, 17, 24, 33, 64, 65)
_LARGEST_OF_LARGE = (300, 1000, 4099)
_MULTIPLES = (1, 1, 1, 1, 1, 2, 4, 8)
# Primes, and tile sizes with their neighbours.
_TELLING = (1, 2, 3, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 23, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97)
_CHANCES = (0.3, 0.5, 1.0)  # chances that an extent depends on a dim
_COUNTS = (1, 2, 2, 3, 4)  # the largest number of dims of a program
_EXPRESSIONS: tuple[Callable[[int], int], ...] = (
    lambda n: 2 * n, lambda n: n + 1, lambda n: n // 2, lambda n: n - 1, lambda n: 3 * n + 2,
)  # fmt: skip
_MIXED = 3  # number of tested assignments with sizes between the bounds


@dataclass(frozen=True)
class Size:
    """A dim of a program, and its size in the example."""

    name: str
    min: int
    max: int
    multiple_of: int
    example: int

    @property
    def dim(self) -> Dim:
        return Dim(self.name, min=self.min, max=self.max, multiple_of=self.multiple_of)

    def declaration(self) -> str:
        """Return the Python expression of the dim."""
        facts = f"min={self.min}, max={self.max}, multiple_of={self.multiple_of}"
        return f"ndl.Dim({self.name!r}, {facts})"


class Extent(int):
    """An extent that depends on dims. Its int value is the size in the example; it prints as the
    expression.

    Arithmetic keeps both. Extents are equal if they are equal at every size; `<` compares numbers.
    """

    expression: Expression

    def __eq__(self, other: object) -> bool:
        return same(self.expression, _expression(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        text = repr(self.expression)
        return text if isinstance(self.expression, Dim) else f"({text})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return str(self)


def extent(number: int, expression: Any) -> int:
    """Return an Extent, or `number` if the expression is a number."""
    if not isinstance(expression, Expression):
        return number
    made = Extent(number)
    made.expression = expression
    return made


def _expression(value: Any) -> Any:
    return value.expression if isinstance(value, Extent) else value


def _both(apply: Callable[..., Any], turned: bool) -> Callable[[Any, Any], Any]:
    def method(self: Extent, other: Any) -> Any:
        pair = (other, self) if turned else (self, other)
        return extent(apply(*map(int, pair)), apply(*map(_expression, pair)))

    return method


for _operator in ("add", "sub", "mul", "floordiv", "mod"):
    for _turned, _prefix in ((False, "__"), (True, "__r")):
        setattr(
            Extent, f"{_prefix}{_operator}__", _both(getattr(operator, _operator), turned=_turned)
        )


def least(n: int) -> int:
    """Return the smallest value that an extent can have."""
    return n if not isinstance(n, Extent) else bounds_of(n.expression)[0]


def most(n: int) -> int:
    """Return the largest value that an extent can have."""
    return n if not isinstance(n, Extent) else bounds_of(n.expression)[1]


class Dims:
    """The dims of a program under construction."""

    def __init__(self, rng: random.Random, is_large: bool) -> None:
        self._rng = rng
        self._largest = _LARGEST_OF_LARGE if is_large else _LARGEST
        self._chance = rng.choice(_CHANCES)
        self._most = rng.choice(_COUNTS)
        self.sizes: list[Size] = []

    @property
    def numbers(self) -> dict[str, int]:
        """The sizes in the example, by name."""
        return {size.name: size.example for size in self.sizes}

    @property
    def symbols(self) -> dict[str, Dim]:
        """The dims, by name."""
        return {size.name: size.dim for size in self.sizes}

    def whole(self, name: str) -> int:
        """Return the extent that equals this dim."""
        return extent(self.numbers[name], self.symbols[name])

    def extent(self) -> int | None:
        """Return, at random, a new dim, an existing one, an expression of one, or None."""
        rng = self._rng
        if rng.random() >= self._chance:
            return None
        if len(self.sizes) < self._most and (not self.sizes or rng.random() < 0.4):
            self._add()
        if not self.sizes:
            return None
        whole = self.whole(rng.choice(self.sizes).name)
        if rng.random() < 0.75:
            return whole
        drawn = rng.choice(_EXPRESSIONS)(whole)
        return drawn if least(drawn) > 0 else whole

    def _add(self) -> None:
        """Add a dim whose size in the example is above 3 and differs from all others."""
        rng = self._rng
        low, high, multiple = rng.choice(_LEAST), rng.choice(self._largest), rng.choice(_MULTIPLES)
        taken = set(self.numbers.values())
        free = [n for n in range(max(4, low), min(high, 24) + 1) if n % multiple == 0]
        free = [n for n in free if n not in taken]
        if free:
            size = Size(f"n{len(self.sizes)}", low, high, multiple, rng.choice(free))
            self.sizes.append(size)


def names_in(texts: Iterable[Any]) -> set[str]:
    """Return the names of the dims that texts and extents mention."""
    return {name for text in texts for name in _NAME.findall(str(text))}


def tested(sizes: Sequence[Size]) -> list[dict[str, int]]:
    """Return the sizes at which a program is tested besides the example: all smallest sizes, all
    largest sizes, and some in between. The names and bounds of the dims determine them."""
    rng = random.Random(repr(sizes))
    found: list[dict[str, int]] = []
    picks: list[Callable[[list[int]], int]] = [min, max, *[rng.choice] * _MIXED]
    for pick in picks:
        one = {size.name: pick(_allowed(size)) for size in sizes}
        if one not in found:
            found.append(one)
    return found


def _allowed(size: Size) -> list[int]:
    dim = size.dim
    every = range(dim.min, dim.max + 1, dim.multiple_of)
    return sorted({dim.min, dim.max, *(n for n in _TELLING if n in every)})
