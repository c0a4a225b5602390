"""Run exported models with NumPy, without needle and without TVM's compiler.

import needle_runtime
y = needle_runtime.load("mlp")(x)

The names below load on first use, so that looking at an artifact loads no code.

For those who change this package:

- `artifact` has compiled models on disk. A `Program` is made from an `Artifact` and can always run;
  on a machine that cannot run the code, making it raises TargetError. It loads exactly the bytes
  that were checked.
- `executor` is the loaded code on tensors of its device. The profiler, timing and tests call it
  without conversions.
- `calls` passes arrays that fit to the native module `_native` (`runtime/src/python/caller.cc`),
  which runs no Python between them and the code. `executor` does the same in Python for all other
  arrays, and raises the errors.
- `state` calls a model with state, under a lock: it takes the arrays from their place and writes
  the new values back. A loaded artifact keeps a copy of its state.
- Sizes that are left to the call are read from the inputs' axes and checked against their bounds
  and each other (`artifact.sizes`).
- `_tvm` loads TVM's runtime library and makes each compiled library use needle's threads.
- Errors and commands may quote files. So `text.printable` escapes the characters that a terminal
  would act on, in the text of every error (`errors`) and in all output of commands (`cli`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from needle_runtime.process import turns  # noqa: F401  # hooks forks: not while one waits
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
    with loading:  # a child forked meanwhile would wait forever for the lock of a module
        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
