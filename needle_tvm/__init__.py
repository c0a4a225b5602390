"""Compile needle models with Apache TVM: translate, fuse, schedule, tune, verify, export, run.

The names below load on first use, so commands and programs that only read artifacts import neither
needle nor TVM's compiler. `needle_runtime` runs exported models.

For developers of this package:

The folders are the stages of the compiler. docs/architecture.md lists them and says which folders
each of them may import. Errors and commands may quote text from files and other machines, so
`needle_runtime.text.printable` escapes the characters that a terminal would act on, in the text of
every error and in all output of commands.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from needle_runtime.errors import NeedleTVMError
    from needle_tvm.compiler.compiler import compile, load
    from needle_tvm.compiler.executable import Executable
    from needle_tvm.compiler.jit import jit
    from needle_tvm.compiler.onnx_models import compile_onnx
    from needle_tvm.compiler.torch_models import compile_torch
    from needle_tvm.errors import MismatchError

_HOMES = {
    "Executable": "needle_tvm.compiler.executable",
    "MismatchError": "needle_tvm.errors",
    "NeedleTVMError": "needle_tvm.errors",
    "compile": "needle_tvm.compiler.compiler",
    "compile_onnx": "needle_tvm.compiler.onnx_models",
    "compile_torch": "needle_tvm.compiler.torch_models",
    "jit": "needle_tvm.compiler.jit",
    "load": "needle_tvm.compiler.compiler",
}

__all__ = [
    "Executable",
    "MismatchError",
    "NeedleTVMError",
    "compile",
    "compile_onnx",
    "compile_torch",
    "jit",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("errors", "runtime"):
        return importlib.import_module(f"needle_tvm.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'needle_tvm' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
