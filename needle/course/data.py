"""The course's `next(loader)` for a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..data import DataLoader
from .patches import Patches

_needle_iter: Any = DataLoader.__iter__


def _iter(self: Any) -> Iterator[Any]:
    """Begin a pass over the data; `next(loader)` continues it."""
    self._course_pass = _needle_iter(self)
    begun: Iterator[Any] = self._course_pass
    return begun


def _next(self: Any) -> Any:
    """Return the next batch of the current pass, or the first batch of a new pass if there is none.
    Raises StopIteration at the end of a pass; the next call begins a new pass."""
    if getattr(self, "_course_pass", None) is None:
        iter(self)
    try:
        return next(self._course_pass)
    except StopIteration:
        self._course_pass = None
        raise


def install(patches: Patches) -> None:
    """Add `next(loader)`."""
    patches.set(DataLoader, "__iter__", _iter)
    patches.set(DataLoader, "__next__", _next)
