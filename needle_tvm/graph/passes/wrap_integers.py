"""Replaces arithmetic on integer data with function calls that wrap around.

Before: an expression of a PrimFunc adds, subtracts, multiplies or divides integers read from data.

After: calls to functions of `tir.integers` do the arithmetic, and TVM's simplifier does not look
into them. Code that does not come through this pass gets the same treatment in `tir.lowering`.
"""

from __future__ import annotations

from needle_tvm._tvm.names import IRModule, Target
from needle_tvm.tir import integers


def wrap_integers(module: IRModule, target: Target) -> IRModule:
    """Replace the arithmetic on integer data in every PrimFunc."""
    return integers.of_data(module, target)
