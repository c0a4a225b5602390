"""Replaces arithmetic on integer data with function calls that wrap around.

Before: an expression of a PrimFunc adds, subtracts, multiplies or divides integers read from data.

After: calls to functions of `tir.integers` do this, and TVM's simplifier does not look into them.
If a function is built on another path, that path replaces its remaining arithmetic.
"""

from __future__ import annotations

from needle_tvm._tvm.names import IRModule, Target
from needle_tvm.tir import integers


def wrap_integers(module: IRModule, target: Target) -> IRModule:
    """Replace the arithmetic on integer data in every PrimFunc."""
    return integers.of_data(module, target)
