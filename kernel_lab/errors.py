"""The lab's own exceptions; each message is one line."""

from __future__ import annotations

from needle_runtime.errors import NeedleTVMError, UsageError


class LabError(NeedleTVMError):
    """The base of the lab's own errors: the request was valid but did not succeed."""


class LabUsageError(LabError, UsageError):
    """A request for something that the lab does not have or cannot do: a size, a rung, a device."""


class ContestantError(LabError):
    """A rung or a peer cannot take part in a contest; `contestant` is its name."""

    def __init__(self, message: str, contestant: str) -> None:
        super().__init__(message)
        self.contestant = contestant


class WrongResult(ContestantError):
    """The result of a rung or a peer differs from NumPy's float64 result."""


class NotCompiled(ContestantError):
    """nvcc rejected a rung's CUDA code."""
