"""Errors that users of needle_tvm meet. All derive from `NeedleTVMError` and print as one line."""

from __future__ import annotations

from needle_tvm.text import one_line


class NeedleTVMError(Exception):
    """Base class of every error that needle_tvm raises on purpose.

    `str()` escapes characters that are not printable: the text may quote a file and is printed on
    terminals.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class ScheduleWarning(UserWarning):
    """A kernel stays unscheduled because TVM refused its schedule; the kernel is correct but slow.

    This is a fault of needle_tvm's and worth a report.
    """


class RecompilationWarning(UserWarning):
    """A jit function has more signatures than it keeps, and compiles some again and again."""


class EagerWarning(UserWarning):
    """A jit function with fallback="eager" cannot be traced and runs eagerly."""


class CacheWarning(UserWarning):
    """The cache cannot be written, so models are compiled anew in each process."""


class InstallError(NeedleTVMError):
    """TVM is missing, or its version and that of tvm-ffi do not fit together."""


class UsageError(NeedleTVMError, ValueError):
    """An argument of a call or a command names something unknown or impossible."""


class TargetError(UsageError):
    """The target is unknown, or this machine cannot compile for it or run it."""


class TranslationError(UsageError):
    """The model or an option of the call cannot be compiled; the text says why."""


class StageError(UsageError):
    """The stage is unknown, or an option does not fit it."""


class CompilationError(NeedleTVMError):
    """A pass, a schedule rule or TVM failed on a model, which is the compiler's fault."""


class MismatchError(NeedleTVMError):
    """The results of compiled code differ from the model's."""


class ToolchainError(NeedleTVMError):
    """A required compiler is missing or fails."""


class CudaCompilerError(ToolchainError):
    """nvcc does not compile the CUDA code."""


class CudaError(NeedleTVMError):
    """A call to the CUDA driver failed."""


class CaptureError(CudaError):
    """Work could not be captured as a CUDA graph."""


class InputError(NeedleTVMError, ValueError):
    """Arguments of a compiled function do not fit its signature."""


class ParameterError(NeedleTVMError, ValueError):
    """Names, shapes or dtypes of weights do not fit the compiled model."""


class ArtifactError(NeedleTVMError):
    """An artifact cannot be written, or must not be loaded."""


class SignatureError(ArtifactError):
    """An artifact is not signed, or not by the required key."""


class KeyFileError(NeedleTVMError):
    """A file does not hold a key to sign with or to check signatures with."""


class EvaluationError(NeedleTVMError):
    """The work was done, but its result is not acceptable."""


class RecordsError(NeedleTVMError):
    """A record store cannot be opened, read or written; a write that fails leaves nothing in it."""


class TuningError(NeedleTVMError):
    """The tuning session failed as a whole (a failing candidate is only rejected)."""


class ClusterError(TuningError):
    """A Dask cluster cannot be reached, has no measuring worker, or has an unsuitable one."""
