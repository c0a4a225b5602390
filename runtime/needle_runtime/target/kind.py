"""The kinds of targets, each named after TVM's code generator for it. This module imports no
compiler.

Tables of rules, passes and limits are keyed by these kinds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CPU, GPU = KINDS = "llvm", "cuda"
ARCHITECTURE = re.compile(r"sm_[1-9]\d{1,2}a?")  # of a GPU, as nvcc names them
CUBLAS = "cublas"  # among a manifest's `libraries`


def is_gpu(description: Mapping[str, Any]) -> bool:
    """Return whether a target's description, TVM's or a manifest's, is of a GPU."""
    return description.get("kind") == GPU
