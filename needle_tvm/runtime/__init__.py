"""Run an exported model with NumPy, without needle and without TVM's compiler.

import needle_tvm.runtime
y = needle_tvm.runtime.load("mlp")(x)
"""

from needle_tvm.artifact.files import read_arrays
from needle_tvm.runtime.program import Program, load, load_with_params
from needle_tvm.runtime.self_testing import self_test

__all__ = ["Program", "load", "load_with_params", "read_arrays", "self_test"]
