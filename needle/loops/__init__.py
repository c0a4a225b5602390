"""Loops and choices as single ops: `scan`, `while_loop` and `cond`."""

from ..ops._loop_rules import RULES
from .cond import cond
from .cond import gradient as _gradient_of_cond
from .gradient import gradient as _gradient
from .gradient import recording as _recording
from .scan import scan
from .while_loop import while_loop

RULES.gradient, RULES.recording, RULES.gradient_of_cond = _gradient, _recording, _gradient_of_cond

__all__ = ["cond", "scan", "while_loop"]
