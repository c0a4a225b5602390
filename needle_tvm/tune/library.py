"""Compile one function into a shared library in a fraction of a second, and load the library.

The workers use this: `measure.steps` for candidates, `gate.reference` for reference results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from needle_runtime._tvm.ffi import native
from needle_runtime.process.threads import configure_tvm_threads
from needle_runtime.target.kind import CPU, GPU
from needle_tvm._tvm.names import IRModule, Target, tvm
from needle_tvm.errors import ToolchainError, TuningError
from needle_tvm.lower import linking
from needle_tvm.lower.gpu_code import export_library, module_of_library
from needle_tvm.lower.libraries import for_llvm, pass_options
from needle_tvm.target import nvcc
from needle_tvm.target.info import target_info


def write(module: IRModule, target: Target, path: Path) -> list[nvcc.Resources]:
    """Compile a module into the library `path`, in the same way as artifacts.

    Returns the resources that each GPU kernel uses; for a CPU the list is empty. Raises TVM's
    errors if TVM cannot compile the module, CudaCompilerError if nvcc cannot compile a kernel, and
    TuningError if linking fails.
    """
    target = for_llvm(target)
    with target, tvm.transform.PassContext(config=pass_options(module)):
        built = tvm.tirx.build(module, target=target)
    return _WRITERS[target_info(target).kind](built, target, path)


def _write_host(built: Any, target: Target, path: Path) -> list[nvcc.Resources]:
    # The object file is beside the library, in a folder that the caller removes even after a kill.
    code = path.with_suffix(".o")
    code.write_bytes(linking.object_code(module_of_library(built), code))
    # TVM's own export takes four times as long, because it also compiles an empty file. The code
    # needs no library but libm.
    try:
        linking.link([code], path, ["-nostdlib", "-lm"])
    except ToolchainError as error:
        raise TuningError(f"a candidate cannot be linked: {error}") from error
    code.unlink()
    return []


def _write_cuda(built: Any, target: Target, path: Path) -> list[nvcc.Resources]:
    kernels: list[nvcc.Resources] = []

    def compile_cuda(source: str) -> bytes:
        code, found = nvcc.compile_cubin(source, target_info(target).arch)
        kernels.extend(found)
        return code

    export_library(built, path, compile_cuda)
    return kernels


_WRITERS: dict[str, Callable[[Any, Target, Path], list[nvcc.Resources]]] = {
    CPU: _write_host,
    GPU: _write_cuda,
}


def load(path: Path) -> Any:
    """Load a library written by `write` as a TVM module. It will run on the same threads as a
    compiled model that this thread calls. Raises TuningError if there is no such library."""
    if not path.exists():
        raise TuningError(f"{path}: there is no such library")
    module = tvm.runtime.load_module(str(path))
    native().adopt(str(path))
    native().use_threads(configure_tvm_threads())
    return module
