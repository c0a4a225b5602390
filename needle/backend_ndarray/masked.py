"""Refuse masked arrays: needle's arrays have no mask, so masked elements would become data."""

from __future__ import annotations

from typing import Any

import numpy as np


def refuse_masked(values: Any, what: str) -> None:
    """Raise TypeError, with a message that begins with `what`, if `values` is or contains a masked
    array."""
    if type(values) is np.ndarray:
        return
    if isinstance(values, np.ndarray):
        # A check for NumPy's class is not enough, because other libraries have masked arrays too.
        if hasattr(values, "mask"):
            raise TypeError(
                f"{what}: {type(values).__name__} has a mask, which a tensor cannot keep; give "
                "x.filled(value), or x.data if the mask does not matter"
            )
    elif isinstance(values, (list, tuple)):
        kinds = set(map(type, values))  # usually one type, so a long list of numbers is cheap
        if any(issubclass(kind, (np.ndarray, list, tuple)) for kind in kinds):
            for value in values:
                refuse_masked(value, what)


def as_numpy(values: Any, what: str) -> np.ndarray[Any, Any]:
    """Return np.asarray(`values`), but raise TypeError as in `refuse_masked` instead of dropping a
    mask. The message begins with `what`."""
    refuse_masked(values, what)
    return np.asarray(values)
