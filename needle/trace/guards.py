"""Links, the guards of values that a search has found: they tell whether a value is still there.

Each has a `holder` and a `key`, which say what it is about, and the link `before` it, through which
the search came. needle.nn.module.Link is that of one item.
"""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import numpy as np

from ..backend_ndarray import NDArray


class Whole(NamedTuple):
    """A record that a container had these items. `key` is that of a Link."""

    holder: Any
    values: tuple[Any, ...]
    before: Any
    key: Any = "all"

    def holds(self) -> bool:
        """Whether it has the same items, or equal ones of the same identity, in their order."""
        holder, values = self.holder, self.values
        items = items_of(holder)
        return len(items) == len(values) and all(
            [a is b for a, b in zip(items, values, strict=True)]
        )


class Without(NamedTuple):
    """A record that a namespace had no such name: then that of a class counts."""

    holder: Any
    key: Any
    before: Any

    def holds(self) -> bool:
        """Whether it still has none."""
        return self.key not in self.holder


class Contents:
    """The elements of an array as they were: equal to another one with the same dtype, shape and
    bytes."""

    def __init__(self, values: Any, before: Any = None) -> None:
        self.holder, self.key, self.before = values, "contents", before
        self._state = self._now()

    def _now(self) -> tuple[Any, ...]:
        values = self.holder.numpy() if isinstance(self.holder, NDArray) else self.holder
        if isinstance(values, np.ndarray):
            return str(values.dtype), values.shape, values.tobytes()
        return type(values).__name__, (len(values),), bytes(values)

    def holds(self) -> bool:
        """Whether the array has the same elements now."""
        return self._state == self._now()

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Contents) and self._state == other._state

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind, shape, _ = self._state
        return f"a {kind} array {shape} of these elements"


class Members:
    """What an object's class computes of it, as the holder of a Link."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getitem__(self, name: str) -> Any:
        return getattr(self._thing, name, Members)  # which no value is


class Cell:
    """A closure's variable as the holder of a Link."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def __getitem__(self, _: str) -> Any:
        return self.cell.cell_contents


def items_of(container: Any) -> tuple[Any, ...]:
    """The items of a container; the keys of a mapping, and then its values."""
    if isinstance(container, (dict, types.MappingProxyType)):
        return (*container, *container.values())
    return tuple(container.ravel() if isinstance(container, np.ndarray) else container)


def subject(link: Any) -> tuple[int, Any]:
    """What a link is about, the same for all links to it while its holder lives."""
    holder = link.holder
    return id(holder.cell if isinstance(holder, Cell) else holder), link.key
