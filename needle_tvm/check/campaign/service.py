"""The service of the campaign's processes: `judge.serve`, warmed up before they are forked.

Importing this module does the imports and reads that a program needs, once for all programs.
"""

from __future__ import annotations

from needle_tvm.check.campaign.judge import OPS, serve
from needle_tvm.check.campaign.program import INPUT, Leaf, Program, Step

__all__ = ["serve"]

# Many modules are imported late, and the sources are read for the cache's key. One small program
# triggers all of that. It starts no threads: a process with threads could not be forked.
_SMALL = Program(
    (Leaf(INPUT, (2, 3), "float32", 0),), (Step("ops.exp({0}) @ {0}.transpose()", (0,)),), (1,)
)
serve({"kind": OPS, "program": _SMALL.to_json()})
