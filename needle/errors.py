"""Error classes of needle's own; all other errors are Python's."""

from __future__ import annotations


class ShapeError(ValueError):
    """The shapes given to an op, or its attributes, do not fit together."""


class TraceError(RuntimeError):
    """Tracing met something that it cannot record: a read of a value, a write to model state."""


class ChangedError(RuntimeError):
    """A tensor that a traced function read as a constant was written since, or is gone."""
