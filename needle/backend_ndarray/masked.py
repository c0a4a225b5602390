"""Refusal of masked arrays: needle's arrays have no mask, so hidden elements would become data."""

from __future__ import annotations

from typing import Any

import numpy as np


def refuse_masked(values: Any, what: str) -> None:
    """Raise a TypeError, beginning with `what`, for a masked array, also in nested lists."""
    if type(values) is np.ndarray:
        return
    if isinstance(values, np.ndarray):
        # Checking for NumPy's class is not enough: other libraries have masked arrays too.
        if hasattr(values, "mask"):
            raise TypeError(
                f"{what}: {type(values).__name__} has a mask, which a tensor cannot keep; give "
                "x.filled(value), or x.data where the mask does not matter"
            )
    elif isinstance(values, (list, tuple)):
        kinds = set(map(type, values))  # usually one, so that a long list of numbers costs little
        if any(issubclass(kind, (np.ndarray, list, tuple)) for kind in kinds):
            for value in values:
                refuse_masked(value, what)


def as_numpy(values: Any, what: str) -> np.ndarray[Any, Any]:
    """np.asarray(values), which would drop a mask silently; TypeError as in `refuse_masked`."""
    refuse_masked(values, what)
    return np.asarray(values)
