"""All ops: functions over Tensors, and the classes behind them (REGISTRY holds these by name).

This package imports every file of its folder whose name does not begin with an underscore, and
exports the op classes, functions and op instances that the file defines. Editors and type checkers
read the same names from `__init__.pyi`, which `make format` writes.

An op is one frozen dataclass. It defines the shapes it accepts, its computation, its gradient and
the values that its gradient reads, its form in TVM's tensor expressions, its NumPy reference, and
the inputs it is tested with. Its rules keep no state. A few ops also have `backward`, a gradient
with its own kernels, which is used when the gradient is neither differentiated nor traced. Many
functions here are composed of ops; only an op has a kernel or a rule of its own.

`Scan`, `WhileLoop` and `Cond` have bodies as attributes: functions of tensors, stored as a list of
ops like a jaxpr (`needle.op.subgraph`). Such an op sets `has_bodies` and has no `emit_te`; the
compiler lowers its bodies instead.

`einsum` and other matrix products are composed of ops, so they compile. NumPy's `einsum_path`
chooses the order, and each contraction of two operands is one matmul (`_contraction`).

The tests run over REGISTRY and name no op.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType, SimpleNamespace
from typing import Any

from ..common.keywords import name_functions
from ..op import REGISTRY, Op, register


def _defined(module: ModuleType) -> dict[str, Any]:
    """Return the public names that a file defines, and their values."""

    def own(value: Any) -> bool:
        if isinstance(value, Op):
            return type(value).__module__ == module.__name__
        is_code = inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, Op))
        return is_code and value.__module__ == module.__name__

    return {n: v for n, v in vars(module).items() if not n.startswith("_") and own(v)}


_FILES = [file.name for file in pkgutil.iter_modules(__path__) if file.name[0] != "_"]
# Import all files first: an import binds the file's name here, and `softmax` must be the function.
_NAMES = {file: _defined(importlib.import_module(f"{__name__}.{file}")) for file in _FILES}

# The same names without keyword checks, for Tensor's methods, which check keywords themselves.
unchecked = SimpleNamespace(**{n: v for names in _NAMES.values() for n, v in names.items()})

for _names in _NAMES.values():
    _names.update(name_functions((n, v) for n, v in _names.items() if inspect.isfunction(v)))
    globals().update(_names)

FUNCTIONS = {n: f for names in _NAMES.values() for n, f in names.items() if inspect.isfunction(f)}

__all__ = [
    "FUNCTIONS",
    "REGISTRY",
    "Op",
    "register",
    *(name for names in _NAMES.values() for name in names),
]
