"""Extents of shapes: ints, or while tracing expressions of dims (`needle.sizes.dims`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from operator import index as as_int
from typing import Any

from ..errors import TraceError
from .dims import Expression


def is_symbolic(shape: Iterable[Any]) -> bool:
    """Whether an extent of a shape is an expression."""
    return any(isinstance(n, Expression) for n in shape)


def same(a: Any, b: Any) -> bool:
    """Whether two extents or shapes are equal at every size; False where that is not known."""
    try:
        return bool(a == b)
    except TraceError:
        return False


def as_extent(value: Any) -> Any:
    """An expression as it is, anything else as an int; TypeError if it is not one."""
    return value if isinstance(value, Expression) else as_int(value)


def replaced(value: Any, change: Callable[[Expression], Any]) -> Any:
    """`value` with `change(e)` in place of each expression in it: in tuples, also named ones, and
    in the fields of a frozen dataclass such as an op. The same object if there is none."""
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
