"""Build scheduled modules into shared libraries, for this machine or for another GPU.

The functions import TVM's compiler when they are called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_lab.workload import Processor
from needle_runtime.target import gpu
from needle_runtime.target.gpu import SHARED_BYTES
from needle_runtime.target.kind import GPU
from needle_tvm.target import nvcc
from needle_tvm.target import spec as targets
from needle_tvm.target.info import target_info

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target

CUDA_ARCHITECTURES = ("sm_75", "sm_90")  # the targets of GPU rungs if no GPU is present

_DOTS = "avx512vnni"  # LLVM's name for the feature that `Processor.dots` stands for


def description(device: str, arch: str | None = None) -> dict[str, Any]:
    """Return TVM's description of a target: this processor, or a GPU of architecture `arch`."""
    if device == "cpu":
        spec = targets.resolve("cpu")
        return {**spec.fields, "mcpu": str(spec.to_tvm().attrs["mcpu"])}
    return {
        "kind": GPU,
        "arch": arch or gpu_architecture() or CUDA_ARCHITECTURES[-1],
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": SHARED_BYTES,
        "thread_warp_size": 32,
    }


def gpu_architecture() -> str | None:
    """Return the architecture of this machine's first GPU, such as "sm_90"; None without a GPU."""
    found = gpu.gpus()
    return found[0].arch if found else None


def architecture(target: Target) -> str | None:
    """Return a GPU target's architecture; None for a processor."""
    info = target_info(target)
    return info.arch if info.is_gpu else None


def make_target(device: str, arch: str | None = None) -> Target:
    """Return the TVM Target; a GPU target has this machine's processor as its host."""
    from needle_tvm._tvm.names import make_target as make
    from needle_tvm._tvm.names import tvm

    if device == "cpu":
        return make(description("cpu"))
    return tvm.target.Target(description(device, arch), host=description("cpu"))


def processor(target: Target) -> Processor:
    """Return the facts about an llvm target that schedules depend on; the defaults for a GPU."""
    info = target_info(target)
    if not info.is_cpu:
        return Processor()
    lanes, dots = info.lanes("float32"), info.has(_DOTS)
    return Processor(info.cores, info.vectors.number, lanes, dots)


def compile_module(module: IRModule, target: Target) -> Any:
    """Compile to TVM's runtime module. A GPU's module holds CUDA source; nvcc is not needed yet."""
    from needle_tvm._tvm.names import tvm

    # Only copies that a schedule marks asynchronous become cp.async.
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        return tvm.tirx.build(module, target)


def write_library(module: IRModule, target: Target, path: Path) -> None:
    """Compile and link a module into a shared library that runs without a compiler.

    A GPU's kernels are machine code, compiled by nvcc without fast math. Raises
    TargetError if there is no nvcc, CudaCompilerError if nvcc rejects the code, ToolchainError if
    the C++ compiler cannot link for the target's machine.
    """
    from needle_tvm.lower.gpu_code import export_library

    def compile_cuda(source: str) -> bytes:
        return nvcc.compile_cubin(source, str(architecture(target)))[0]

    machine = str(target.attrs.get("mtriple") or "")
    export_library(compile_module(module, target), path, compile_cuda, machine=machine)


def why_no_gpu() -> str | None:
    """Return the reason that nothing can run on a GPU here; None if it can."""
    return gpu.why_none() or None
