"""Every op: functions over Tensors, and the classes behind them (REGISTRY holds all by name).

An op is found by living in this folder: each file without an underscore in front of its name is
imported, and what it defines is public here: its ops, its functions, and ops that it has made.
Editors and type checkers read the same names in `__init__.pyi`, which `make format` writes.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

from ..op import REGISTRY, Op, register


def _defined(module: ModuleType) -> dict[str, Any]:
    """The public names of a file, with what they stand for."""

    def own(value: Any) -> bool:
        if isinstance(value, Op):
            return type(value).__module__ == module.__name__
        is_code = inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, Op))
        return is_code and value.__module__ == module.__name__

    return {n: v for n, v in vars(module).items() if not n.startswith("_") and own(v)}


_FILES = [file.name for file in pkgutil.iter_modules(__path__) if file.name[0] != "_"]
# All files first: to import one sets its name here, and `softmax` is to be the function.
_NAMES = {file: _defined(importlib.import_module(f"{__name__}.{file}")) for file in _FILES}

for _names in _NAMES.values():
    globals().update(_names)

__all__ = ["REGISTRY", "Op", "register", *(name for names in _NAMES.values() for name in names)]
