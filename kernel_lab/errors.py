"""What the lab raises on purpose; each reads as one line."""

from __future__ import annotations

from needle_tvm.errors import NeedleTVMError, UsageError


class LabError(NeedleTVMError):
    """Base of the lab's own errors: the work was asked for rightly and did not succeed."""


class LabUsageError(LabError, UsageError):
    """Something was asked for that the lab does not have or cannot do: a size, a rung, a device."""


class ContestantError(LabError):
    """A rung or a peer cannot take part in a contest, and `contestant` is which."""

    def __init__(self, message: str, contestant: str) -> None:
        super().__init__(message)
        self.contestant = contestant


class WrongResult(ContestantError):
    """A rung, or a peer, computes something else than NumPy does in float64."""


class NotCompiled(ContestantError):
    """A rung whose CUDA code nvcc refuses."""
