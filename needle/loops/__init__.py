"""Loops and conditions as single ops: `scan`, `while_loop` and `cond`.

`tracing` records a cell once as a `Body`; outer tensors that the cell reads become additional
inputs. `gradient` builds the gradient of a scan, which is a scan from the last step to the first.
`needle.recurrence` runs bodies. docs/loops.md follows a loop from its cell to the compiled code.
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
