"""Converts the arrays that users pass into NumPy arrays, and describes them in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle_runtime.artifact import bfloat16
from needle_runtime.errors import InputError


def as_numpy(value: Any, what: str) -> np.ndarray[Any, Any]:
    """Convert `value` to an ndarray. `value` may be an array, an object with `__dlpack__`, or
    anything else that NumPy can convert.

    The memory is shared if possible; a PyTorch tensor that requires gradients is detached. Raises
    InputError, whose message begins with `what`, for a value that is not an array, for an array
    that cannot be read (sparse, or on another device), and for a masked array: NumPy would drop the
    mask and turn the hidden values into data.
    """
    if type(value) is np.ndarray:
        return value
    refusal = mask_refusal(value)
    if refusal is not None:
        raise InputError(f"{what}: {refusal}")
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return bfloat16.to_array(value)
        array = np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if getattr(value, "requires_grad", False):
            detached = value.detach()
            # While needle traces, a detached tensor still requires a gradient.
            if not detached.requires_grad:
                return as_numpy(detached, what)
        raise InputError(
            f"{what} is a {type(value).__name__} that cannot be read: {error}"
        ) from error
    if array.dtype == object:
        named = "None" if value is None else f"a value of type {type(value).__name__}"
        raise InputError(f"{what} is {named}, not an array of numbers")
    return array


def mask_refusal(value: Any) -> str | None:
    """Return why `value` must be refused if it is a masked array, or a list or tuple with one.

    Returns None if there is no mask. This is a copy of `needle.backend_ndarray.masked`, which the
    runtime cannot import.
    """
    if isinstance(value, np.ndarray):
        if type(value) is np.ndarray or not hasattr(value, "mask"):
            return None
        return (
            f"{type(value).__name__} has a mask, which a tensor cannot keep; give "
            "x.filled(value), or x.data where the mask does not matter"
        )
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))  # usually only one, so a long list of numbers costs little
        if any(issubclass(kind, (np.ndarray, list, tuple)) for kind in kinds):
            return next(filter(None, map(mask_refusal, value)), None)
    return None


def describe(shape: Sequence[object], dtype: str) -> str:
    """Return a shape and dtype as text for errors and tables, such as "float32(4, 16)"."""
    return f"{dtype}({', '.join(str(extent) for extent in shape)})"
