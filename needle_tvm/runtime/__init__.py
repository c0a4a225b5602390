"""Run an exported model with NumPy, without needle and without TVM's compiler.

import needle_tvm.runtime
y = needle_tvm.runtime.load("mlp")(x)

For those who change this package:

- A `Program` is made from an `Artifact` and can always run; on a machine that cannot run the code,
  making it raises TargetError. It needs only NumPy, tvm-ffi and TVM's runtime library, and loads
  exactly the bytes that were checked.
- `executor` is the loaded code on tensors of its device. The profiler, timing and tests call it
  without conversions.
- `calls` passes arrays that fit to the native module `_native` (`src/runtime/caller.cc`), which
  runs no Python between them and the code. `executor` does the same in Python for all other arrays,
  and raises the errors.
- `state` calls a model with state, under a lock: it takes the arrays from their place and writes
  the new values back. A loaded artifact keeps a copy of its state.
- Sizes that are left to the call are read from the inputs' axes and checked against their bounds
  and each other (`artifact.sizes`).
"""

from needle_tvm.artifact.files import read_arrays
from needle_tvm.runtime.program import Program, load, load_with_params
from needle_tvm.runtime.self_testing import self_test

__all__ = ["Program", "load", "load_with_params", "read_arrays", "self_test"]
