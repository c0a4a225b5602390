"""What is a property in needle and a method in the course."""

from __future__ import annotations

from typing import Any


class Flag(int):
    """A truth value that can be called as well: `x.is_compact` and `x.is_compact()`."""

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


def callable_property(old: property) -> property:
    """Return the property with a Flag as its value."""
    read: Any = old.fget
    return property(lambda self: Flag(read(self)), doc=old.__doc__)
