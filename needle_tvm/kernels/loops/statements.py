"""Loops that an op wrote itself (`TeNamespace.statements`), for a CPU.

Before: parallel loops, perhaps with annotation WORK, and small buffers of scope "local".

After: a loop whose work threads would not be woken for runs on one thread. Small buffers lie on the
stack, where LLVM keeps them in registers: TVM would allocate "local" ones from a pool, each time.
"""

from __future__ import annotations

import math
from typing import Any

from needle.ops._te import WORK
from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in

_ON_ONE_THREAD = 1 << 13  # instructions that end before other threads would have woken up
_STACK = 1024  # bytes


def statements(function: PrimFunc) -> PrimFunc:
    """Rewrite a function's own statements; other functions have no such loops and buffers."""
    places = {
        each.buffer: tirx.decl_buffer(
            each.buffer.shape, each.buffer.dtype, each.buffer.name, layout=None
        )
        for each in nodes_in(function.body, tirx.AllocBuffer)
        if each.buffer.scope() == "local" and _bytes(each.buffer) <= _STACK
    }
    body = nests.map_nodes(function.body, NODES.loop, _on_one_thread)
    return function.with_body(nests.substitute(body, places) if places else body)


def _bytes(buffer: Any) -> float:
    extents = [getattr(each, "value", each) for each in buffer.shape]
    if not all(isinstance(each, int) for each in extents):
        return math.inf
    return math.prod(extents) * item_bytes(str(buffer.dtype))


def _on_one_thread(loop: Any) -> Any:
    if WORK not in loop.annotations:
        return loop
    others = {key: value for key, value in loop.annotations.items() if key != WORK}
    small = int(loop.annotations[WORK]) <= _ON_ONE_THREAD
    kind = tirx.ForKind.SERIAL if small else loop.kind
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=others)
