"""Checks whether a target has instructions for a precision of matmul operands.

`compiler.request` calls `check`; `needle_runtime.target.precision` describes the precisions.
"""

from __future__ import annotations

from needle_runtime.errors import TargetError, UsageError
from needle_runtime.target import gpu
from needle_runtime.target.precision import FLOAT32, PRECISIONS
from needle_tvm.errors import StageError
from needle_tvm.target.spec import TargetSpec

_SINCE = {"tf32": 80, "bfloat16": 80}  # the first GPU architecture whose tensor cores multiply them


def check(dtype: str | None, spec: TargetSpec, stage: str) -> str:
    """Return the precision that `dtype` names; None means float32.

    Raises UsageError for an unknown name, TargetError if the target `spec` has no instructions for
    the precision, and StageError if the `stage` never changes a model's precision.
    """
    precision = FLOAT32 if dtype is None else dtype
    if precision not in PRECISIONS:
        raise UsageError(f"dtype={dtype!r}: must be None or one of {', '.join(PRECISIONS)}")
    if precision == FLOAT32:
        return precision
    if stage == "noopt":
        raise StageError(f"dtype={dtype!r}: stage 'noopt' computes in the model's own float32")
    if not spec.is_gpu:
        if precision == "tf32":
            raise TargetError("dtype='tf32': only NVIDIA GPUs from sm_80 on have it; no CPU does")
        return precision
    arch = str(spec.fields["arch"])
    if gpu.capability(arch) < _SINCE.get(precision, 0):
        raise TargetError(
            f"dtype={dtype!r}: GPUs have it from sm_{_SINCE[precision]} on, the target is {arch}"
        )
    return precision
