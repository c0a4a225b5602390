"""One function as a shared library, built and linked in a fraction of a second."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, tvm
from needle_tvm.errors import TuningError
from needle_tvm.lower.gpu_code import export_library
from needle_tvm.lower.libraries import cxx_compiler, for_llvm, pass_options, write_object
from needle_tvm.target import nvcc


def write(module: IRModule, target: Target, path: Path) -> list[nvcc.Resources]:
    """Compile a module into the library `path`, as artifacts are compiled.

    Returns what each of a GPU's kernels takes. Raises what TVM raises for a module it cannot
    compile, CudaCompilerError for kernels that nvcc cannot, and TuningError when it cannot be
    linked.
    """
    target = for_llvm(target)
    with target, tvm.transform.PassContext(config=pass_options(module)):
        built = tvm.tirx.build(module, target=target)
    return _WRITERS[str(target.kind)](built, target, path)


def _write_host(built: Any, target: Target, path: Path) -> list[nvcc.Resources]:
    # Beside the library: the folder is the caller's, who removes it also when this is killed.
    code = path.with_suffix(".o")
    write_object(built, str(code))
    _link(code, path)
    code.unlink()
    return []


def _write_cuda(built: Any, target: Target, path: Path) -> list[nvcc.Resources]:
    kernels: list[nvcc.Resources] = []

    def compile_cuda(source: str) -> bytes:
        code, found = nvcc.compile_cubin(source, str(target.attrs["arch"]))
        kernels.extend(found)
        return code

    export_library(built, path, compile_cuda)
    return kernels


_WRITERS: dict[str, Callable[[Any, Target, Path], list[nvcc.Resources]]] = {
    "llvm": _write_host,
    "cuda": _write_cuda,
}


def load(path: Path) -> Any:
    """TVM's module of a library that `write` wrote. Raises TuningError where there is none."""
    if not path.exists():
        raise TuningError(f"{path}: there is no such library")
    return tvm.runtime.load_module(str(path))


def _link(code: Path, linked: Path) -> None:
    """A shared library of one object file.

    TVM's own export takes four times as long: it calls the compiler for a second, empty file.
    """
    compiler = cxx_compiler()
    if compiler is None:
        raise TuningError("no C++ compiler was found to link with: install one, or set CXX")
    # Of the compiler's own libraries the code needs none but the mathematical functions.
    command = [compiler, "-shared", "-nostdlib", "-o", str(linked), str(code), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise TuningError(f"{compiler} cannot link a candidate: {lines[-1]}")
