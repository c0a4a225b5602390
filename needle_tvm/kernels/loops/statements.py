"""Schedules loops that an op wrote itself (`TeNamespace.statements`), for a CPU.

Before: parallel loops, perhaps with annotation WORK.

After: a loop with too little work to be worth waking threads runs on one thread.
"""

from __future__ import annotations

from typing import Any

from needle.ops._te import WORK
from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES

_ON_ONE_THREAD = 1 << 13  # instructions that end before other threads would have woken up


def statements(function: PrimFunc) -> PrimFunc:
    """Rewrite a function's own statements; other functions have no such loops."""
    return function.with_body(nests.map_nodes(function.body, NODES.loop, _on_one_thread))


def _on_one_thread(loop: Any) -> Any:
    if WORK not in loop.annotations:
        return loop
    others = {key: value for key, value in loop.annotations.items() if key != WORK}
    small = int(loop.annotations[WORK]) <= _ON_ONE_THREAD
    kind = tirx.ForKind.SERIAL if small else loop.kind
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=others)
