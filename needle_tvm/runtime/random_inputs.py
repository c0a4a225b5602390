"""Random inputs for an artifact whose own are not at hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle_tvm.artifact import Artifact
from needle_tvm.artifact.bfloat16 import dtype_named, is_bfloat16
from needle_tvm.errors import UsageError


def random_inputs(artifact: Artifact, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Arrays that fit the signature, one per input.

    Floats are standard normal. Integers and indices are zeros and ones, or only zeros if one is not
    a valid index. Raises UsageError for a seed that is not an integer of at least 0.
    """
    if type(seed) is not int or seed < 0:
        raise UsageError(f"seed={seed!r}: must be an integer of at least 0")
    rng = np.random.default_rng(seed)
    arrays = []
    for spec in artifact.main.inputs:
        dtype = dtype_named(spec.dtype)
        if spec.range is None and (dtype.kind == "f" or is_bfloat16(dtype)):
            arrays.append(rng.standard_normal(spec.shape).astype(dtype))
        else:
            largest = 1 if spec.range is None else min(1, max(0, spec.range[1]))
            arrays.append(rng.integers(0, largest + 1, spec.shape).astype(dtype))
    return arrays
