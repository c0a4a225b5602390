"""Load tvm-ffi and TVM's runtime library without the compiler and without PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from needle_runtime._tvm import versions
from needle_runtime._tvm.mapping import with_copy
from needle_runtime.errors import InstallError
from needle_runtime.process.forks import loading

# TVM's runtime library registers this function. The compiler may already have loaded it.
_VM_LOADER = "ffi.Module.load_from_bytes.relax.VMExecutable"

_LIBRARY_LOADER = "ffi.Module.load_from_file.so"

_CUDA_API = "device_api.cuda"  # registered by TVM's library for CUDA

_load_lock = threading.Lock()  # acquired inside `loading`, during which the process does not fork


@functools.cache
def native() -> Any:
    """Return the native module, after loading the libraries of tvm-ffi and of TVM's runtime.

    The Python package of tvm-ffi is not imported: that would take longer than loading a model.
    """
    with loading, _load_lock:
        folder = versions.ffi_library_folder()
        if folder is None:
            raise InstallError(f"tvm_ffi was not found: {versions.FFI_HINT}")
        try:
            # Compiled libraries find tvm-ffi's symbols among the global ones.
            ctypes.CDLL(str(folder / "libtvm_ffi.so"), ctypes.RTLD_GLOBAL)
            module = importlib.import_module("needle_runtime._native")
        except (ImportError, OSError) as error:
            raise InstallError(
                f"tvm_ffi's library cannot be loaded ({error}): {versions.FFI_HINT}"
            ) from None
        if module.global_function(_VM_LOADER) is None:
            ctypes.CDLL(str(_library_folder() / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)
        return module


def load_ffi() -> Any:
    """Return the Python package tvm_ffi, after loading TVM's runtime library.

    The package is needed for GPUs, TVM's compiler and Python functions that compiled code calls.
    """
    native()
    with loading, _load_lock, torch_left_out():
        try:
            import tvm_ffi

            register_interrupts(tvm_ffi)
        except ImportError as error:
            raise InstallError(
                f"tvm_ffi cannot be imported ({error}): {versions.FFI_HINT}"
            ) from None
    return tvm_ffi


def _library_folder() -> Path:
    folder = versions.runtime_library_folder()
    if folder is None:
        raise InstallError(
            "TVM's runtime library was not found: pip install --force-reinstall needle-runtime"
        )
    return folder


@functools.cache
def read_symbols() -> threading.Thread:
    """Start and return a thread in which tvm_ffi reads the symbols of all loaded libraries.

    tvm_ffi reads them for the traceback of the first error that a C++ function raises, and
    importing TVM's compiler raises several. If PyTorch is loaded, this takes 0.6 s, but it releases
    the GIL, so PyTorch can record a model at the same time. At exit, Python waits for the thread.
    """

    def fail() -> None:
        with loading, contextlib.suppress(TypeError):
            tvm_ffi.get_global_func("ffi.String")(*range(4))

    tvm_ffi = load_ffi()
    thread = threading.Thread(target=fail, name="needle-symbols")
    thread.start()
    return thread


def register_interrupts(tvm_ffi: Any) -> None:
    """Let an interrupt in Python code that TVM calls reach TVM's caller as the same exception.

    tvm_ffi raises a RuntimeError for every exception class that it does not know.
    """
    for kind in (KeyboardInterrupt, SystemExit):
        tvm_ffi.error.register_error(kind.__name__, kind)


def load_library(code: bytes, *, for_gpu: bool = False) -> Any:
    """Load a compiled library's module from a private copy of its bytes.

    The bytes are copied, since overwriting a file would also change the code of a process that has
    loaded it. The library is unloaded when the module and all its functions are gone. With
    `for_gpu`, the library stays loaded, and the result is a module of the package tvm_ffi. Raises
    ArtifactError if this machine does not allow loading code.
    """
    ffi = load_ffi() if for_gpu else None
    open_library = (ffi.get_global_func if ffi else native().global_function)(_LIBRARY_LOADER)

    def load(name: str) -> Any:
        module = open_library(name, "so")
        if ffi:
            ffi._ffi_api.ModuleGlobalsAdd(module)
        native().adopt(name)
        return module

    with loading:
        return with_copy(code, load)


def load_cuda_runtime() -> Any:
    """Also load TVM's CUDA functions; return `load_ffi()`. Raises InstallError if that fails."""
    ffi = load_ffi()
    with loading, _load_lock:
        if ffi.get_global_func(_CUDA_API, allow_missing=True) is None:
            folder = _library_folder()
            cudart = folder / "libcudart.so.13"  # present in a bundle for a GPU host
            try:
                if cudart.is_file():
                    ctypes.CDLL(str(cudart), ctypes.RTLD_GLOBAL)
                ctypes.CDLL(str(folder / "libtvm_runtime_cuda.so"), ctypes.RTLD_GLOBAL)
            except OSError as error:  # the library needs the toolkit's libcudart and the driver
                raise InstallError(
                    f"TVM's runtime for CUDA cannot be loaded ({error}): it needs the NVIDIA "
                    "driver and CUDA 13's libcudart, as in pip install nvidia-cuda-runtime"
                ) from None
    return ffi


@contextlib.contextmanager
def torch_left_out() -> Iterator[None]:
    """Keep an import of tvm_ffi or TVM from importing PyTorch, which takes over a second.

    Both import PyTorch if it is installed, for conversions that needle does not use, since it
    passes arrays by DLPack. If the process has imported PyTorch already, this has no effect.
    """
    finder = _WithoutTorch(threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _WithoutTorch:  # a finder in sys.meta_path
    """Hides PyTorch from imports in one thread; other threads can still import it."""

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ImportError for PyTorch in that thread; leave all else to other finders."""
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("torch is left out", name=name)
