"""This machine's NVIDIA GPUs, as the CUDA driver describes them. This module imports neither TVM
nor needle.

`needle_tvm.target.spec` and the runtime use it. Names and numbers of attributes are as in cuda.h
(`CUdevice_attribute`), an ABI that only grows.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from dataclasses import dataclass

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NAME_BYTES = 256
_NONE = "no CUDA device was found on this machine"

SHARED_BYTES = 48 << 10  # shared memory of a block on any GPU, without opting in

_ATTRIBUTES = {
    "threads_per_block": 1,  # CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    "shared_bytes": 8,  # ..._MAX_SHARED_MEMORY_PER_BLOCK
    "warp": 10,  # ..._WARP_SIZE
    "registers": 12,  # ..._MAX_REGISTERS_PER_BLOCK
    "multiprocessors": 16,  # ..._MULTIPROCESSOR_COUNT
    "l2_bytes": 38,  # ..._L2_CACHE_SIZE
    "shared_bytes_optin": 97,  # ..._MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    "major": 75,  # ..._COMPUTE_CAPABILITY_MAJOR
    "minor": 76,  # ..._COMPUTE_CAPABILITY_MINOR
}


@dataclass(frozen=True)
class Gpu:
    """One GPU. A block may use `shared_bytes` by default, `shared_bytes_optin` if it opts in."""

    index: int
    name: str
    major: int
    minor: int
    threads_per_block: int
    shared_bytes: int
    shared_bytes_optin: int
    registers: int
    warp: int
    multiprocessors: int
    l2_bytes: int

    @property
    def arch(self) -> str:
        """The architecture as nvcc names it, such as "sm_90"."""
        return f"sm_{self.major}{self.minor}"


def gpus() -> tuple[Gpu, ...]:
    """Return every GPU this process may use, in the driver's order."""
    return _found()[0]


def why_none() -> str:
    """Return the reason why `gpus` is empty, for an error message; "" if it is not empty."""
    return _found()[1]


def capability(arch: str) -> int:
    """Return the number of an architecture: 90 for "sm_90" and "sm_90a"; 0 if it has none."""
    return int((re.findall(r"\d+", arch) or ["0"])[0])


def runs(arch: str, gpu: Gpu) -> bool:
    """Return whether the GPU runs machine code for `arch`: same major version, no later minor one.

    Code for an "a" architecture (sm_90a) runs only on exactly that architecture. See the CUDA C++
    Programming Guide, "Binary compatibility".
    """
    number = capability(arch)
    if arch.endswith("a"):
        return number == 10 * gpu.major + gpu.minor
    return number // 10 == gpu.major and number % 10 <= gpu.minor


@functools.cache
def _found() -> tuple[tuple[Gpu, ...], str]:
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return (), _NONE
    code = driver.cuInit(0)
    count = ctypes.c_int()
    if code == 0:
        code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code != 0:
        return (), f"{_NONE} (driver error {code})"
    found = tuple(_describe(driver, index) for index in range(count.value))
    return found, "" if found else _NONE


def _describe(driver: ctypes.CDLL, index: int) -> Gpu:
    device, value = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _check(driver.cuDeviceGet(ctypes.byref(device), index), index)
    _check(driver.cuDeviceGetName(name, _NAME_BYTES, device), index)
    facts = {}
    for field, number in _ATTRIBUTES.items():
        _check(driver.cuDeviceGetAttribute(ctypes.byref(value), number, device), index)
        facts[field] = value.value
    return Gpu(index=index, name=name.value.decode(errors="replace"), **facts)


def _check(code: int, index: int) -> None:
    if code != 0:
        raise OSError(f"CUDA device {index}: the driver answers with error {code}")
