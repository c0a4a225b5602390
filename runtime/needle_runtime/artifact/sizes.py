"""Sizes that are left to the call: a compiled function's dims, and the extents that depend on them.

An extent in a manifest is an int or text, such as "2 * n + 1": ints and dims with + - * // and
parentheses, where // rounds down. This module uses only the standard library.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from needle_runtime.errors import InputError

_LONGEST = 1000  # the maximum length of an extent's text, in characters
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Dim:
    """A named size: it may be any multiple of `multiple_of` from `min` to `max`."""

    name: str
    min: int
    max: int
    multiple_of: int

    def __str__(self) -> str:
        if self.min == self.max:
            return f"{self.name} is {self.min}"
        every = "" if self.multiple_of == 1 else f"a multiple of {self.multiple_of} "
        return f"{self.name} is {every}from {self.min} to {self.max}"

    def allows(self, size: int) -> bool:
        """Return whether this dim may have this size."""
        return self.min <= size <= self.max and size % self.multiple_of == 0

    @property
    def between(self) -> int:
        """A size from `min` to `max`: if possible an odd multiple of `multiple_of`, so that it does
        not fill whole tiles."""
        least, most = self.min // self.multiple_of, self.max // self.multiple_of
        return min((least + most) // 2 | 1, most) * self.multiple_of


class Extent:
    """An extent that depends on dims. Extents are equal if their texts are equal. Raises
    ValueError for invalid text."""

    def __init__(self, text: str, dims: Sequence[str]) -> None:
        self.text = text
        try:
            tree = ast.parse(text[: _LONGEST + 1], mode="eval").body
        except (SyntaxError, MemoryError, RecursionError):
            raise ValueError(f"extent {text[:40]!r}") from None
        if len(text) > _LONGEST:
            raise ValueError(f"extent {text[:40]!r}...")
        self._value = _function(tree, dims)
        nodes = list(ast.walk(tree))
        self.names = frozenset(node.id for node in nodes if isinstance(node, ast.Name))
        if not self.names:
            raise ValueError(f"extent {text!r}")
        self._divides = any(isinstance(node, ast.FloorDiv) for node in nodes)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the extent for these sizes of the dims."""
        return self._value(sizes)

    def linear(self, dims: Sequence[Dim]) -> tuple[int, int, int] | None:
        """Return (i, factor, added) if the extent is always factor * size of dims[i] + added, with
        a factor above 0; None if it has another form."""
        used = [i for i, dim in enumerate(dims) if dim.name in self.names]
        if self._divides or len(used) != 1:
            return None
        (i,) = used
        # A polynomial in one variable that agrees with a line at more points than its degree is
        # that line.
        places = range(2 + self.text.count(dims[i].name))
        values = [self._value({dims[i].name: place}) for place in places]
        factor, added = values[1] - values[0], values[0]
        if factor < 1 or any(v != factor * x + added for x, v in zip(places, values, strict=True)):
            return None
        return i, factor, added

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extent) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


Shape = tuple[int | Extent, ...]


def _function(tree: ast.expr, dims: Sequence[str]) -> Callable[[Mapping[str, int]], int]:
    match tree:
        case ast.Constant(value=int(number)):
            return lambda sizes: number
        case ast.Name(id=name) if name in dims:
            return lambda sizes: sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _function(operand, dims)
            return lambda sizes: -inner(sizes)
        case ast.BinOp(left=a, op=sign, right=b) if type(sign) in _OPERATORS:
            left, apply, right = _function(a, dims), _OPERATORS[type(sign)], _function(b, dims)
            return lambda sizes: apply(left(sizes), right(sizes))
    raise ValueError("extent")


def shape_at(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return `shape` with every extent evaluated at these `sizes`."""
    return tuple(each.at(sizes) if isinstance(each, Extent) else each for each in shape)


def may_be(shape: Sequence[int], wanted: Shape) -> bool:
    """Return whether `shape` may be the `wanted` one; extents that depend on dims may have any
    value."""
    return len(shape) == len(wanted) and all(
        isinstance(b, Extent) or a == b for a, b in zip(shape, wanted, strict=True)
    )


@dataclass(frozen=True)
class _Axis:
    """An axis of an input whose extent depends on dims."""

    input: int
    axis: int
    extent: Extent
    name: str  # of the input


class Sizes:
    """Finds the sizes of dims in the shapes of a call's inputs.

    A dim is found from an axis whose extent is the dim or, if there is none, from an axis whose
    extent is factor * dim + added. Raises ValueError if there is neither.
    """

    def __init__(self, dims: Sequence[Dim], inputs: Sequence[tuple[str, Shape]]) -> None:
        self.dims = tuple(dims)
        self._axes = [
            _Axis(number, axis, extent, name)
            for number, (name, shape) in enumerate(inputs)
            for axis, extent in enumerate(shape)
            if isinstance(extent, Extent)
        ]
        sources: dict[int, tuple[_Axis, int, int]] = {}
        for each in self._axes:
            line = each.extent.linear(dims)
            if line is not None:
                number, factor, added = line
                is_whole = (factor, added) == (1, 0)
                if number not in sources or (is_whole and sources[number][1:] != (1, 0)):
                    sources[number] = each, factor, added
        if len(sources) < len(dims):
            raise ValueError("dims")
        self._first = [(dim, *sources[number]) for number, dim in enumerate(dims)]

    def of(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the size of each dim, from the inputs' shapes, which must pass `may_be`.

        Raises InputError for a size that a dim does not allow, and for two inputs that disagree.
        """
        sizes = {}
        for dim, at, factor, added in self._first:
            extent = int(shapes[at.input][at.axis])
            size, rest = divmod(extent - added, factor)
            sizes[dim.name] = size
            if rest or not dim.allows(size):
                whole = at.extent.text == dim.name
                rule = str(dim) if whole else f"{at.extent} is expected and {dim}"
                raise InputError(
                    f"input {at.name!r} has {extent} along axis {at.axis}, where {rule}"
                )
        for each in self._axes:
            size, wanted = shapes[each.input][each.axis], each.extent.at(sizes)
            if size != wanted:
                raise self._differs(each, size, wanted, sizes)
        return sizes

    def _differs(self, each: _Axis, size: int, wanted: int, sizes: Mapping[str, int]) -> InputError:
        by = ", ".join(
            f"{dim.name} = {sizes[dim.name]} from input {at.name!r}, axis {at.axis}"
            for dim, at, *_ in self._first
            if dim.name in each.extent.names
        )
        is_dim = each.extent.text in sizes
        what = each.extent.text if is_dim else f"{each.extent.text} = {wanted}"
        return InputError(
            f"input {each.name!r} has {size} along axis {each.axis}, where {what} is expected"
            f" ({by})"
        )


def parse_dims(entries: Any) -> tuple[Dim, ...]:
    """Return the dims that an entry of a manifest lists. Raises ValueError, KeyError or TypeError
    for a malformed entry."""
    dims = []
    for entry in entries:
        name, *facts = (entry[key] for key in ("name", "min", "max", "multiple_of"))
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError("name of a dim")
        if not all(type(fact) is int and fact >= 1 for fact in facts) or facts[0] > facts[1]:
            raise ValueError(f"dim {name}")
        dims.append(Dim(name, *facts))
    if len({dim.name for dim in dims}) < len(dims):
        raise ValueError("names of dims")
    return tuple(dims)


def parse_shape(entry: Any, dims: Sequence[Dim]) -> Shape:
    """Return the shape in an entry of a manifest. Raises ValueError for a malformed entry."""
    shape = parse_extents(entry, dims)
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        raise ValueError("shape")
    return shape


def parse_extents(entry: Any, dims: Sequence[Dim]) -> Shape:
    """Return the ints (which may be negative) and extents that an entry of a manifest lists."""
    names = [dim.name for dim in dims]
    found: list[int | Extent] = []
    if not isinstance(entry, list):
        raise ValueError("extents")
    for each in entry:
        if type(each) is not int and not isinstance(each, str):
            raise ValueError("extent")
        found.append(each if isinstance(each, int) else Extent(each, names))
    return tuple(found)
