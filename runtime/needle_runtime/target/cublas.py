"""Find the installed cuBLAS.

Artifacts whose matmuls use cuBLAS call it through code in their own library
(`needle_tvm/kernels/dense/gpu/cublas_gemm.cc`), which loads cuBLAS by name. Either the system's
loader finds it, or `find` has already loaded it from one of NVIDIA's wheels.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

_NAMES = ("libcublas.so.13", "libcublas.so.12")  # as in cublas_gemm.cc

MISSING = (
    f"needs cuBLAS, but neither {_NAMES[0]} nor {_NAMES[1]} was found "
    "(pip install nvidia-cublas brings it)"
)


def find() -> str | None:
    """Load cuBLAS into the process and return its name or path, or None if there is none."""
    for path in places():
        # cuBLAS needs its neighbour cublasLt, which the loader finds by name once it is loaded.
        neighbour = path.replace("libcublas.so", "libcublasLt.so")
        for library in (neighbour, path):
            try:
                ctypes.CDLL(library)
            except OSError:
                continue
            if library == path:
                return path
    return None


def places() -> Iterator[str]:
    """Yield names and paths to try: first the loader's own, then the folders of NVIDIA's wheels."""
    folders = [
        folder
        for entry in dict.fromkeys(sys.path)
        for folder in sorted(Path(entry or ".").glob("nvidia/*/lib"))
    ]
    for name in _NAMES:
        yield name
        yield from (str(folder / name) for folder in folders if (folder / name).is_file())
