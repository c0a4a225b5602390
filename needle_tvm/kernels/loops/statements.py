"""Schedules loops that an op wrote itself (`TeNamespace.statements`), for a CPU.

Before: parallel loops, perhaps with annotation WORK.

After: a loop with so little work that waking threads is not worth it runs on one thread.
"""

from __future__ import annotations

from typing import Any

from needle.ops._te import WORK
from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES

_ON_ONE_THREAD = 1 << 13  # instructions that one thread finishes before others would wake up


def statements(function: PrimFunc) -> PrimFunc:
    """Make the function's loops serial if their WORK annotation says that they have little work."""
    return function.with_body(nests.map_nodes(function.body, NODES.loop, _on_one_thread))


def _on_one_thread(loop: Any) -> Any:
    if WORK not in loop.annotations:
        return loop
    others = {key: value for key, value in loop.annotations.items() if key != WORK}
    small = int(loop.annotations[WORK]) <= _ON_ONE_THREAD
    kind = tirx.ForKind.SERIAL if small else loop.kind
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=others)
