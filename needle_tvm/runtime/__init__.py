"""Run an exported model with NumPy, without needle and without TVM's compiler.

import needle_tvm.runtime
y = needle_tvm.runtime.load("mlp")(x)

For those who change this package:

- A `Program` is made from an `Artifact` and always runs; making it raises TargetError on a machine
  that cannot run the code. It needs only NumPy, tvm-ffi and TVM's runtime library, and loads the
  very bytes that were checked.
- `executor` is the loaded code on tensors of its device. The profiler, timing and tests call it
  without the conversions around it.
- `calls` passes arrays that fit to the native module `_native` (`src/runtime/caller.cc`), which
  runs no Python between them and the code. `executor` does the same in Python for everything else,
  and its errors say what is wrong.
- `state` makes a call of a model with state, under a lock: it takes the arrays from their place and
  writes the new values back. A loaded artifact keeps its state in a copy of its own.
- Sizes that the call decides are read off the inputs' axes and checked against their bounds and
  each other (`artifact.sizes`).
"""

from needle_tvm.artifact.files import read_arrays
from needle_tvm.runtime.program import Program, load, load_with_params
from needle_tvm.runtime.self_testing import self_test

__all__ = ["Program", "load", "load_with_params", "read_arrays", "self_test"]
