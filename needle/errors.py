"""Errors that have a meaning of their own; everything else raises Python's."""

from __future__ import annotations


class ShapeError(ValueError):
    """The shapes given to an op, or its attributes, do not fit together."""


class TraceError(RuntimeError):
    """What tracing cannot turn into a graph: a read of a value, a write to model state."""


class ChangedError(RuntimeError):
    """What a traced function read as a constant has been written, or is gone."""
