"""Runs GPU code without a GPU, for tests: an emulation of TVM's CUDA runtime (runtime.cc).

Only the device is emulated. Everything else is as on a machine with a GPU, from the target that its
driver describes to the library in the artifact. The host's compiler compiles kernels from the CUDA
source that nvcc would get. `install` changes the process for good, so tests that use it run in a
process of their own. Every Python process started with `environment` installs it, including the
processes of a search.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from needle_runtime import cuda_driver, memory
from needle_runtime._tvm import ffi
from needle_runtime.target import cublas, gpu
from needle_runtime.target.gpu import Gpu
from needle_tvm.target import nvcc
from tests import ROOT
from tests.needle_tvm.emulated_gpu import ptx

HERE = Path(__file__).resolve().parent

CUDA = ROOT / "src" / "cuda" / "emulated"  # needle's emulated CUDA runtime
BUILD = ROOT / "build" / "emulated"
CUBLAS = BUILD / "libcublas.so.13"

GPU = Gpu(
    index=0,
    name="emulated",
    major=9,
    minor=0,
    threads_per_block=1024,
    shared_bytes=49152,
    shared_bytes_optin=232448,
    registers=65536,
    warp=32,
    multiprocessors=132,
    l2_bytes=50 << 20,
)

# Dynamic shared memory is one block of the largest possible size.
_DYNAMIC = re.compile(r"extern __shared__ ((?:\w+\(\d+\) )?)(\w+) (\w+)\[\];")

_KERNEL = re.compile(r'^extern "C" __global__ void [^{;]*?(\w+)\(([^)]*)\);$', re.MULTILINE)


def compiler() -> str | None:
    """The C++ compiler, or None if there is none."""
    return shutil.which("g++") or shutil.which("c++")


def _compile(sources: list[Path], output: Path, *options: str) -> None:
    command = [str(compiler()), "-std=c++17", "-fPIC", "-shared", "-w", f"-I{CUDA}", *options]
    done = subprocess.run(
        [*command, "-o", str(output), *map(str, sources)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{output.name}: {done.stderr[:2000]}")


def _fresh(library: Path) -> Path:
    """A path for this process's build of the library, as others may be compiling the same one."""
    BUILD.mkdir(parents=True, exist_ok=True)
    return library.with_suffix(f".{os.getpid()}.tmp")


def _package(name: str) -> Path:
    """Where a package is installed, which tests/power has outside of the environment it runs in."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def build() -> Path:
    """The path of the emulated runtime, compiled again if its sources have changed."""
    sources = [HERE / "runtime.cc", HERE / "driver.cc", CUDA / "emulated.cc", CUDA / "threads.cc"]
    text = b"".join(
        path.read_bytes() for path in [*sources, HERE / "graphs.h", *sorted(CUDA.glob("*.h"))]
    )
    library = BUILD / f"tvm-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not library.is_file():
        fresh = _fresh(library)
        tvm, tvm_ffi = (_package(name) / "include" for name in ("tvm", "tvm_ffi"))
        folders = (HERE, HERE / "headers", tvm, tvm_ffi, tvm_ffi / "dlpack")
        _compile(sources, fresh, "-O1", *(f"-I{folder}" for folder in folders))
        fresh.replace(library)
    return library


def build_cublas() -> Path:
    """The path of a cuBLAS for the emulated GPU, with the real library's soname."""
    fresh = _fresh(CUBLAS)
    _compile([HERE / "cublas.cc"], fresh, "-O1", f"-I{HERE}", f"-Wl,-soname,{CUBLAS.name}")
    return fresh.replace(CUBLAS)


@functools.cache
def _headers() -> bytes:
    """The contents of the headers, so that a kernel compiled with other headers is not reused."""
    paths = [*(HERE / "headers").glob("*.h"), *CUDA.glob("*.h"), ROOT / "src/common/scalar.h"]
    return b"".join(path.read_bytes() for path in sorted(paths))


def compile_cubin(source: str, arch: str) -> tuple[bytes, list[nvcc.Resources]]:
    """Compile a CUDA source to code of the host; replaces `nvcc.compile_cubin`."""
    kernels = _KERNEL.findall(source)
    cpp = ptx.translated(source)
    begin = "needle::ptx::begin_thread(); " if cpp != source else ""
    head = '#include "ptx.h"\n' if cpp != source else ""
    calls = "\n".join(
        f'extern "C" void run_{name}(void* p) '
        f"{{ {begin}void** a = (void**)p; {name}({_given(types)}); }}"
        for name, types in kernels
    )
    cpp = _DYNAMIC.sub(rf"__shared__ \1\2 \3[{GPU.shared_bytes_optin} / sizeof(\2)];", cpp)
    # C++ wants the alignment first.
    cpp = re.sub(r"__shared__ ((?:alignas|__align__)\(\d+\))", r"\1 __shared__", cpp)
    text = f"{head}{cpp}\n{calls}\n"
    key = hashlib.sha256(text.encode() + _headers()).hexdigest()[:24]
    library = BUILD / f"kernels-{key}.so"
    if not library.is_file():
        fresh = _fresh(library)
        written = fresh.with_suffix(".cc")
        written.write_text(text)
        _compile([written], fresh, "-O1", f"-I{HERE / 'headers'}", f"-I{ROOT / 'src/common'}")
        fresh.replace(library)
        written.unlink()
    return library.read_bytes(), [nvcc.Resources(name, 1, 0, 0, 0) for name, _ in kernels]


def _given(parameters: str) -> str:
    """The arguments of a call, each read through a pointer in `a`."""
    types = [p.strip().rpartition(" ")[0] for p in parameters.split(",") if p.strip()]
    plain = [re.sub(r"__restrict__|\bconst\b", "", each).strip() for each in types]
    return ", ".join(f"*({each}*)a[{i}]" for i, each in enumerate(plain))


@functools.cache
def load() -> ctypes.CDLL:
    """Load the emulated runtime. It needs TVM's library, so it is loaded only when it is used."""
    ffi.load_ffi()
    return ctypes.CDLL(str(build()), ctypes.RTLD_GLOBAL)


def _cublas_places() -> Iterator[str]:
    """Replaces `cublas.places`: the emulated one, if it is built, which needs the runtime."""
    if CUBLAS.is_file():
        load()
        yield str(CUBLAS)


def _load_runtime() -> Any:
    """Replaces `ffi.load_cuda_runtime`."""
    load()
    return ffi.load_ffi()


def environment() -> dict[str, str]:
    """Variables that give a Python process a GPU from its start; see site/sitecustomize.py."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(HERE / "site"), str(ROOT), *filter(None, before)]
    return {"PYTHONPATH": os.pathsep.join(path)}


def install() -> None:
    """Give this process a GPU. Code that uses it without needle_tvm calls `load`."""
    gpu.gpus = lambda: (GPU,)  # type: ignore[assignment]
    gpu.why_none = lambda: ""  # type: ignore[assignment]
    nvcc.compile_cubin = compile_cubin
    nvcc.find = lambda: "emulated"
    nvcc.version = lambda: "0.0"  # type: ignore[assignment]
    cuda_driver.library = load  # type: ignore[assignment]
    cublas.places = _cublas_places
    memory.load_cuda_runtime = _load_runtime
