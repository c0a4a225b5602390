"""The precision of matmuls' and convolutions' operands: float32, or rounded to a narrower dtype.

`compiler.request` checks it. This module imports neither needle nor TVM.

| precision | significant bits | range of magnitudes | on |
|---|---|---|---|
| float32 | 24 | 1e-38 to 3e38 | every target |
| tf32 | 11 | as float32's | GPUs from sm_80 on; has no storage of its own |
| float16 | 11 | 6e-5 (6e-8 with fewer bits) to 65504 | every target |
| bfloat16 | 8 | as float32's | CPUs, GPUs from sm_80 on |

Sums are float32 for all operands, and so is everything outside matmuls and convolutions.
The product of two rounded operands is exact in float32, except for its smallest values.
"""

from __future__ import annotations

from typing import Any, Protocol

from needle_tvm.errors import StageError, TargetError, UsageError
from needle_tvm.target import gpu

FLOAT32 = "float32"
PRECISIONS = (FLOAT32, "tf32", "float16", "bfloat16")
_SINCE = {"tf32": 80, "bfloat16": 80}  # the first GPU whose tensor cores multiply them


class Target(Protocol):
    """The facts of a target that the check needs; `target.spec.TargetSpec` has them."""

    @property
    def is_gpu(self) -> bool: ...
    @property
    def fields(self) -> dict[str, Any]: ...


def check(dtype: str | None, spec: Target, stage: str) -> str:
    """Return the precision that `dtype` names; None means float32.

    Raises UsageError for an unknown name, TargetError if the target `spec` has no instructions for
    it, and StageError if the `stage` never changes a model's precision.
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
            raise TargetError("dtype='tf32': only NVIDIA's GPUs from sm_80 on have it, no CPU")
        return precision
    arch = str(spec.fields["arch"])
    if gpu.capability(arch) < _SINCE.get(precision, 0):
        raise TargetError(
            f"dtype={dtype!r}: GPUs have it from sm_{_SINCE[precision]} on, the target is {arch}"
        )
    return precision
