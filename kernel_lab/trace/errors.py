"""What the interpreter raises on purpose."""

from __future__ import annotations

from kernel_lab.errors import LabError, LabUsageError


class TraceError(LabError):
    """The kernel did something no correct kernel does, such as reading outside a buffer."""


class NotLowered(LabError):
    """TVM's own passes refuse the schedule, so it cannot be compiled either."""


class NotInterpreted(LabError):
    """The kernel uses an intrinsic or a statement that the interpreter does not know."""


class TraceTooLarge(LabUsageError):
    """The kernel makes more accesses than a trace may hold."""
