"""Links record the places where a search has found values, and tell whether a value is still there.

A link's `holder` and `key` name the place; `before` is the previous link on the search's path.
needle.nn.module.Link is the link to a single item.
"""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import numpy as np

from ..backend_ndarray import NDArray


class Whole(NamedTuple):
    """A record of a container's items. `key` has the role of a Link's key."""

    holder: Any
    values: tuple[Any, ...]
    before: Any
    key: Any = "all"

    def holds(self) -> bool:
        """Return whether the container still has the same items (by identity) in the same order."""
        holder, values = self.holder, self.values
        items = items_of(holder)
        return len(items) == len(values) and all(
            [a is b for a, b in zip(items, values, strict=True)]
        )


class Without(NamedTuple):
    """A record that a namespace lacks a name, so that the class's attribute of that name is
    used."""

    holder: Any
    key: Any
    before: Any

    def holds(self) -> bool:
        """Return whether the namespace still lacks the name."""
        return self.key not in self.holder


class Contents:
    """A record of an array's elements. Two records with the same dtype, shape and bytes are
    equal."""

    def __init__(self, values: Any, before: Any = None) -> None:
        self.holder, self.key, self.before = values, "contents", before
        self._state = self._now()

    def _now(self) -> tuple[Any, ...]:
        values = self.holder.numpy() if isinstance(self.holder, NDArray) else self.holder
        if isinstance(values, np.ndarray):
            return str(values.dtype), values.shape, values.tobytes()
        return type(values).__name__, (len(values),), bytes(values)

    def holds(self) -> bool:
        """Return whether the array still has the same elements."""
        return self._state == self._now()

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Contents) and self._state == other._state

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind, shape, _ = self._state
        return f"a {kind} array {shape} of these elements"


class Members:
    """The computed attributes (properties, slots) of an object, as the holder of a Link."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getitem__(self, name: str) -> Any:
        return getattr(self._thing, name, Members)  # the default is never an attribute's value


class Cell:
    """A variable of a closure, as the holder of a Link."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def __getitem__(self, _: str) -> Any:
        return self.cell.cell_contents


def items_of(container: Any) -> tuple[Any, ...]:
    """Return the items of a `container`; for a mapping, the keys and then the values."""
    if isinstance(container, (dict, types.MappingProxyType)):
        return (*container, *container.values())
    return tuple(container.ravel() if isinstance(container, np.ndarray) else container)


def subject(link: Any) -> tuple[int, Any]:
    """Return a key for the place that a `link` guards. All links to the place have the same key
    while the holder lives."""
    holder = link.holder
    return id(holder.cell if isinstance(holder, Cell) else holder), link.key
