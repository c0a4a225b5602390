"""This machine, and what code for its processor depends on.

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

from needle_tvm.target.features import FEATURES, processor

UNKNOWN = "which features this processor has cannot be known here"


def checkable(features: Iterable[str]) -> list[str]:
    """Return those of LLVM's feature names whose presence `missing_features` can look up."""
    return sorted(name for name in features if name in FEATURES)


def missing_features(required: Iterable[str]) -> list[str] | None:
    """Return those of LLVM's feature names in `required` that this machine's processor lacks.

    None if that cannot be known.
    """
    features = processor().features
    return None if features is None else [name for name in required if name not in features]


def openblas_environment() -> dict[str, str]:
    """Return the environment with which NumPy runs at its best here.

    OpenBLAS takes processors newer than itself for much older ones, so it is told of AVX-512. Empty
    without AVX-512, where it would crash.
    """
    known = "avx512f" in (processor().features or ())
    return {"OPENBLAS_CORETYPE": "SKYLAKEX"} if known else {}


@functools.cache
def identity() -> str:
    """Return a short digest of processor model and features, which code for the host depends on."""
    model, features = processor()
    text = "\0".join([platform.machine(), model, *sorted(features or ())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(threads: int) -> dict[str, Any]:
    """Return the machine as JSON values, to accompany figures; `threads` is how many were used."""
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
