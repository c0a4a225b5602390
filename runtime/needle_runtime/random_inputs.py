"""Random inputs for an artifact, for use without real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from needle_runtime.artifact import Artifact
from needle_runtime.artifact.bfloat16 import dtype_named, is_bfloat16
from needle_runtime.artifact.sizes import shape_at
from needle_runtime.errors import UsageError


def random_inputs(
    artifact: Artifact, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> list[np.ndarray[Any, Any]]:
    """Return arrays that fit the signature of `artifact`, one per input. `sizes` gives the
    sizes of dims by name; other dims have their least size.

    Floats are standard normal. Integers and indices are zeros and ones, or only zeros if 1 is not
    a valid index. Raises UsageError for a `seed` that is not an integer of at least 0, and for
    a size that the artifact does not allow.
    """
    if type(seed) is not int or seed < 0:
        raise UsageError(f"seed={seed!r}: must be an integer of at least 0")
    chosen = _sizes(artifact, sizes or {})
    rng = np.random.default_rng(seed)
    arrays = []
    for spec in artifact.main.inputs:
        dtype, shape = dtype_named(spec.dtype), shape_at(spec.shape, chosen)
        if spec.range is None and (dtype.kind == "f" or is_bfloat16(dtype)):
            arrays.append(rng.standard_normal(shape).astype(dtype))
        else:
            last = 1 if spec.range is None else shape_at(spec.range, chosen)[1]
            arrays.append(rng.integers(0, min(1, max(0, last)) + 1, shape).astype(dtype))
    return arrays


def _sizes(artifact: Artifact, given: Mapping[str, int]) -> dict[str, int]:
    """Return a size for each dim of the artifact."""
    dims = {dim.name: dim for dim in artifact.main.dims}
    for name, size in given.items():
        if name not in dims:
            known = ", ".join(dims) or "none"
            raise UsageError(f"size {name}={size}: the artifact has no such dim; they are {known}")
        if not dims[name].allows(size):
            raise UsageError(f"size {name}={size}: {dims[name]}")
    return {name: given.get(name, dim.min) for name, dim in dims.items()}
