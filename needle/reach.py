"""A digest of everything that a piece of code reaches; different code gives a different digest.

The digest recursively covers a function's byte code, defaults, closure, attributes and the globals
that it names; a class's functions, attributes, bases and metaclass; an instance's class and
contents. It covers those names of a module that code reads, or the whole module if code uses it in
another way (passes it to `getattr`, keeps it in a list). needle's own code, Python's library and
installed packages are not followed: their versions are keyed, here or elsewhere. If those read more
than their arguments (files, the time), no digest can cover it; it is reported instead.
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
    """SHA-256 of everything that `things` reach, and descriptions of what could not be followed."""
    follower = _Follower()
    for thing in things:
        follower.follow(thing, "")
    return follower.hash.hexdigest(), list(dict.fromkeys(follower.unknown))


class _Follower:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.unknown: list[str] = []
        self._seen: dict[int, int] = {}  # by id, the number of each object that was visited
        self._held: list[Any] = []  # keeps ids from being reused
        self._steps: list[tuple[Any, str]] = []

    def follow(self, thing: Any, where: str) -> None:
        """Add an object and everything it reaches, without recursion at any depth."""
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
        """Report an object that reads more than its arguments."""
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
        """Add a native object by its name, or by the contents of its pickle."""
        module, name = outside.home(thing)
        self._check(module, name, where)
        is_named = inspect.getattr_static(thing, "__qualname__", None) is not None
        if is_named and not isinstance(thing, (types.GeneratorType, types.CoroutineType)):
            self._add("native", module, name, outside.version(module))
            if getattr(thing, "__module__", None) is None:  # a method of the object it is bound to
                owner = getattr(thing, "__self__", None)
                self._next([] if type(owner).__name__ == "PyCapsule" else [(owner, where)])
            return
        pickler = contents.Pickler(thing)
        try:
            pickler.dump(thing)
            self._add("value", hashlib.sha256(pickler.file.getvalue()).hexdigest())
        except Exception:  # files, locks, generators: each type raises its own error
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
        """Add everything defined in a module; imported names are added where they are used."""
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
        home = str(function.__globals__.get("__name__"))  # wraps() overwrites __module__
        cells = _cells(function)
        if outside.is_known(home) or outside.is_ours(home):
            self._add("function", home, code.co_name, name, outside.version(home))
            self._check(home, code.co_name, name)
            registered = vars(function).get("registry")  # functools.singledispatch
            handed = [value for value in cells.values() if callable(value)]  # the wrapped functions
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
        """The values of the names in a function: globals, imports, and attributes of modules."""
        name, found, bound = function.__qualname__, list[tuple[Any, str]](), dict(cells)
        imported = _NOTHING
        for code in bytecode.codes(function.__code__):
            owner, before = _NOTHING, ""  # a module or class whose attribute may be read next
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
                    if isinstance(owner, types.ModuleType):  # the module itself is used
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
        """Add the value of a variable; return it if it is a module or class."""
        name, world = function.__qualname__, function.__globals__
        if step != "global" and variable in bound:  # it was added where it was bound
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
        """Add an attribute of a module or class; return it if it is a module or class itself."""
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
            if value is not _NOTHING and not outside.is_told(value):  # put there by other code
                found.append((value, f"{label} in {where}"))
        elif is_module:
            if attribute not in vars(owner):  # __dict__, or made by its __getattr__
                found.append((owner, where))
                return _NOTHING
            self._add("attribute", home, attribute)
            if not isinstance(value, types.ModuleType):
                found.append((value, f"{home}.{attribute} in {where}"))
        return value if isinstance(value, (types.ModuleType, type)) else _NOTHING

    def _import(self, function: types.FunctionType, name: str, level: int, some: bool) -> Any:
        """Import a module as the function would, and return it.

        For a.b.c that is a, unless the function imports `some` names from it.
        """
        top = name.partition(".")[0]
        if not level and top in outside.BY_VERSION and name not in sys.modules:
            return types.ModuleType(name if some else top)  # slow to import, and its names suffice
        package = function.__globals__.get("__package__")
        try:
            module = importlib.import_module("." * level + name, package)
        except ModuleNotFoundError as error:
            self._add("absent", error.name)
            return _NOTHING
        except Exception as error:  # importing a module may raise anything
            self._name(f"the module {name!r} ({type(error).__name__})", function.__qualname__)
            return _NOTHING
        return module if some or level else sys.modules[top]

    def _submodule(self, function: types.FunctionType, package: Any, name: str) -> None:
        """Import what `from package import name` imports if the package has no such attribute."""
        inside = vars(package) if isinstance(package, types.ModuleType) else {}
        if "__path__" in inside and name not in inside and "__getattr__" not in inside:
            self._import(function, f"{package.__name__}.{name}", 0, True)

    def _code(self, code: types.CodeType, where: str) -> None:
        constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        # Docstrings count as constants of the code; line numbers do not count.
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
        except Exception as error:  # each type raises its own error
            self._name(f"a {cls.__qualname__} ({type(error).__name__}: {error})", where)
        for name, value in sorted(contents.attributes(thing).items()):
            parts += [(name, where), (value, f"{where}.{name}" if where else name)]
        self._next(parts)


# Attributes of a class that do not determine what its code does, or that appear only on use.
_NOT_READ = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__"),
    *("__firstlineno__", "__static_attributes__", "__dataclass_params__", "__slotnames__"),
    *("__match_args__", "__abstractmethods__", "_abc_impl", "__annotations_cache__"),
}
_SAMPLES = {"samples", "error_samples"}  # an op's


def _is_op(cls: type) -> bool:
    return outside.is_ours(cls.__module__) and "error_samples" in vars(cls)


def _cells(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # an unbound name
            continue
    return found
