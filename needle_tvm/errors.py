"""Errors users of needle_tvm meet. All derive from `NeedleTVMError` and read as one line."""

from __future__ import annotations

from needle_tvm.words import one_line


class NeedleTVMError(Exception):
    """Base of every error needle_tvm raises on purpose.

    Its text is printable, since it may quote what a file holds, and ends up on terminals.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class ScheduleWarning(UserWarning):
    """A kernel is left without a schedule, since TVM refused the one it should have had: its
    results are right, and it is slow. A fault of needle_tvm's, worth a report."""


class InstallError(NeedleTVMError):
    """TVM is missing, or its version and tvm-ffi's do not belong together."""


class UsageError(NeedleTVMError, ValueError):
    """What was asked for does not exist or cannot be met: an argument of a call or a command."""


class TargetError(UsageError):
    """A target that is unknown, or that this machine cannot compile for or run."""


class StageError(UsageError):
    """An unknown stage, or an option that does not fit it."""


class TranslationError(NeedleTVMError):
    """A model that cannot be turned into a Relax module."""


class CompilationError(NeedleTVMError):
    """A pass, a schedule rule or TVM that fails on a model: a fault of the compiler's."""


class MismatchError(NeedleTVMError):
    """Compiled code whose results are not the model's."""


class ToolchainError(NeedleTVMError):
    """A compiler that is missing, or does not compile what it must."""


class CudaCompilerError(ToolchainError):
    """CUDA code that nvcc does not compile."""


class CudaError(NeedleTVMError):
    """A call of the CUDA driver that fails."""


class CaptureError(CudaError):
    """Work that could not be captured as a CUDA graph."""


class InputError(NeedleTVMError, ValueError):
    """Arguments of a compiled function that do not fit its signature."""


class ParameterError(NeedleTVMError, ValueError):
    """Weights whose names, shapes or dtypes do not fit the compiled model."""


class ArtifactError(NeedleTVMError):
    """An artifact that cannot be written, or that must not be loaded."""


class SignatureError(ArtifactError):
    """An artifact that is not signed, or not by the key that was asked for."""


class KeyFileError(NeedleTVMError):
    """A file that holds no key to sign with, or to check signatures with."""


class EvaluationError(NeedleTVMError):
    """The work was done and did not succeed."""


class RecordsError(NeedleTVMError):
    """A record store that cannot be opened, read or written; what was written then is not in it."""


class DamagedRecordsError(RecordsError):
    """A record store whose files are damaged."""


class TuningError(NeedleTVMError):
    """The tuning session failed as a whole (a failing candidate is only rejected)."""


class RemoteError(TuningError):
    """A tracker or a server of remote measuring: not to be reached, or no address to listen on."""
