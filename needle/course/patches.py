"""Reversible changes to attributes of needle's modules and classes."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_ABSENT = object()


class Patches:
    """A record of the changes, in order."""

    def __init__(self) -> None:
        self._set: list[tuple[Any, str, Any]] = []
        self._paths: list[str] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class."""
        self._set.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def add(self, owner: Any, **values: Any) -> None:
        """Set those attributes in `values` that `owner` does not have yet."""
        for name, value in values.items():
            if not hasattr(owner, name):
                self.set(owner, name, value)

    def module(self, path: str, contents: dict[str, Any]) -> ModuleType:
        """Make `path` importable as a module with these contents, and an attribute of its
        parent."""
        module = ModuleType(path, "A path of the course (see needle.course).")
        module.__dict__.update(contents)
        parent, _, name = path.rpartition(".")
        if path not in sys.modules:
            self._paths.append(path)
            sys.modules[path] = module
        self.add(sys.modules[parent], **{name: module})
        return module

    def undo(self) -> None:
        """Undo all changes, the latest first."""
        while self._set:
            owner, name, before = self._set.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        while self._paths:
            sys.modules.pop(self._paths.pop(), None)


PATCHES = Patches()
