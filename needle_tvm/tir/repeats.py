"""Rewrites vectorised loops that store one repeated bfloat16 number as plain loops.

TVM 0.27 converts stored bfloat16 values to integers, but misses vectors that repeat one number,
and then rejects its own code. Such a vector arises from a vectorised loop that stores the same
value in each iteration: a broadcast along the loop, or a constant. LLVM vectorises the plain loop
by itself.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm_ffi
from needle_tvm.tir.functions import NODES, nodes_in, simplified, variables_of


def plain_repeats(module: IRModule) -> IRModule:
    """Turn vectorised loops that store one repeated bfloat16 number into plain loops, in all
    PrimFuncs of a module."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            body = tvm_ffi.structural_map(function.body, (tirx.For, _plain))
            if not body.same_as(function.body):
                module.update_func(name, function.with_body(body))
    return module


def _plain(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not _repeats(loop):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _repeats(loop: Any) -> bool:
    stores = [s for s in nodes_in(loop.body, NODES.store) if str(s.buffer.dtype) == "bfloat16"]
    if not stores:
        return False
    differ = {loop.loop_var}  # the variables that differ between iterations
    for realize in reversed(nodes_in(loop.body, NODES.realize)):
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if variables_of(value) & differ:
                differ.add(axis.var)
    return any(not variables_of(simplified(store.value)) & differ for store in stores)
