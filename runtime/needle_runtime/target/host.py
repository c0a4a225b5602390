"""This machine, and the facts about it that code for its processor depends on.

Artifacts check their required features with it; benchmarks describe the machine with it.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import platform
from collections.abc import Iterable
from typing import Any

from needle_runtime.target.features import FEATURES, processor

UNKNOWN = "this processor's features cannot be determined here"


def checkable(features: Iterable[str]) -> list[str]:
    """Return the names among `features` (LLVM's) that `missing_features` can look up."""
    return sorted(name for name in features if name in FEATURES)


def missing_features(required: Iterable[str]) -> list[str] | None:
    """Return the names in `required` (LLVM's) that this machine's processor lacks.

    Returns None if its features cannot be determined.
    """
    features = processor().features
    return None if features is None else [name for name in required if name not in features]


def openblas_environment() -> dict[str, str]:
    """Return the environment in which NumPy runs fastest here.

    OpenBLAS mistakes processors newer than itself for much older ones, so it is told about AVX-512.
    Without AVX-512 that setting would crash, so the environment is empty.
    """
    known = "avx512f" in (processor().features or ())
    return {"OPENBLAS_CORETYPE": "SKYLAKEX"} if known else {}


@functools.cache
def identity() -> str:
    """Return a short digest of the processor's model and features, which identifies this host."""
    model, features = processor()
    text = "\0".join([platform.machine(), model, *sorted(features or ())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(threads: int) -> dict[str, Any]:
    """Describe the machine as JSON values, for benchmark results; `threads` is the number used."""
    return {
        "processor": processor().model or "unknown",
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
