"""Facts about a target that passes and schedule rules need, read from TVM's Target.

This module imports TVM only when it is asked about features or dtypes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from needle_runtime.target import gpu, kind
from needle_runtime.target.features import FEATURES, Vectors

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Target

_WITHOUT_FEATURES = Vectors(16, 16)  # SSE's vector registers
_IN_HALVES = {"znver4"}  # LLVM's names for processors that compute AVX-512 in two halves


@dataclass(frozen=True)
class TargetInfo:
    """The facts about one target: cores and vectors for a CPU, the architecture for a GPU."""

    target: Target

    @property
    def kind(self) -> str:
        """`kind.CPU` or `kind.GPU`, a key in the tables of rules and passes."""
        return str(self.target.kind)

    @property
    def is_cpu(self) -> bool:
        """Whether LLVM generates the code."""
        return self.kind == kind.CPU

    @property
    def is_gpu(self) -> bool:
        """Whether TVM generates CUDA source."""
        return self.kind == kind.GPU

    @property
    def cores(self) -> int:
        """The number of threads for which a CPU's code is scheduled."""
        return int(self.target.attrs["num-cores"])

    @property
    def features(self) -> frozenset[str]:
        """LLVM's names for the features that a CPU's code, or a GPU's host code, may use.

        Raises ValueError if LLVM cannot generate code for the processor.
        """
        return _features(self.target if self.is_cpu else self.target.host)

    def has(self, feature: str) -> bool:
        """Return whether code may use a feature of `features.FEATURES`, such as "avx512bf16"."""
        return feature in self.features

    @property
    def vectors(self) -> Vectors:
        """The width and number of the widest vector registers."""
        rows = (FEATURES[name].vectors for name in self.features if name in FEATURES)
        return max((each for each in rows if each is not None), default=_WITHOUT_FEATURES)

    def lanes(self, dtype: str) -> int:
        """Return the number of elements of a dtype in a vector register."""
        from needle_tvm._tvm.names import tvm_ffi

        return self.vectors.bytes // int(tvm_ffi.dtype(dtype).itemsize)

    @property
    def fuses(self) -> bool:
        """Whether the processor has fused multiply-add, which rounds once."""
        return any(FEATURES[name].fuses for name in self.features if name in FEATURES)

    @property
    def in_halves(self) -> bool:
        """Whether the processor computes its widest vectors in two halves."""
        return str(self.target.attrs.get("mcpu", "")) in _IN_HALVES

    @property
    def arch(self) -> str:
        """A GPU's architecture, such as "sm_90"."""
        return str(self.target.attrs["arch"])

    @property
    def capability(self) -> int:
        """The number of a GPU's architecture, such as 90."""
        return gpu.capability(self.arch)


def target_info(target: Target) -> TargetInfo:
    """Return the facts about TVM's `target`."""
    return TargetInfo(target)


@functools.lru_cache(maxsize=64)  # LLVM takes half a millisecond
def _features(processor: Target | None) -> frozenset[str]:
    from needle_tvm._tvm.names import cpu_features

    known = processor is not None and str(processor.kind) == kind.CPU
    return frozenset(cpu_features(processor) if known else ())
