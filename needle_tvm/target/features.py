"""The features of this machine's processor, by LLVM's names, asked of the processor itself.

x86 has the instruction CPUID, by a native module; Linux tells every process on Arm (getauxval).
Where neither can be had, /proc/cpuinfo is read. It may be missing, and under an emulator it may be
that of another processor: one of another architecture is recognised and not used.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import platform
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Processor(NamedTuple):
    """A processor's `model` ("" if unknown), and its `features`, None if they are unknown."""

    model: str
    features: frozenset[str] | None


class _Bit(NamedTuple):
    leaf: tuple[int, int]
    register: int  # of EAX, EBX, ECX, EDX
    bit: int
    saved: int = 0  # bits of XCR0: registers that the operating system must save


_YMM, _ZMM, _TILES, _EGPR = 0x6, 0xE6, 0x60000, 0x80000
_1, _7, _7_1, _AMD = (1, 0), (7, 0), (7, 1), (0x80000001, 0)
_A, _B, _C, _D = range(4)

# Intel's and AMD's manuals, instruction CPUID.
X86 = {
    "sse3": _Bit(_1, _C, 0),
    "ssse3": _Bit(_1, _C, 9),
    "sse4.1": _Bit(_1, _C, 19),
    "sse4.2": _Bit(_1, _C, 20),
    "sse4a": _Bit(_AMD, _C, 6),
    "popcnt": _Bit(_1, _C, 23),
    "lzcnt": _Bit(_AMD, _C, 5),
    "avx": _Bit(_1, _C, 28, _YMM),
    "f16c": _Bit(_1, _C, 29, _YMM),
    "fma": _Bit(_1, _C, 12, _YMM),
    "fma4": _Bit(_AMD, _C, 16, _YMM),
    "xop": _Bit(_AMD, _C, 11, _YMM),
    "tbm": _Bit(_AMD, _C, 21),
    "avx2": _Bit(_7, _B, 5, _YMM),
    "bmi": _Bit(_7, _B, 3),
    "bmi2": _Bit(_7, _B, 8),
    "movbe": _Bit(_1, _C, 22),
    "avx512f": _Bit(_7, _B, 16, _ZMM),
    "avx512bw": _Bit(_7, _B, 30, _ZMM),
    "avx512cd": _Bit(_7, _B, 28, _ZMM),
    "avx512dq": _Bit(_7, _B, 17, _ZMM),
    "avx512vl": _Bit(_7, _B, 31, _ZMM),
    "avx512vnni": _Bit(_7, _C, 11, _ZMM),
    "avx512bf16": _Bit(_7_1, _A, 5, _ZMM),
    "avx512fp16": _Bit(_7, _D, 23, _ZMM),
    "avx512ifma": _Bit(_7, _B, 21, _ZMM),
    "avx512vbmi": _Bit(_7, _C, 1, _ZMM),
    "avx512vbmi2": _Bit(_7, _C, 6, _ZMM),
    "avx512bitalg": _Bit(_7, _C, 12, _ZMM),
    "avx512vpopcntdq": _Bit(_7, _C, 14, _ZMM),
    "avxvnni": _Bit(_7_1, _A, 4, _YMM),
    "avxifma": _Bit(_7_1, _A, 23, _YMM),
    "gfni": _Bit(_7, _C, 8),
    "vaes": _Bit(_7, _C, 9, _YMM),
    "vpclmulqdq": _Bit(_7, _C, 10, _YMM),
    "amx-tile": _Bit(_7, _D, 24, _TILES),
    "amx-bf16": _Bit(_7, _D, 22, _TILES),
    "amx-int8": _Bit(_7, _D, 25, _TILES),
    "egpr": _Bit(_7_1, _D, 21, _EGPR),
}

# Linux's <asm/hwcap.h>: the word that has a feature (AT_HWCAP, AT_HWCAP2), and its bit.
_HWCAP, _HWCAP2 = 16, 26
ARM = {
    "neon": (_HWCAP, 1),
    "lse": (_HWCAP, 8),
    "fullfp16": (_HWCAP, 10),
    "dotprod": (_HWCAP, 20),
    "sve": (_HWCAP, 22),
    "sve2": (_HWCAP2, 1),
    "i8mm": (_HWCAP2, 13),
    "bf16": (_HWCAP2, 14),
}

# Those features that /proc/cpuinfo calls otherwise.
_IN_CPUINFO = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "egpr": "apx",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "lse": "atomics",
}

_X86, _ARM = ("x86_64", "AMD64", "i686"), ("aarch64", "arm64")


@functools.cache
def processor() -> Processor:
    """This machine's processor."""
    machine = platform.machine()
    if machine in _X86 and (found := _by_cpuid()) is not None:
        return found
    text = _cpuinfo_text()
    if machine in _ARM and (features := _by_auxiliary_vector()) is not None:
        return Processor(by_cpuinfo(text, machine).model, features)
    return by_cpuinfo(text, machine)


def of_cpuid(cpuid: Any, enabled: int) -> Processor:
    """The processor with these answers to CPUID, where the system saves the registers `enabled`."""
    cpuid = functools.cache(cpuid)  # a virtual machine's monitor answers, which takes a while
    features = {
        name
        for name, bit in X86.items()
        if cpuid(*bit.leaf)[bit.register] >> bit.bit & 1 and enabled & bit.saved == bit.saved
    }
    brand = b"".join(struct.pack("<4I", *cpuid(0x80000002 + part, 0)) for part in range(3))
    return Processor(
        " ".join(brand.partition(b"\0")[0].decode(errors="replace").split()), frozenset(features)
    )


def by_cpuinfo(text: str, machine: str) -> Processor:
    """The processor that the text of /proc/cpuinfo describes, if it is one of a `machine`."""
    key, names = ("flags", X86) if machine in _X86 else ("Features", ARM)
    lines = dict(
        (name.strip(), value.strip())
        for name, _, value in (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    )
    if key not in lines:
        return Processor("", None)
    flags = set(lines[key].split())
    known = frozenset(name for name in names if _IN_CPUINFO.get(name, name) in flags)
    return Processor(lines.get("model name", ""), known)


def _by_cpuid() -> Processor | None:
    try:
        native = importlib.import_module("needle_tvm.target._cpuid")
    except ImportError:  # not built
        return None
    return of_cpuid(native.cpuid, native.enabled())


def _by_auxiliary_vector() -> frozenset[str] | None:
    if sys.platform != "linux":
        return None
    try:
        ask = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return None
    ask.restype, ask.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return frozenset(name for name, (word, bit) in ARM.items() if ask(word) >> bit & 1)


def _cpuinfo_text() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
