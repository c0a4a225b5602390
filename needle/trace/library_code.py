"""Recognize code that tracing does not step into: needle, the standard library, installed
packages."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

# Packages that count as installed, whichever folder they are in.
_INSTALLED = ("numpy", "scipy", "torch", "tvm", "tvm_ffi", "ml_dtypes", "needle_tvm")
_LIBRARY = tuple(
    f"{folder}/"
    for folder in (Path(os.__file__).parent, *map(sysconfig.get_path, ("stdlib", "platstdlib")))
)
_MADE_BY_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE, a bit of a type's flags


def is_known(module: Any) -> bool:
    """Return whether `module`, a module's name, belongs to the standard library or to an installed
    package. A user's file may have the name of a library module, and `__main__` is the user's
    program even if an installed package runs it."""
    top = _top(module)
    if top == "__main__":
        return False
    if top in _INSTALLED or top.startswith(("_cython_", "nanobind")):  # native function types
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    if "/site-packages/" in file or "/dist-packages/" in file:
        return True
    return top in sys.stdlib_module_names and (not file or file.startswith(_LIBRARY))


def is_ours(module: Any) -> bool:
    """Return whether `module`, a module's name, belongs to needle."""
    return _top(module) == "needle"


def is_told(thing: type | types.FunctionType) -> bool:
    """Return whether `thing`, a function or class, belongs to needle, the standard library or an
    installed package."""
    module = thing.__module__
    if not (is_known(module) or is_ours(module)):
        return False
    if not isinstance(thing, type) or not thing.__flags__ & _MADE_BY_CLASS:
        return True
    # A class that a library function creates for user code has the library as its `__module__`.
    found: Any = sys.modules.get(module)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is thing


def _top(module: Any) -> str:
    """Return the top-level package of a module's name, or "" if `module` is not a string; a class
    may set `__module__` to anything."""
    return module.partition(".")[0] if isinstance(module, str) else ""
