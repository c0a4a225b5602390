"""Run exported models with NumPy, without needle and without TVM's compiler.

import needle_runtime
y = needle_runtime.load("mlp")(x)

The names below load on first use, so that inspecting an artifact loads no code.

For developers of this package:

- `artifact` handles compiled models on disk. A `Program` is created from an `Artifact` and can
  always run; on a machine that cannot run the code, creating it raises TargetError. It loads
  exactly the bytes that were checked.
- `executor` runs the loaded code on tensors of its device. The profiler, timing and tests call it
  without conversions.
- `calls` passes arrays that need no conversion to the native module `_native`
  (`runtime/src/python/caller.cc`), which calls the code without running Python. `executor` does
  this in Python for all other arrays, and raises the errors.
- `state` calls a model with state, under a lock: it passes the stored arrays and then stores the
  new values. A loaded artifact keeps a copy of its state.
- Sizes that are left to the call are read from the inputs' axes and checked against their bounds
  and each other (`artifact.sizes`).
- `_tvm` loads TVM's runtime library and makes each compiled library use needle's threads.
- `bundle` writes a folder for programs in C and C++, whose runtime is `runtime/src/capi`.
- Errors and commands may quote files. So `text.printable` escapes the characters that a terminal
  would interpret, in the text of every error (`errors`) and in all output of commands (`cli`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from needle_runtime.process import turns  # noqa: F401  # makes forks wait for turns
from needle_runtime.process.forks import loading

if TYPE_CHECKING:
    from needle_runtime.artifact.files import read_arrays
    from needle_runtime.program import Program, load, load_with_params
    from needle_runtime.self_testing import self_test

_HOMES = {
    "Program": "needle_runtime.program",
    "load": "needle_runtime.program",
    "load_with_params": "needle_runtime.program",
    "read_arrays": "needle_runtime.artifact.files",
    "self_test": "needle_runtime.self_testing",
}

__all__ = ["Program", "load", "load_with_params", "read_arrays", "self_test"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'needle_runtime' has no attribute {name!r}")
    with loading:  # a child forked during the import would wait forever for the import lock
        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
