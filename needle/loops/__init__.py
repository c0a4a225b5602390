"""Loops and choices as single ops: `scan`, `while_loop` and `cond`."""

from .scan import scan

__all__ = ["scan"]
