"""Replaces arithmetic of integer data with calls that wrap around.

Before: an expression of a PrimFunc adds, subtracts, multiplies or divides integers read from data.

After: calls of `tir.integers` do this, and TVM's simplifier does not look into them. In functions
that are built on another path, that path replaces the remaining arithmetic.
"""

from __future__ import annotations

from needle_tvm._tvm.names import IRModule, Target
from needle_tvm.tir import integers


def wrap_integers(module: IRModule, target: Target) -> IRModule:
    """Replace the arithmetic of integer data in every PrimFunc."""
    return integers.of_data(module, target)
