"""Find the outer values that a function reads: Modules, Tensors, and Python values that affect its
trace.

The search starts at a function's closure and globals. It visits the items of containers, the
functions that are called, and the attributes of objects, classes and modules if the visited code
names them. Each value has links, which check cheaply whether the value is still where it was found.
"""

from __future__ import annotations

import array
import collections
import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..errors import TraceError
from ..nn.module import Link, Module, walk
from . import bytecode, library_code
from .guards import Cell, Contents, Members, Whole, Without, items_of, subject

Surroundings = Mapping[
    str, "tuple[Any, Any]"
]  # by name, a value and the last link on the path to it
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, np.generic)


def found_in(fn: Any, arguments: Mapping[str, Any], values: bool = False) -> Surroundings:
    """Find the values that a call of `fn` with these named `arguments` can read: Modules, Tensors,
    and the values of variables and of its bound object's attributes. Return them with their links,
    by name prefix. A Module `fn` has the empty prefix; an argument or an outer variable has its own
    name as the prefix.

    With `values`, also find the values of Modules' attributes and the contents of arrays. Raises
    TraceError for an array of a library other than NumPy, because changes to it cannot be
    detected."""
    search = _Search(values)
    owner = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    if isinstance(owner, Module):
        search.visit("", owner, None)
    for name, value in arguments.items():
        search.visit(name, value, None, True)
    if not isinstance(fn, Module):
        search.function("", fn, None)
    search.run()
    return search.found


class _Search:
    def __init__(self, values: bool) -> None:
        self.found: dict[str, tuple[Any, Any]] = {}
        self._values = values
        self._names: set[str] = set()  # names that occur in the code
        self._every_name = False
        self._steps: list[tuple[str, Any, Any, bool, bool]] = []
        self._seen: dict[int, str] = {}  # the first path to each value, by id
        self._held: list[Any] = []  # keeps ids from being reused
        self._objects: list[tuple[str, Any, Any, set[str]]] = []

    def visit(
        self, path: str, value: Any, link: Any, named: bool = False, walked: bool = False
    ) -> None:
        """Visit a value later. `named` means that a variable holds it; `walked` means that `walk`
        finds the Modules and Tensors in it."""
        self._steps.append((path, value, link, named, walked))

    def _visit_all(self, steps: Iterable[tuple[Any, ...]]) -> None:
        for step in reversed(list(steps)):
            self.visit(*step)

    def run(self) -> None:
        """Visit all values until the code names nothing new."""
        while True:
            while self._steps:
                self._one(*self._steps.pop())
            known = len(self._names), self._every_name, len(self._objects)
            for path, thing, link, done in list(self._objects):
                self._attributes(path, thing, link, done)
            if not self._steps and known == (
                len(self._names), self._every_name, len(self._objects)
            ):  # fmt: skip
                return

    def _add(self, path: str, value: Any, link: Any) -> None:
        while path in self.found and not _is_same(self.found[path], value, link):
            path += "_"  # another function's variable of the same name
        self.found.setdefault(path, (value, link))

    def _is_new(self, path: str, thing: Any, link: Any) -> bool:
        """Return whether this is the first path to `thing`. Later paths are recorded, because they
        may change."""
        first = self._seen.get(id(thing))
        if first is None:
            self._seen[id(thing)] = path
            self._held.append(thing)
            return True
        self._add(f"{path} as", first, link)
        return False

    def _one(self, path: str, value: Any, link: Any, named: bool, walked: bool) -> None:
        kind = type(value)
        if isinstance(value, (Module, Tensor)):
            if walked:
                return
            self._add(path, value, link)
            if self._values and isinstance(value, Module) and id(value) not in self._seen:
                self._module(path, value, link)
        elif isinstance(value, PLAIN):
            self._add(path, value, link)
        elif isinstance(value, types.ModuleType):
            name = value.__name__
            if not library_code.is_known(name) and not library_code.is_ours(name):
                self._object(path, value, link)
        elif _is_function(value):
            self._add(path, value, link)
            if self._is_new(path, value, link):
                self.function(path, value, link)
        elif isinstance(value, _ARRAYS):
            if self._values:
                self._array(path, value, link)
        elif isinstance(value, _CONTAINERS):
            if named:
                self._add(path, value, link)
            if self._is_new(path, value, link):
                self._container(path, value, link, walked)
                if not library_code.is_told(kind):
                    self._object(path, value, link, is_new=True)
        elif isinstance(value, type):
            self._add(path, value, link)
            if not library_code.is_told(value):
                self._object(path, value, link)
        else:
            if self._values:
                _check_readable(path, value)
            if named or _tells(value):
                self._add(path, value, link)
            else:
                self._add(f"class of {path}", kind, link)
            self._object(path, value, link)

    def _module(self, path: str, module: Module, link: Any) -> None:
        """Visit the attributes of a Module and its submodules, and the values that their code
        reads."""
        for name, item, last in walk(module, link, hidden=True):
            if not isinstance(item, Module):
                continue
            where = f"{path}.{name}".strip(".")
            self._seen[id(item)] = where
            self._held.append(item)
            self._objects.append((where, item, last, set()))
            self._special(where, type(item), last)
            for attribute, value in vars(item).items():
                if attribute == "_hooks":
                    self._visit_all((f"{where}.hook", each.fn, last) for each in value)
                elif not isinstance(value, (Module, Tensor)) and not _is_plain(value):
                    self.visit(f"{where}.{attribute}".strip("."), value, last, False, True)

    def _special(self, path: str, cls: type, link: Any) -> None:
        """Visit the methods of a class that run without being named: `forward` and special
        methods."""
        for base in _classes(cls, False):
            for name, value in vars(base).items():
                special = name.startswith("__") and name not in _NOT_CALLED
                if isinstance(value, types.FunctionType) and (special or name == "forward"):
                    last = Link(vars(base), name, value, link)
                    self.visit(f"{path}.{name}".strip("."), value, last)

    def _array(self, path: str, values: Any, link: Any) -> None:
        if not self._is_new(path, values, link):
            return
        if isinstance(values, np.ndarray) and values.dtype.hasobject:
            self._container(path, values, link, False)
        else:
            contents = Contents(values, link)
            self._add(path, contents, contents)

    def _container(self, path: str, value: Any, link: Any, walked: bool) -> None:
        items = items_of(value)
        last = Whole(value, items, link) if not isinstance(value, tuple) else link
        if not isinstance(value, Mapping):
            if all(isinstance(item, PLAIN) for item in items):
                self._add(f"{path}[:]", items, last)
                return
            pairs: list[tuple[Any, Any]] = list(enumerate(items))
        else:
            pairs = list(value.items())
        self._add(f"keys of {path}", tuple(repr(key) for key, _ in pairs), last)
        self._visit_all((f"{path}.{key}", item, last, False, walked) for key, item in pairs)

    def _object(self, path: str, thing: Any, link: Any, is_new: bool = False) -> None:
        if is_new or self._is_new(path, thing, link):
            self._objects.append((path, thing, link, set()))
            if not isinstance(thing, (type, types.ModuleType)):
                self._special(path, type(thing), link)

    def _attributes(self, path: str, thing: Any, link: Any, done: set[str]) -> None:
        """Visit the attributes that the code names so far."""
        own: Any = getattr(thing, "__dict__", {})
        is_class, is_module = isinstance(thing, type), isinstance(thing, Module)
        spaces = isinstance(thing, (types.ModuleType, types.FunctionType))
        cls: Any = thing if is_class else type(thing)
        classes = () if spaces else _classes(cls, not is_module)
        names = dict.fromkeys(() if is_class else own)
        for base in classes:
            names.update(dict.fromkeys(vars(base)))
        for name in names:
            if name in done or not (self._every_name or name in self._names):
                continue
            done.add(name)
            where, last = f"{path}.{name}".strip("."), link
            if name in own and not is_class:
                # `walk` visits a Module's attributes; an optimizer reports its reads to the trace
                # itself.
                if not is_module and (isinstance(own[name], PLAIN) or not _tells(thing)):
                    self.visit(where, own[name], Link(own, name, own[name], link))
                continue
            if not is_class and not is_module and hasattr(thing, "__dict__"):
                last = Without(own, name, last)
            for base in classes:
                if name in vars(base):
                    self._of_class(where, thing, name, base, last)
                else:
                    last = Without(vars(base), name, last)
        if own and not is_class and not is_module and "all" not in done and not _tells(thing):
            if self._every_name or self._names & _MAY_BE_ABSENT:
                done.add("all")
                self._add(f"names of {path}", tuple(own), Whole(own, items_of(own), link))

    def _of_class(self, path: str, thing: Any, name: str, base: type, link: Any) -> None:
        """Visit the code or the value that a class defines under `name`."""
        value = vars(base)[name]
        is_slot = isinstance(value, types.MemberDescriptorType)
        if library_code.is_told(base):  # the code is not visited, so visit the result
            if isinstance(value, property) and not isinstance(thing, (type, Module)):
                self._computed(path, thing, name, link)
            return
        last = Link(vars(base), name, value, link)
        if is_slot:
            if not isinstance(thing, type):
                self._computed(path, thing, name, link)
        elif isinstance(value, property):
            self.visit(path, value.fget, last)
        elif isinstance(value, (classmethod, staticmethod)):
            self.visit(path, value.__func__, last)
        elif isinstance(value, cached_property):
            self.visit(path, value.func, last)
        else:
            self.visit(path, value, last)

    def _computed(self, path: str, thing: Any, name: str, link: Any) -> None:
        try:
            value = getattr(thing, name)
        except Exception:  # an empty slot, or a property that also fails when the function reads it
            return
        self.visit(path, value, Link(Members(thing), name, value, link))

    def function(self, path: str, fn: Any, link: Any) -> None:
        """Visit the values that a function reads: closure, globals, bound object, defaults,
        imports."""
        while isinstance(fn, partial):
            self._visit_all((f"args.{i}", value, link, True) for i, value in enumerate(fn.args))
            keywords = fn.keywords
            self._visit_all(
                (n, value, Link(keywords, n, value, link), True) for n, value in keywords.items()
            )
            fn = fn.func
        if isinstance(fn, types.MethodType):
            if not isinstance(fn.__self__, Module) or path:
                self.visit("self", fn.__self__, link, True)
            fn = fn.__func__  # before unwrapping, which would lose the bound object
        fn = inspect.unwrap(fn) if callable(fn) else fn
        if not isinstance(fn, types.FunctionType):
            call = inspect.getattr_static(type(fn), "__call__", None)
            if not isinstance(call, types.FunctionType):
                return
            self.visit("self", fn, link, True)
            fn = call
        is_followed = not library_code.is_told(fn)
        steps: list[tuple[Any, ...]] = []
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # an unbound variable
                continue
            if is_followed or isinstance(value, (Module, Tensor)) or _is_function(value):
                steps.append((name, value, Link(Cell(cell), name, value, None), True))
        if is_followed:
            names = fn.__globals__
            read = names_in(fn.__code__)
            self._names |= read.names
            self._every_name |= read.is_dynamic
            variables = dict.fromkeys(read.variables)
            if "globals" in variables:  # globals()["a"]
                variables.update(dict.fromkeys(sorted(read.names)))
            for name in variables:
                if name in names:
                    steps.append((name, names[name], Link(names, name, names[name], None), True))
            for name in read.imports:
                if name in sys.modules:
                    steps.append((name, sys.modules[name], None))
            if path:  # defaults of the traced function itself are arguments
                steps.append((f"defaults of {path}", fn.__defaults__, link))
                steps.append((f"defaults of {path}", fn.__kwdefaults__, link))
            if vars(fn):
                self._objects.append((path, fn, link, set()))
        self._visit_all(steps)


def _tells(thing: Any) -> bool:
    """Return whether an object reports to a trace what its methods read and write
    (`Recorder.array`)."""
    return bool(getattr(type(thing), "tells_traces", False))


@lru_cache(maxsize=1024)
def _classes(cls: type, with_ours: bool) -> tuple[type, ...]:
    """Return the classes in a class's resolution order that are visited; with `with_ours`, also
    needle's."""
    return tuple(
        base
        for base in cls.__mro__
        if not library_code.is_told(base) or (with_ours and library_code.is_ours(base.__module__))
    )


class Read(NamedTuple):
    """The reads of a piece of code: global variables, imported modules, and all names in the code.
    `is_dynamic` code may read attributes of any name."""

    variables: tuple[str, ...]
    imports: tuple[str, ...]
    names: frozenset[str]
    is_dynamic: bool


@lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> Read:
    """Return the reads of a function's `code` and of the code nested in it."""
    variables: dict[str, None] = {}
    imports: dict[str, None] = {}
    names: set[str] = set()
    is_dynamic = False
    for each in bytecode.codes(code):
        names.update(each.co_names, (c for c in each.co_consts if isinstance(c, str)))
        is_dynamic = is_dynamic or bytecode.reads_computed_names(each)
        variables.update(dict.fromkeys(bytecode.variables(each)))
        imports.update(dict.fromkeys(bytecode.imports(each)))
    return Read(tuple(variables), tuple(imports), frozenset(names), is_dynamic)


_MAY_BE_ABSENT = {"getattr", "hasattr", "AttributeError"}
_NOT_CALLED = ("__init__", "__new__", "__repr__", "__str__", "__init_subclass__", "__del__")
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque, types.MappingProxyType)
_OF_ARRAYS = ("__dlpack__", "__array__", "__array_interface__")
_ARRAYS = (np.ndarray, NDArray, bytearray, memoryview, array.array)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(item, PLAIN) for item in value)
    return isinstance(value, PLAIN)


def _is_same(known: tuple[Any, Any], value: Any, link: Any) -> bool:
    """Return whether a known value is this value, found in the same place."""
    before, last = known
    return before is value and (
        isinstance(value, (Module, Tensor))
        or last is link
        or (last and link and subject(last) == subject(link))
    )


def changed_links(found: Surroundings) -> dict[tuple[int, Any], Any]:
    """Return the places in an earlier result of `found_in` (`found`) that have changed since, with
    their links."""
    changed = {}
    for _, link in found.values():
        while link is not None:
            if not link.holds():
                changed[subject(link)] = link
            link = link.before
    return changed


def _is_function(value: Any) -> bool:
    kinds = (types.FunctionType, partial, types.MethodType)
    return isinstance(value, kinds) or "__wrapped__" in getattr(value, "__dict__", ())


def _check_readable(path: str, value: Any) -> None:
    """Raise TraceError for a value whose elements can change undetected."""
    if any(hasattr(type(value), name) for name in _OF_ARRAYS):
        raise TraceError(
            f"tracing: {path} is a {type(value).__module__}.{type(value).__qualname__}, whose "
            "changes would not be seen: pass it as an argument, or make a needle.Tensor of it "
            "outside the function"
        )
