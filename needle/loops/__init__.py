"""Loops and choices as single ops: `scan`, `while_loop` and `cond`.

`tracing` records a cell once as a `Body`; the tensors that it finds around the cell become further
inputs. `gradient` makes the gradient of a scan, which is a scan from the last step to the first.
`needle.recurrence` runs bodies. docs/guide/17-loops.md follows a loop from its cell to the code.
"""

from ..ops._loop_rules import RULES
from .cond import cond
from .cond import gradient as _gradient_of_cond
from .gradient import gradient as _gradient
from .gradient import recording as _recording
from .scan import scan
from .while_loop import while_loop

RULES.gradient, RULES.recording, RULES.gradient_of_cond = _gradient, _recording, _gradient_of_cond

__all__ = ["cond", "scan", "while_loop"]
