"""Contents of the objects that code reaches: parts, attributes, and the state of native objects."""

from __future__ import annotations

import functools
import io
import pickle
import re
import types
from collections.abc import Iterator
from typing import Any

from . import outside

PLAIN = (type(None), type(Ellipsis), bool, int, float, complex, str, bytes)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PROXY = types.MappingProxyType
_CACHED = type(functools.cache(lambda: None))
# Objects that a pickle stores by name, or refuses.
_NAMED = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type),
    *(property, staticmethod, classmethod, functools.partial, functools.cached_property, _CACHED),
)


def parts(thing: Any) -> list[Any] | None:
    """The contents of an object's built-in part, or None if that has none."""
    if isinstance(thing, (set, frozenset)):
        return sorted(thing, key=lambda item: _ADDRESS.sub("", repr(item)))
    if isinstance(thing, (dict, _PROXY)):
        return [part for pair in thing.items() for part in pair]
    if isinstance(thing, (list, tuple)):
        return list(thing)
    if isinstance(thing, (staticmethod, classmethod)):
        return [thing.__func__]
    if isinstance(thing, property):
        return [thing.fget, thing.fset, thing.fdel]
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, functools.cached_property):
        return [thing.func]
    if isinstance(thing, _CACHED):
        return [thing.__wrapped__, dict(vars(thing))]
    if isinstance(thing, BaseException):
        return [*thing.args]
    for kind in PLAIN[2:]:
        if isinstance(thing, kind):
            return [kind.__repr__(thing)]
    return None


def of_base(thing: Any) -> list[Any]:
    """The state of a user class's instance that belongs to a base class which is not followed.

    Raises whatever that class raises if it does not give its state.
    """
    found = parts(thing)
    base: Any = type(thing)
    while not outside.is_known(base.__module__):
        base = base.__base__
    if found is not None or base is object:
        return found or []
    reduced: Any = base.__reduce_ex__(thing, 4)  # constructor, its arguments, and the state
    return [*map(_listed, reduced[1:])]


def attributes(thing: Any) -> dict[str, Any]:
    """An instance's attributes, including slots, read without running code of its class."""
    found = dict(_got(object.__getattribute__, thing, "__dict__") or {})
    for base in type(thing).__mro__:
        for slot in vars(base).values():
            if isinstance(slot, types.MemberDescriptorType) and slot.__objclass__ is base:
                found[slot.__name__] = _got(slot.__get__, thing)
    return found


def _listed(state: Any) -> Any:
    return list(state) if isinstance(state, Iterator) else state


def _got(get: Any, *args: Any) -> Any:
    try:
        return get(*args)
    except AttributeError:  # an unset slot, or an object without attributes
        return None


def has_parts(cls: type) -> bool:
    """Whether Python can see the contents of the class's instances."""
    return any("__dict__" in vars(base) or "__slots__" in vars(base) for base in cls.__mro__)


class Pickler(pickle.Pickler):
    """Pickles native objects, and collects the Python objects in them, which are followed."""

    def __init__(self, top: Any) -> None:
        self.file, self.found, self._top = io.BytesIO(), list[Any](), top
        super().__init__(self.file, 5)

    def persistent_id(self, thing: Any) -> int | None:
        cls = type(thing)
        is_data = outside.is_known(cls.__module__) and not isinstance(thing, (*_NAMED, _PROXY))
        if thing is self._top or is_data:
            return None
        self.found.append(thing)
        return len(self.found)
