"""Errors that users of needle_tvm see. All derive from `NeedleTVMError` and print as one line."""

from __future__ import annotations

from needle_runtime.errors import (
    ArtifactError,
    CaptureError,
    CudaError,
    EvaluationError,
    InputError,
    InstallError,
    KeyFileError,
    NeedleTVMError,
    ParameterError,
    SignatureError,
    TargetError,
    UsageError,
)

__all__ = [
    "ArtifactError",
    "CacheWarning",
    "CaptureError",
    "ClusterError",
    "CompilationError",
    "CudaCompilerError",
    "CudaError",
    "EagerWarning",
    "EvaluationError",
    "InputError",
    "InstallError",
    "KeyFileError",
    "MismatchError",
    "NeedleTVMError",
    "ParameterError",
    "RecompilationWarning",
    "RecordsError",
    "ScheduleWarning",
    "SignatureError",
    "StageError",
    "TargetError",
    "ToolchainError",
    "TranslationError",
    "TuningError",
    "UsageError",
]


class ScheduleWarning(UserWarning):
    """A kernel stays unscheduled because TVM refused its schedule; the kernel is correct but slow.

    This is a bug in needle_tvm; please report it.
    """


class RecompilationWarning(UserWarning):
    """A jit function has more signatures than it keeps, and compiles some again and again."""


class EagerWarning(UserWarning):
    """A jit function with fallback="eager" cannot be traced and runs eagerly."""


class CacheWarning(UserWarning):
    """The cache cannot be written, so models are compiled again in each process."""


class TranslationError(UsageError):
    """The model or an option of the call cannot be compiled; the text says why."""


class StageError(UsageError):
    """The stage is unknown, or an option does not fit it."""


class CompilationError(NeedleTVMError):
    """A pass, a schedule rule or TVM failed on a model. This is the compiler's fault."""


class MismatchError(NeedleTVMError):
    """The results of compiled code differ from the model's."""


class ToolchainError(NeedleTVMError):
    """A required compiler is missing or fails."""


class CudaCompilerError(ToolchainError):
    """nvcc failed to compile the CUDA code."""


class RecordsError(NeedleTVMError):
    """A record store cannot be opened, read or written; a write that fails leaves nothing in it."""


class TuningError(NeedleTVMError):
    """The tuning session failed as a whole (a failing candidate is only rejected)."""


class ClusterError(TuningError):
    """A Dask cluster cannot be reached, has no measuring worker, or has an unsuitable one."""
