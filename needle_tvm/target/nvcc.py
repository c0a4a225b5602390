"""Compile CUDA source to machine code with the toolkit's nvcc. This module imports neither TVM nor
needle.

`lower` uses it for a model's kernels, and `tune.library` for candidates.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from needle_runtime.errors import TargetError
from needle_runtime.process.scratch import scratch_folder
from needle_tvm.errors import CudaCompilerError

_SECONDS = 600  # a large model has a hundred kernels in one source file


@dataclass(frozen=True)
class Resources:
    """A kernel's resources, as ptxas reports them: registers per thread, shared bytes, spilled
    bytes."""

    kernel: str
    registers: int
    shared: int
    spill_stores: int
    spill_loads: int


def resources(text: str) -> list[Resources]:
    """Return the kernels' resources from the output of `ptxas -v`."""
    found = []
    for part in re.split(r"Compiling entry function '", text)[1:]:
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        found.append(
            Resources(
                part.partition("'")[0],
                int(registers[1]) if registers else 0,
                int(shared[1]) if shared else 0,
                int(spills[1]) if spills else 0,
                int(spills[2]) if spills else 0,
            )
        )
    return found


def find() -> str | None:
    """Return the path of nvcc on the PATH, in $CUDA_HOME or in /usr/local/cuda, else None."""
    places = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    here = [str(Path(place, "bin", "nvcc")) for place in places if place]
    return next((path for path in map(shutil.which, ("nvcc", *here)) if path), None)


def require() -> str:
    """Return nvcc's path. Raises TargetError if there is none."""
    path = find()
    if path is None:
        raise TargetError(
            "no nvcc was found: compiling for CUDA needs the CUDA toolkit "
            "(on the PATH, in $CUDA_HOME or in /usr/local/cuda)"
        )
    return path


@functools.cache
def version() -> str:
    """Return nvcc's version, such as "13.0.88", or "none" without nvcc."""
    path = find()
    if path is None:
        return "none"
    said = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    found = re.search(r"\bV(\d+\.\d+\.\d+)", said.stdout)
    return found[1] if found else "none"


def compile_cubin(source: str, arch: str) -> tuple[bytes, list[Resources]]:
    """Compile CUDA `source` for the architecture `arch`; return machine code and the kernels'
    resources.

    Raises TargetError if there is no nvcc, and CudaCompilerError with nvcc's first errors if it
    fails.
    """
    nvcc = require()
    with scratch_folder("needle-nvcc-") as folder:
        text, code = folder / "kernels.cu", folder / "kernels.cubin"
        text.write_text(source)
        # --use_fast_math is left out: it changes the rounding of divisions and roots, and flushes
        # subnormals.
        command = [nvcc, "-std=c++17", "-O3", "-w", "-Xptxas", "-v", "-cubin", f"-arch={arch}"]
        try:
            done = subprocess.run(
                [*command, "-o", str(code), str(text)],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CudaCompilerError(f"nvcc -arch={arch} took longer than {_SECONDS} s") from None
        said = done.stderr + done.stdout
        if done.returncode != 0:
            errors = [line for line in said.splitlines() if "error" in line.lower()]
            raise CudaCompilerError(
                f"nvcc -arch={arch} failed: {'; '.join(errors[:5]) or said[-400:].strip()}"
            )
        return code.read_bytes(), resources(said)
