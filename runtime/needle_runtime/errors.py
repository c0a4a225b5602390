"""Errors that users of exported models meet. All derive from `NeedleTVMError` and print as one
line. `needle_tvm.errors` has these errors and the compiler's.
"""

from __future__ import annotations

from needle_runtime.text import one_line


class NeedleTVMError(Exception):
    """Base class of every error that needle_runtime and needle_tvm raise on purpose.

    `str()` escapes characters that are not printable: the text may quote a file and is printed on
    terminals.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class InstallError(NeedleTVMError):
    """TVM is missing, or the versions of TVM and tvm-ffi do not fit together."""


class UsageError(NeedleTVMError, ValueError):
    """An argument of a call or a command names something unknown or impossible."""


class TargetError(UsageError):
    """The target is unknown, or this machine cannot compile for it or run its code."""


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
    """A file holds no key for signing or for checking signatures."""


class EvaluationError(NeedleTVMError):
    """The work was done, but its result is not acceptable."""
