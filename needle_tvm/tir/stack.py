"""Puts buffers of scope "local" on the stack, for a CPU.

Before: functions for the CPU have small buffers of scope "local", the tiles of kernels.

After: these are allocated on the stack, so that LLVM can keep them in registers. Otherwise TVM
would allocate each buffer from a per-thread pool and free it again for every tile, so the tile's
sums would go through memory.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm
from needle_tvm.tir import nests
from needle_tvm.tir.functions import nodes_in

# Limits in bytes: LARGEST for each buffer on the stack, MOST for all such buffers of a function.
# LARGEST is twice the size of AVX-512's vector registers, which is enough for any tile; a larger
# buffer takes longer to fill than to allocate from the pool.
LARGEST, MOST = 1 << 12, 1 << 17
_ON_STACK = "disable_lower_builtin"  # TVM's annotation


def on_the_stack(module: IRModule) -> IRModule:
    """Mark the small local buffers of functions that TVM's pipeline has lowered. If a function has
    more than `MOST` bytes of them, the rest stay in the pool."""
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and (body := _marked(function)) is not None:
            module.update_func(name, function.with_body(body))
    return module


def _marked(function: PrimFunc) -> Any:
    allocations = [
        each
        for each in nodes_in(function.body, tirx.AllocBuffer)
        if each.buffer.scope() == "local" and size_of(each.buffer) <= LARGEST
    ]
    chosen: list[Any] = []
    total = 0.0
    for each in allocations:
        total += size_of(each.buffer)
        if total > MOST:
            break
        chosen.append(each.buffer)
    if not chosen:
        return None
    buffers = set(chosen)

    def mark(node: Any) -> Any:
        if node.buffer not in buffers:
            return node
        return tirx.AllocBuffer(
            node.buffer, {**node.annotations, _ON_STACK: tirx.IntImm("bool", 1)}
        )

    return nests.map_nodes(function.body, tirx.AllocBuffer, mark)


def size_of(buffer: Any) -> float:
    """Return the size in bytes of a buffer, or infinity if an extent is not a constant. The
    elements may be vectors."""
    extents = [getattr(each, "value", each) for each in buffer.shape]
    if not all(isinstance(each, int) for each in extents):
        return math.inf
    kind = tvm.DataType(str(buffer.dtype))
    return math.prod(extents) * -(-kind.bits * kind.lanes // 8)
