"""What the figures were measured on, and when."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any


def describe(threads: int) -> dict[str, Any]:
    """The machine as JSON values; `threads` is how many of its cores the contestants used."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def processor_name() -> str:
    """The processor's name as /proc/cpuinfo gives it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def has_avx512() -> bool:
    """Whether /proc/cpuinfo lists AVX-512."""
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
