"""The features of this machine's processor, named as in LLVM and read from the processor itself.

On x86, a native module executes the instruction CPUID; on Arm, Linux passes the features to every
process (getauxval). Without either, /proc/cpuinfo is read. That file may be missing, and under an
emulator it may describe another processor. If that processor is of another architecture, its
features are not used.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import platform
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Processor(NamedTuple):
    """A processor's `model` ("" if unknown), and its `features` (None if unknown)."""

    model: str
    features: frozenset[str] | None


class Vectors(NamedTuple):
    """The vector registers that a feature adds: the `bytes` of each, and their `number`."""

    bytes: int
    number: int


class _Bit(NamedTuple):
    """A feature of x86: its bit in CPUID, Linux's name for it in /proc/cpuinfo if that differs,
    the `vectors` that it adds, and whether it `fuses` multiplications with additions."""

    leaf: tuple[int, int]
    register: int  # the number of EAX, EBX, ECX or EDX
    bit: int
    saved: int = 0  # bits of XCR0: registers that the operating system must save
    cpuinfo: str | None = None
    vectors: Vectors | None = None
    fuses: bool = False


class _Hwcap(NamedTuple):
    """A feature of Arm: its word (AT_HWCAP or AT_HWCAP2) and bit in Linux's <asm/hwcap.h>. Other
    fields are as for x86."""

    word: int
    bit: int
    cpuinfo: str | None = None
    vectors: Vectors | None = None
    fuses: bool = False


_YMM, _ZMM, _TILES, _EGPR = 0x6, 0xE6, 0x60000, 0x80000
_1, _7, _7_1, _AMD = (1, 0), (7, 0), (7, 1), (0x80000001, 0)
_A, _B, _C, _D = range(4)

# Intel's and AMD's manuals, instruction CPUID.
X86 = {
    "sse3": _Bit(_1, _C, 0, cpuinfo="pni"),
    "ssse3": _Bit(_1, _C, 9),
    "sse4.1": _Bit(_1, _C, 19, cpuinfo="sse4_1"),
    "sse4.2": _Bit(_1, _C, 20, cpuinfo="sse4_2"),
    "sse4a": _Bit(_AMD, _C, 6),
    "popcnt": _Bit(_1, _C, 23),
    "lzcnt": _Bit(_AMD, _C, 5, cpuinfo="abm"),
    "avx": _Bit(_1, _C, 28, _YMM, vectors=Vectors(32, 16)),
    "f16c": _Bit(_1, _C, 29, _YMM),
    "fma": _Bit(_1, _C, 12, _YMM, fuses=True),
    "fma4": _Bit(_AMD, _C, 16, _YMM),
    "xop": _Bit(_AMD, _C, 11, _YMM),
    "tbm": _Bit(_AMD, _C, 21),
    "avx2": _Bit(_7, _B, 5, _YMM),
    "bmi": _Bit(_7, _B, 3, cpuinfo="bmi1"),
    "bmi2": _Bit(_7, _B, 8),
    "movbe": _Bit(_1, _C, 22),
    "avx512f": _Bit(_7, _B, 16, _ZMM, vectors=Vectors(64, 32), fuses=True),
    "avx512bw": _Bit(_7, _B, 30, _ZMM),
    "avx512cd": _Bit(_7, _B, 28, _ZMM),
    "avx512dq": _Bit(_7, _B, 17, _ZMM),
    "avx512vl": _Bit(_7, _B, 31, _ZMM),
    "avx512vnni": _Bit(_7, _C, 11, _ZMM, cpuinfo="avx512_vnni"),
    "avx512bf16": _Bit(_7_1, _A, 5, _ZMM, cpuinfo="avx512_bf16"),
    "avx512fp16": _Bit(_7, _D, 23, _ZMM, cpuinfo="avx512_fp16"),
    "avx512ifma": _Bit(_7, _B, 21, _ZMM),
    "avx512vbmi": _Bit(_7, _C, 1, _ZMM),
    "avx512vbmi2": _Bit(_7, _C, 6, _ZMM, cpuinfo="avx512_vbmi2"),
    "avx512bitalg": _Bit(_7, _C, 12, _ZMM, cpuinfo="avx512_bitalg"),
    "avx512vpopcntdq": _Bit(_7, _C, 14, _ZMM, cpuinfo="avx512_vpopcntdq"),
    "avxvnni": _Bit(_7_1, _A, 4, _YMM, cpuinfo="avx_vnni"),
    "avxifma": _Bit(_7_1, _A, 23, _YMM, cpuinfo="avx_ifma"),
    "gfni": _Bit(_7, _C, 8),
    "vaes": _Bit(_7, _C, 9, _YMM),
    "vpclmulqdq": _Bit(_7, _C, 10, _YMM),
    "amx-tile": _Bit(_7, _D, 24, _TILES, cpuinfo="amx_tile"),
    "amx-bf16": _Bit(_7, _D, 22, _TILES, cpuinfo="amx_bf16"),
    "amx-int8": _Bit(_7, _D, 25, _TILES, cpuinfo="amx_int8"),
    "egpr": _Bit(_7_1, _D, 21, _EGPR, cpuinfo="apx"),
}

_HWCAP, _HWCAP2 = 16, 26
ARM = {
    "neon": _Hwcap(_HWCAP, 1, cpuinfo="asimd", vectors=Vectors(16, 32), fuses=True),
    "lse": _Hwcap(_HWCAP, 8, cpuinfo="atomics"),
    "fullfp16": _Hwcap(_HWCAP, 10, cpuinfo="asimdhp"),
    "dotprod": _Hwcap(_HWCAP, 20, cpuinfo="asimddp"),
    "sve": _Hwcap(_HWCAP, 22),
    "sve2": _Hwcap(_HWCAP2, 1),
    "i8mm": _Hwcap(_HWCAP2, 13),
    "bf16": _Hwcap(_HWCAP2, 14),
}

# Features whose presence is checked when an artifact is loaded: those that LLVM uses by default.
FEATURES: dict[str, _Bit | _Hwcap] = {**X86, **ARM}
WIDEST = max(row.vectors.bytes for row in FEATURES.values() if row.vectors is not None)

_X86, _ARM = ("x86_64", "AMD64", "i686"), ("aarch64", "arm64")


@functools.cache
def processor() -> Processor:
    """Return this machine's processor."""
    machine = platform.machine()
    if machine in _X86 and (found := _by_cpuid()) is not None:
        return found
    text = _cpuinfo_text()
    if machine in _ARM and (features := _by_auxiliary_vector()) is not None:
        return Processor(by_cpuinfo(text, machine).model, features)
    return by_cpuinfo(text, machine)


def of_cpuid(cpuid: Any, enabled: int) -> Processor:
    """Return the processor with these CPUID answers; the system saves the registers `enabled`."""
    cpuid = functools.cache(cpuid)  # in a virtual machine the hypervisor answers, which is slow
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
    """Return the processor that the `text` of /proc/cpuinfo describes, if it fits the `machine`."""
    rows: Mapping[str, _Bit | _Hwcap] = X86 if machine in _X86 else ARM
    key = "flags" if machine in _X86 else "Features"
    lines = dict(
        (name.strip(), value.strip())
        for name, _, value in (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    )
    if key not in lines:
        return Processor("", None)
    flags = set(lines[key].split())
    known = frozenset(name for name, row in rows.items() if (row.cpuinfo or name) in flags)
    return Processor(lines.get("model name", ""), known)


def _by_cpuid() -> Processor | None:
    try:
        native = importlib.import_module("needle_runtime.target._cpuid")
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
    return frozenset(name for name, row in ARM.items() if ask(row.word) >> row.bit & 1)


def _cpuinfo_text() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
