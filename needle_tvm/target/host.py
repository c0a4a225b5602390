"""This machine's CPU: its model and features, read from the operating system alone.

Artifacts check their required features with it; benchmarks describe the machine with it.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

# LLVM's feature names mapped to those of /proc/cpuinfo, for features that LLVM uses by default. A
# feature not listed here is not checked when an artifact is loaded: Linux does not report
# avxneconvert and avxvnniint8, which no processor has without avxifma, nor avx10.2, which none has
# without APX.
CPUINFO_NAMES = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "lzcnt": "abm",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "fma4": "fma4",
    "xop": "xop",
    "tbm": "tbm",
    "avx2": "avx2",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "movbe": "movbe",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "egpr": "apx",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "lse": "atomics",
    "sve": "sve",
    "sve2": "sve2",
}


def checkable(features: list[str]) -> list[str]:
    """Return those of LLVM's feature names whose presence `missing_features` can look up."""
    return sorted(name for name in features if name in CPUINFO_NAMES)


@functools.cache
def cpuinfo() -> tuple[str, frozenset[str]]:
    """Return model name and flags of this machine's first processor; ("", empty) if unknown."""
    model, flags = "", frozenset[str]()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor(), flags
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
    return model, flags


def missing_features(required: list[str]) -> list[str]:
    """Return those of LLVM's feature names in `required` that this machine's processor lacks.

    If the operating system does not report flags (not Linux), nothing is reported missing.
    """
    _, flags = cpuinfo()
    if not flags:
        return []
    return [name for name in required if CPUINFO_NAMES.get(name, name) not in flags]


def openblas_environment() -> dict[str, str]:
    """Return the environment with which NumPy runs at its best here.

    OpenBLAS takes processors newer than itself for much older ones, so it is told of AVX-512. Empty
    without AVX-512, where it would crash.
    """
    return {"OPENBLAS_CORETYPE": "SKYLAKEX"} if "avx512f" in cpuinfo()[1] else {}


@functools.cache
def identity() -> str:
    """Return a short digest of processor model and flags, which code for the host depends on."""
    model, flags = cpuinfo()
    text = "\0".join([platform.machine(), model, *sorted(flags)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(threads: int) -> dict[str, Any]:
    """Return the machine as JSON values, to accompany figures; `threads` is how many were used."""
    return {
        "processor": cpuinfo()[0] or "unknown",
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
