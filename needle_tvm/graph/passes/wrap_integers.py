"""Replaces arithmetic of integer data with calls that wrap around.

Before: an expression of a PrimFunc adds, subtracts, multiplies or divides integers that are read.

After: calls of `tir.integers` do, which TVM's simplifier does not look into. Arithmetic left in
functions that are built by another path is replaced there.
"""

from __future__ import annotations

from needle_tvm._tvm.names import IRModule, Target
from needle_tvm.tir import integers


def wrap_integers(module: IRModule, target: Target) -> IRModule:
    """Replace the arithmetic of integer data in every PrimFunc."""
    return integers.of_data(module, target)
