"""From a scheduled module to a shared library, for this machine or across to a GPU's.

Imports TVM's compiler when used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_lab.errors import LabUsageError
from kernel_lab.workload import Processor
from needle_tvm import target as targets

if TYPE_CHECKING:
    from needle_tvm._tvm import IRModule, Target

CUDA_ARCHITECTURES = ("sm_75", "sm_90")  # what the GPU rungs are compiled for where no GPU is

# TVM compiles CUDA with nvcc, not with NVRTC, for which the wheel lacks the bindings.
NVCC_MODE = {"TVM_CUDA_COMPILE_MODE": "nvcc"}

# Shared memory a block may use without asking for more, on every architecture from sm_75 on.
SHARED_BYTES = 48 * 1024


def description(device: str, arch: str | None = None) -> dict[str, Any]:
    """TVM's description of a target: this processor, or a GPU of architecture `arch`."""
    if device == "cpu":
        spec = targets.resolve("cpu")
        return {**spec.fields, "mcpu": str(spec.to_tvm().attrs["mcpu"])}
    return {
        "kind": "cuda",
        "arch": arch or gpu_architecture() or CUDA_ARCHITECTURES[-1],
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": SHARED_BYTES,
        "thread_warp_size": 32,
    }


def gpu_architecture() -> str | None:
    """Architecture of this machine's GPU, such as "sm_90"; None where there is none."""
    if why_no_gpu() is not None:
        return None
    from needle_tvm._tvm import tvm

    return "sm_" + str(tvm.cuda(0).compute_version).replace(".", "")


def architecture(target: Target) -> str | None:
    """A GPU target's architecture; None of a processor's."""
    return str(target.attrs["arch"]) if str(target.kind) == "cuda" else None


def make_target(device: str, arch: str | None = None) -> Target:
    """TVM's Target, a GPU's with this machine's processor as its host."""
    from needle_tvm._tvm import make_target as make
    from needle_tvm._tvm import tvm

    if device == "cpu":
        return make(description("cpu"))
    return tvm.target.Target(description(device, arch), host=description("cpu"))


def processor(target: Target) -> Processor:
    """What the schedules look at of an llvm target; the defaults for a GPU."""
    from needle_tvm._tvm import cpu_features

    if str(target.kind) != "llvm":
        return Processor()
    features = set(cpu_features(target))
    cores = int(target.attrs["num-cores"])
    if "avx512f" in features:
        return Processor(cores, registers=32, lanes=16)
    if "avx" in features:
        return Processor(cores, registers=16, lanes=8)
    return Processor(cores, registers=32 if "neon" in features else 16, lanes=4)


def compile_module(module: IRModule, target: Target) -> Any:
    """TVM's runtime module. For a GPU this takes nvcc; `require_nvcc` says where it is missing."""
    from needle_tvm._tvm import tvm

    with _nvcc_mode():
        return tvm.tirx.build(module, target=target)


def write_library(module: IRModule, target: Target, path: Path) -> None:
    """Compile and link a module into a shared library that runs without the compiler."""
    compile_module(module, target).export_library(str(path))


def require_nvcc() -> None:
    """Raises LabUsageError where CUDA code cannot be compiled."""
    if shutil.which("nvcc") is None:
        raise LabUsageError("no nvcc was found: GPU rungs cannot be compiled here")


def why_no_gpu() -> str | None:
    """Why nothing can run on a GPU here; None where it can. Imports TVM."""
    from needle_tvm._tvm import tvm

    try:
        there = bool(tvm.cuda(0).exist)
    except (RuntimeError, ValueError, AttributeError):  # no CUDA runtime could be loaded
        there = False
    return None if there else "no CUDA device was found on this machine"


@contextmanager
def _nvcc_mode() -> Iterator[None]:
    """Sets NVCC_MODE for what is inside, unless the user has chosen."""
    missing = {name: value for name, value in NVCC_MODE.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
