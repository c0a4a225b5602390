"""Loops and choices as single ops: `scan`, `while_loop` and `cond`."""

from .cond import cond
from .scan import scan
from .while_loop import while_loop

__all__ = ["cond", "scan", "while_loop"]
