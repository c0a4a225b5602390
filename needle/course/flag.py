"""Attributes that are properties in needle and methods in the course."""

from __future__ import annotations

from typing import Any


class Flag(int):
    """A truth value that can also be called: `x.is_compact` and `x.is_compact()`."""

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


def callable_property(old: property) -> property:
    """Return a property whose value is that of `old` as a Flag."""
    read: Any = old.fget
    return property(lambda self: Flag(read(self)), doc=old.__doc__)
