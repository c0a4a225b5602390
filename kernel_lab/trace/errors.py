"""The interpreter's own exceptions."""

from __future__ import annotations

from kernel_lab.errors import LabError, LabUsageError


class TraceError(LabError):
    """The kernel did something that no correct kernel does, such as reading outside a buffer."""


class NotLowered(LabError):
    """TVM's own passes reject the schedule, so it cannot be compiled either."""


class NotInterpreted(LabError):
    """The kernel uses an intrinsic or a statement that the interpreter does not support."""


class TraceTooLarge(LabUsageError):
    """The kernel makes more accesses than a trace may hold."""
