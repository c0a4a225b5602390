"""Integers that are data, which wrap around.

Before: an expression of a PrimFunc adds, subtracts, multiplies or divides integers that are read.

After: calls do, as `tir.integers` has them, which the simplifier of TVM does not look into. What
is left, and comes to be built otherwise, is replaced there.
"""

from __future__ import annotations

from needle_tvm._tvm.names import IRModule, Target
from needle_tvm.tir import integers


def wrap_integers(module: IRModule, target: Target) -> IRModule:
    """Rewrite every PrimFunc."""
    return integers.of_data(module, target)
