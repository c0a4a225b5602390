"""What a piece of code reaches, as a digest: other code gives another one.

A function is its byte code, its defaults, what it closes over, its attributes and the globals it
names; a class its functions, attributes, bases and metaclass; an instance its class and what it
holds; all of them as far as they lead. A module is what code reads of it by name; wherever it is
used in another way (handed to `getattr`, kept in a list) all that stands in it. needle's own code,
Python's library and installed packages are not followed: they are keyed by their versions, here or
elsewhere. What those read beside their arguments (files, the time) no digest can hold: it is named.
"""

from __future__ import annotations

import abc
import builtins
import hashlib
import importlib
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import bytecode, contents, outside

_NOTHING = object()


def digest(*things: Any) -> tuple[str, list[str]]:
    """SHA-256 of all that `things` reach, and what could not be followed, in words."""
    follower = _Follower()
    for thing in things:
        follower.follow(thing, "")
    return follower.hash.hexdigest(), list(dict.fromkeys(follower.unknown))


class _Follower:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.unknown: list[str] = []
        self._seen: dict[int, int] = {}  # number of each thing that is under way or done
        self._held: list[Any] = []  # so that no id is used again
        self._steps: list[tuple[Any, str]] = []

    def follow(self, thing: Any, where: str) -> None:
        """Add a thing and what it reaches; without recursion, whatever the depth."""
        self._steps.append((thing, where))
        while self._steps:
            self._one(*self._steps.pop())

    def _add(self, *parts: Any) -> None:
        self.hash.update("\x1f".join(map(str, parts)).encode(errors="surrogatepass") + b"\x1e")

    def _next(self, things: Iterable[tuple[Any, str]]) -> None:
        self._steps += reversed(list(things))

    def _name(self, what: str, where: str) -> None:
        self.unknown.append(f"{where}: {what}" if where else what)

    def _check(self, module: str, name: str, where: str) -> None:
        """Name what does more than its arguments say."""
        what = outside.reads(module, name)
        if what is not None:
            label = f"{module}.{name}".strip(".").removeprefix("builtins.")
            self._name(f"{label} {what}", where)

    def _one(self, thing: Any, where: str) -> None:
        kind = type(thing)
        if kind in contents.PLAIN:
            self._add(kind.__name__, repr(thing))
            return
        number = self._seen.setdefault(id(thing), len(self._seen))
        if number < len(self._held):
            self._add("again", number)
            return
        self._held.append(thing)
        if isinstance(thing, types.CodeType):
            self._code(thing, where)
        elif kind is dict and ("__builtins__" in thing or "__spec__" in thing):
            self._namespace(thing, where)
        elif (
            kind.__module__ in ("builtins", "functools")
            and (parts := contents.parts(thing)) is not None
        ):
            self._add(kind.__name__, len(parts))
            self._next((part, where) for part in parts)
        elif (
            isinstance(thing, np.ndarray)
            and not thing.dtype.hasobject
            and outside.is_known(kind.__module__)
        ):
            content = hashlib.sha256(thing.tobytes()).hexdigest()
            self._add("array", thing.dtype, thing.shape, content)
        elif isinstance(thing, np.generic) and outside.is_known(kind.__module__):
            self._add(kind.__name__, repr(thing))
        elif isinstance(thing, types.MethodType):
            self._next([(thing.__func__, where), (thing.__self__, where)])
        elif isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, types.ModuleType):
            self._module(thing, where)
        elif issubclass(kind, type):
            self._class(thing, where)
        elif outside.is_known(kind.__module__) or not contents.has_parts(kind):
            self._native(thing, where)
        else:
            self._instance(thing, where)

    def _native(self, thing: Any, where: str) -> None:
        """What is not written in Python: by its name, or by what a pickle of it holds."""
        module, name = outside.home(thing)
        self._check(module, name, where)
        is_named = inspect.getattr_static(thing, "__qualname__", None) is not None
        if is_named and not isinstance(thing, (types.GeneratorType, types.CoroutineType)):
            self._add("native", module, name, outside.version(module))
            if getattr(thing, "__module__", None) is None:  # a method of what it is bound to
                owner = getattr(thing, "__self__", None)
                self._next([] if type(owner).__name__ == "PyCapsule" else [(owner, where)])
            return
        pickler = contents.Pickler(thing)
        try:
            pickler.dump(thing)
            self._add("value", hashlib.sha256(pickler.file.getvalue()).hexdigest())
        except Exception:  # a file, a lock, a generator: each type refuses in its own way
            self._add("unknown", type(thing).__qualname__)
            self._name(f"a {type(thing).__qualname__}", where)
        self._next((part, where) for part in pickler.found)

    def _module(self, module: types.ModuleType, where: str) -> None:
        self._add("module", module.__name__, outside.version(module.__name__))
        if outside.is_known(module.__name__) or outside.is_ours(module.__name__):
            self._check(module.__name__, "", where)
            return
        self._next([(type(module), where), (vars(module), module.__name__)])

    def _namespace(self, values: dict[str, Any], where: str) -> None:
        """All that stands in a module. What it merely imports is read where it is used."""
        self._add("namespace")
        parts = []
        for name, value in sorted(values.items()):
            if name.startswith("__") and name.endswith("__") and name != "__getattr__":
                continue
            self._add(name)
            if outside.is_import(value):
                self._add(*outside.home(value))
            else:
                parts.append((value, f"{where}.{name}"))
        self._next(parts)

    def _function(self, function: types.FunctionType) -> None:
        name, code = function.__qualname__, function.__code__
        home = str(function.__globals__.get("__name__"))  # __module__ is what wraps() made it
        cells = _cells(function)
        if outside.is_known(home) or outside.is_ours(home):
            self._add("function", home, code.co_name, name, outside.version(home))
            self._check(home, code.co_name, name)
            registered = vars(function).get("registry")  # functools.singledispatch
            handed = [value for value in cells.values() if callable(value)]  # what it wraps
            self._next([(part, name) for part in (*handed, registered)])
            return
        self._add("function", name)
        values: list[tuple[Any, str]] = [
            (code, name),
            (function.__defaults__, name),
            (function.__kwdefaults__, name),
            (getattr(function, "__annotate__", None) or function.__annotations__, name),
            *((vars(function)[key], f"{name}.{key}") for key in sorted(vars(function))),
        ]
        for variable, value in cells.items():
            self._add("cell", variable)
            if not isinstance(value, types.ModuleType):  # of which some names are read
                values.append((value, f"{variable} in {name}"))
        self._next([*values, *self._reads(function, cells)])

    def _reads(self, function: types.FunctionType, cells: dict[str, Any]) -> list[tuple[Any, str]]:
        """What the names in a function stand for: globals, imports, and attributes of modules."""
        name, found, bound = function.__qualname__, list[tuple[Any, str]](), dict(cells)
        imported = _NOTHING
        for code in bytecode.codes(function.__code__):
            owner, before = _NOTHING, ""  # a module or class that an attribute may be read of next
            for step, item in bytecode.steps(code):
                if step == "attribute":
                    owner = self._attribute(owner, item, name, found)
                elif step == "from":
                    self._submodule(function, imported, item)
                    owner = self._attribute(imported, item, name, found)
                elif step == "swap" and before == "from":  # import a.b.c as d
                    imported, owner = owner, _NOTHING
                elif step == "store" and before in ("import", "from"):
                    bound[item], owner = owner, _NOTHING
                else:
                    if isinstance(owner, types.ModuleType):  # used as it is
                        found.append((owner, name))
                    owner = _NOTHING
                    if step == "import":
                        imported = owner = self._import(function, *item)
                    elif step in ("global", "local", "name"):
                        owner = self._variable(function, item, bound, step, found)
                before = step
        return found

    def _variable(
        self,
        function: types.FunctionType,
        variable: str,
        bound: dict[str, Any],
        step: str,
        found: list[tuple[Any, str]],
    ) -> Any:
        """Add what a variable stands for; modules and classes are also what it gives."""
        name, world = function.__qualname__, function.__globals__
        if step != "global" and variable in bound:  # added where it was bound
            value = bound[variable]
        elif step != "local" and variable in world:
            value = world[variable]
            self._add("global", variable)
            if not isinstance(value, types.ModuleType):  # of which some names are read
                found.append((value, f"{variable} in {name}"))
        else:
            if step != "local" and variable == "globals":
                found.append((world, str(world.get("__name__"))))
            elif step != "local":
                self._attribute(builtins, variable, name, found)
            return _NOTHING
        return value if isinstance(value, (types.ModuleType, type)) else _NOTHING

    def _attribute(
        self, owner: Any, attribute: str, where: str, found: list[tuple[Any, str]]
    ) -> Any:
        """Add what is read of a module or class; a module or class there is also what it gives."""
        is_own = isinstance(owner, types.ModuleType) and attribute in vars(owner)
        if (what := outside.attribute_reads(attribute)) and (not is_own or attribute[0] == "_"):
            self._name(f"{attribute} {what}", where)
        if not isinstance(owner, (types.ModuleType, type)):
            return _NOTHING
        value = inspect.getattr_static(owner, attribute, _NOTHING)
        is_module = isinstance(owner, types.ModuleType)
        home = owner.__name__ if is_module else owner.__module__
        if outside.is_known(home) or outside.is_ours(home):
            label = attribute if is_module else f"{owner.__qualname__}.{attribute}"
            self._check(home, label, where)
            if value is not _NOTHING and not outside.is_told(value):  # put there by others
                found.append((value, f"{label} in {where}"))
        elif is_module:
            if attribute not in vars(owner):  # __dict__, or what its __getattr__ makes
                found.append((owner, where))
                return _NOTHING
            self._add("attribute", home, attribute)
            if not isinstance(value, types.ModuleType):
                found.append((value, f"{home}.{attribute} in {where}"))
        return value if isinstance(value, (types.ModuleType, type)) else _NOTHING

    def _import(self, function: types.FunctionType, name: str, level: int, some: bool) -> Any:
        """The module that a function imports itself; it would do so anyway.

        That of a.b.c is a unless `some` names are taken from it.
        """
        top = name.partition(".")[0]
        if not level and top in outside.BY_VERSION and name not in sys.modules:
            return types.ModuleType(name if some else top)  # slow to import; its names are enough
        package = function.__globals__.get("__package__")
        try:
            module = importlib.import_module("." * level + name, package)
        except ModuleNotFoundError as error:
            self._add("absent", error.name)
            return _NOTHING
        except Exception as error:  # whatever a module raises as it runs
            self._name(f"the module {name!r} ({type(error).__name__})", function.__qualname__)
            return _NOTHING
        return module if some or level else sys.modules[top]

    def _submodule(self, function: types.FunctionType, package: Any, name: str) -> None:
        """`from package import name` imports a module of this name, unless there is another."""
        inside = vars(package) if isinstance(package, types.ModuleType) else {}
        if "__path__" in inside and name not in inside and "__getattr__" not in inside:
            self._import(function, f"{package.__name__}.{name}", 0, True)

    def _code(self, code: types.CodeType, where: str) -> None:
        constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        # Docstrings are constants of the code; line numbers are not in it.
        self._add("code", code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        self._add(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._add(code.co_cellvars, getattr(code, "co_exceptiontable", b"").hex())
        inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
        self._next((part, where) for part in (*constants, *inner))

    def _class(self, cls: type, where: str) -> None:
        self._add("class", cls.__module__, cls.__qualname__)
        if outside.is_told(cls):
            self._add(outside.version(cls.__module__))
            self._check(cls.__module__, cls.__qualname__, where)
            return
        self._next((base, cls.__qualname__) for base in (type(cls), *cls.__mro__[1:]))
        if "_abc_impl" in vars(cls):
            registered, *_ = abc._get_dump(cls)  # type: ignore[attr-defined]
            self._add(*sorted(str(outside.home(other())) for other in registered))
        not_read = _NOT_READ | (_SAMPLES if any(_is_op(base) for base in cls.__mro__) else set())
        for name, value in sorted(vars(cls).items()):
            if name not in not_read:
                self._add(name)
                self._steps.append((value, f"{cls.__qualname__}.{name}"))

    def _instance(self, thing: Any, where: str) -> None:
        cls = type(thing)
        if outside.is_ours(cls.__module__) and hasattr(cls, "numpy"):  # a Tensor or NDArray
            self._next([(np.asarray(thing.numpy()), where)])
            return
        self._add("instance")
        parts: list[tuple[Any, str]] = [(cls, where)]
        try:
            parts += [(part, where) for part in contents.of_base(thing)]
        except Exception as error:  # each type refuses in its own way
            self._name(f"a {cls.__qualname__} ({type(error).__name__}: {error})", where)
        for name, value in sorted(contents.attributes(thing).items()):
            parts += [(name, where), (value, f"{where}.{name}" if where else name)]
        self._next(parts)


# Of a class: what says nothing of what its code does, or is only there once it was asked for.
_NOT_READ = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__"),
    *("__firstlineno__", "__static_attributes__", "__dataclass_params__", "__slotnames__"),
    *("__match_args__", "__abstractmethods__", "_abc_impl", "__annotations_cache__"),
}
_SAMPLES = {"samples", "error_samples"}  # of an op


def _is_op(cls: type) -> bool:
    return outside.is_ours(cls.__module__) and "error_samples" in vars(cls)


def _cells(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
    return found
