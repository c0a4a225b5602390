"""What a piece of code reaches, as a digest: other code gives another one.

A function is its byte code, its defaults, what it closes over and the globals it names; a class its
functions and attributes; a module, where names of it are read, these names; an instance its class
and attributes; all of them as far as they lead. needle's own code, Python's library and the
packages below are not followed: they are keyed by their versions elsewhere, or here.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import pickle
import sys
import types
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

_NEEDLE = str(Path(__file__).parent) + "/"
_BY_VERSION = ("numpy", "scipy", "torch", "tvm", "tvm_ffi", "ml_dtypes", "needle_tvm")
_PLAIN = (type(None), type(Ellipsis), bool, int, float, complex, str, bytes)


def digest(*things: Any) -> tuple[str, list[str]]:
    """SHA-256 of all that `things` reach, and what could not be followed, in words."""
    follower = _Follower()
    for thing in things:
        follower.follow(thing, "")
    return follower.hash.hexdigest(), follower.unknown


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

    def _one(self, thing: Any, where: str) -> None:
        if isinstance(thing, _PLAIN):
            self._add(type(thing).__name__, repr(thing))
            return
        number = self._seen.setdefault(id(thing), len(self._seen))
        if number < len(self._held):
            self._add("again", number)
            return
        self._held.append(thing)
        if isinstance(thing, types.CodeType):
            self._code(thing, where)
        elif isinstance(thing, (list, tuple, set, frozenset)):
            items = sorted(thing, key=repr) if isinstance(thing, (set, frozenset)) else thing
            self._add(type(thing).__name__, len(thing))
            self._next((item, where) for item in items)
        elif isinstance(thing, Mapping) and type(thing).__module__ == "builtins":
            self._add("mapping", len(thing))
            self._next((part, where) for pair in thing.items() for part in pair)
        elif isinstance(thing, np.ndarray) and thing.dtype != object:
            self._add(
                "array", thing.dtype, thing.shape, hashlib.sha256(thing.tobytes()).hexdigest()
            )
        elif isinstance(thing, (np.generic, np.dtype)):
            self._add(type(thing).__name__, repr(thing))
        else:
            self._object(thing, where)

    def _object(self, thing: Any, where: str) -> None:
        wrapped = getattr(thing, "__wrapped__", None)
        if isinstance(thing, (staticmethod, classmethod)):
            self._next([(thing.__func__, where)])
        elif isinstance(thing, property):
            self._add("property")
            self._next((part, where) for part in (thing.fget, thing.fset))
        elif isinstance(thing, types.MethodType):
            self._next([(thing.__func__, where), (thing.__self__, where)])
        elif isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, types.ModuleType):
            self._add("module", thing.__name__, _version(thing.__name__))
        elif isinstance(thing, type):
            self._class(thing)
        elif callable(wrapped):  # functools.cache and its like
            self._next([(wrapped, where)])
        elif isinstance(thing, functools.partial):
            self._next((part, where) for part in (thing.func, thing.args, thing.keywords))
        elif _is_known(type(thing).__module__) or not _has_parts(type(thing)):
            self._native(thing, where)
        else:
            self._instance(thing, where)

    def _native(self, thing: Any, where: str) -> None:
        """What is not written in Python: by its name, or by what a pickle of it holds."""
        name = getattr(thing, "__qualname__", None)
        if name is not None:
            home = getattr(thing, "__module__", None) or getattr(thing, "__objclass__", "")
            self._add("native", home, name, _version(str(home)))
            return
        try:
            self._add("value", hashlib.sha256(pickle.dumps(thing, 5)).hexdigest())
        except Exception:  # a file, a lock, a generator: each type refuses in its own way
            self._add("unknown", type(thing).__qualname__)
            what = f"a {type(thing).__qualname__}"
            self.unknown.append(f"{where}: {what}" if where else what)

    def _function(self, function: types.FunctionType) -> None:
        name, code = function.__qualname__, function.__code__
        if code.co_filename.startswith(_NEEDLE) or _is_known(function.__module__):
            self._add("function", function.__module__, name, _version(function.__module__))
            return
        self._add("function", name)
        values: list[tuple[Any, str]] = [
            (code, name),
            (function.__defaults__, name),
            (function.__kwdefaults__, name),
        ]
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                values.append((cell.cell_contents, f"{variable} in {name}"))
            except ValueError:  # a name that is not bound yet
                self._add("unbound", variable)
        names = list(_names(code))
        for variable in names:
            if variable not in function.__globals__:
                continue  # an attribute, or one of Python's own names
            value = function.__globals__[variable]
            self._add("global", variable)
            values.append((value, f"{variable} in {name}"))
            values += _read_of(value, names, name)
        for module in self._imports(code, function):
            values += [(module, name), *_read_of(module, names, name)]
        self._next(values)

    def _imports(self, code: types.CodeType, function: types.FunctionType) -> list[Any]:
        """The modules that a function imports itself; it would do so anyway."""
        found, constants = [], list[Any]()
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_CONST":
                constants.append(instruction.argval)
            if instruction.opname != "IMPORT_NAME":
                continue
            level = constants[-2] if len(constants) > 1 else 0  # then the names that are imported
            name = "." * (level if isinstance(level, int) else 0) + instruction.argval
            if _is_known(name):
                continue
            try:
                found.append(importlib.import_module(name, function.__globals__.get("__package__")))
            except ImportError:
                self.unknown.append(f"{function.__qualname__}: the module {name!r}")
        return found

    def _code(self, code: types.CodeType, where: str) -> None:
        constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        # Docstrings are constants of the code; line numbers are not in it.
        self._add("code", code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
        self._next((part, where) for part in (*constants, *inner))

    def _class(self, cls: type) -> None:
        self._add("class", cls.__module__, cls.__qualname__)
        if _is_known(cls.__module__) or _is_ours(cls.__module__):
            self._add(_version(cls.__module__))
            return
        self._next((base, cls.__qualname__) for base in cls.__mro__[1:])
        for name, value in sorted(vars(cls).items()):
            if name not in _NOT_READ:
                self._add(name)
                self._steps.append((value, f"{cls.__qualname__}.{name}"))

    def _instance(self, thing: Any, where: str) -> None:
        cls = type(thing)
        if hasattr(thing, "numpy") and hasattr(thing, "dtype"):  # a Tensor or NDArray
            self._next([(np.asarray(thing.numpy()), where)])
            return
        self._add("instance")
        slots = [name for base in cls.__mro__ for name in getattr(base, "__slots__", ())]
        values = dict(getattr(thing, "__dict__", {}))
        values |= {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
        parts = [(cls, where)]
        for name, value in sorted(values.items()):
            parts += [(name, where), (value, f"{where}.{name}" if where else name)]
        self._next(parts)


# Of a class: what says nothing of what its code does.
_NOT_READ = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__"),
    *("__firstlineno__", "__static_attributes__", "__dataclass_fields__", "__dataclass_params__"),
    *("__match_args__", "__abstractmethods__", "_abc_impl", "samples", "error_samples"),
}


def _names(code: types.CodeType) -> Iterable[str]:
    """Every name that a piece of code and those inside it read: globals and attributes."""
    pending, found = [code], dict[str, None]()
    while pending:
        item = pending.pop()
        found |= dict.fromkeys(item.co_names)
        pending += [c for c in item.co_consts if isinstance(c, types.CodeType)]
    return found


def _read_of(module: Any, names: Iterable[str], where: str) -> list[tuple[Any, str]]:
    """What may be read of a module by code with these names; nothing of any other object."""
    if not isinstance(module, types.ModuleType) or _is_known(module.__name__):
        return []
    inside = vars(module)
    return [(inside[n], f"{module.__name__}.{n} in {where}") for n in names if n in inside]


def _has_parts(cls: type) -> bool:
    """Whether what its instances hold can be seen from Python."""
    return any("__dict__" in vars(base) or "__slots__" in vars(base) for base in cls.__mro__)


def _is_known(module: str | None) -> bool:
    """Whether a module's code is told by its name and a version."""
    top = (module or "").partition(".")[0]
    return top in sys.stdlib_module_names or top in _BY_VERSION or top == "builtins"


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "needle"


def _version(module: str | None) -> str:
    """The version of the package that a module is of; Python's for its own library."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names or top == "builtins":
        return sys.version
    try:
        return str(getattr(sys.modules.get(top), "__version__", "")) or metadata.version(top)
    except metadata.PackageNotFoundError:
        return ""
