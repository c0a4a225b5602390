"""Extents of shapes: ints, or expressions of dims while tracing (`needle.sizes.dims`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from operator import index as as_int
from typing import Any

from ..errors import TraceError
from .dims import Dim, Expression
from .elements import OpenElements

Shape = Iterable[Any]


def is_symbolic(shape: Iterable[Any]) -> bool:
    """Return whether an extent of a shape is an expression."""
    return any(isinstance(n, Expression) for n in shape)


def same(a: Any, b: Any) -> bool:
    """Return whether two extents or shapes are equal at every size; False if that is unknown."""
    try:
        return bool(a == b)
    except TraceError:
        return False


def as_extent(value: Any) -> Any:
    """Return an expression unchanged, another value as an int. Raises TypeError for other types."""
    if isinstance(value, OpenElements):
        return value.number
    return value if isinstance(value, Expression) else as_int(value)


def line_of(extent: Any) -> tuple[Dim, int, int] | None:
    """Return (dim, factor, added) if the extent is `factor * dim + added` with a factor above 0,
    else None."""
    if not isinstance(extent, Expression) or len(extent.dims) != 1:
        return None
    (dim,) = extent.dims
    added = extent.value({dim: 0})
    factor = extent.value({dim: 1}) - added
    return (dim, factor, added) if factor > 0 and same(extent, factor * dim + added) else None


def sizes_in(declared: Iterable[Shape], shapes: Iterable[Shape]) -> dict[Dim, Any]:
    """Return the size in `shapes` of each dim that by itself is an extent of a declared shape. If
    axes of the same dim differ in size, the first one counts."""
    found: dict[Dim, Any] = {}
    for extents, sizes in zip(declared, shapes, strict=True):
        for extent, size in zip(extents, sizes, strict=False):
            if isinstance(extent, Dim):
                found.setdefault(extent, size)
    return found


def at_sizes(value: Any, sizes: Mapping[Dim, Any]) -> Any:
    """Return `value` with each dim replaced by its size. `value` may be anything that `replaced`
    accepts."""
    return replaced(value, lambda extent: extent.value(sizes))


def replaced(value: Any, change: Callable[[Expression], Any]) -> Any:
    """Return `value` with `change(e)` in place of each expression e in it. This covers tuples,
    named tuples, and the fields of a frozen dataclass such as an op. Without any expression, the
    result is `value` itself."""
    if isinstance(value, Expression):
        return change(value)
    if isinstance(value, tuple):
        parts = [replaced(part, change) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        new = {name: replaced(field, change) for name, field in fields.items()}
        if all(new[name] is field for name, field in fields.items()):
            return value
        return dataclasses.replace(value, **new)
    return value
