"""Masked arrays are refused: arrays here have no mask, and what it hides would be data again."""

from __future__ import annotations

from typing import Any

import numpy as np


def refuse_masked(values: Any, what: str) -> None:
    """TypeError, beginning with `what`, for a masked array, also in nested lists and tuples."""
    if type(values) is np.ndarray:
        return
    if isinstance(values, np.ndarray):
        # Not isinstance of NumPy's class alone: other libraries have masked subclasses too.
        if hasattr(values, "mask"):
            raise TypeError(
                f"{what}: {type(values).__name__} has a mask, which a tensor cannot keep; give "
                "x.filled(value), or x.data where the mask does not matter"
            )
    elif isinstance(values, (list, tuple)):
        kinds = set(map(type, values))  # of most lists one: a long list of numbers costs little
        if any(issubclass(kind, (np.ndarray, list, tuple)) for kind in kinds):
            for value in values:
                refuse_masked(value, what)


def as_numpy(values: Any, what: str) -> np.ndarray[Any, Any]:
    """np.asarray(values), which drops a mask in silence; TypeError as `refuse_masked`."""
    refuse_masked(values, what)
    return np.asarray(values)
