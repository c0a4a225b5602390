"""One number of bfloat16 stored in many places, as a plain loop.

TVM 0.27 stores bfloat16 as integers, but forgets those vectors that repeat one number, and then
refuses its own code. Such a vector comes of a vectorised loop that stores what is the same in each
of its steps: a broadcast along the loop, or a constant. LLVM makes vectors of the plain loop by
itself.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm_ffi
from needle_tvm.tir.functions import NODES, nodes_in, simplified, variables_of


def plain_repeats(module: IRModule) -> IRModule:
    """The module with no vectorised loop, in any PrimFunc, that repeats a number of bfloat16."""
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
    differ = {loop.loop_var}  # from step to step: what blocks bind comes before what they store
    for realize in reversed(nodes_in(loop.body, NODES.realize)):
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if variables_of(value) & differ:
                differ.add(axis.var)
    return any(not variables_of(simplified(store.value)) & differ for store in stores)
