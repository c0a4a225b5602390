"""The dtype rules for Python scalars and array-likes; the array library has the rules for
arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backend_ndarray as nd
from ..backend_ndarray import DeviceLike, NDArray
from ..backend_ndarray.dtypes import is_floating
from ..backend_ndarray.masked import as_numpy


def scalar_dtype(dtype: str, scalar: bool | int | float) -> str:
    """Return the result's dtype for an op on an array of `dtype` and a Python scalar. Only a scalar
    of a higher kind changes the dtype."""
    if isinstance(scalar, float) and not is_floating(dtype):
        return "float64"
    if isinstance(scalar, int) and not isinstance(scalar, bool) and dtype == "bool":
        return "int64"
    return dtype


def holds(dtype: str, scalar: bool | int | float) -> bool:
    """Return whether a number is in the range of `dtype`; True for dtypes other than integers."""
    if dtype == "bool" or is_floating(dtype):
        return True
    bounds = np.iinfo(dtype)
    return bool(bounds.min <= scalar <= bounds.max)


def checked_scalar(name: str, scalar: bool | int | float, dtype: str) -> None:
    """Raise OverflowError, as NumPy does, if a Python integer is out of range for an integer
    dtype."""
    if not holds(dtype, scalar):
        raise OverflowError(f"{name}: Python integer {scalar} is out of bounds for {dtype}")


def value_in(name: str, value: bool | int | float, dtype: str) -> bool | int | float:
    """Return `value`, which the op `name` stores in an array of `dtype`, converted to that dtype.

    Raises TypeError if value is not a Python number. Raises ValueError if it is outside the integer
    dtype's range.
    """
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{name}: value is a {type(value).__name__}, not a Python number")
    if is_floating(dtype):
        return value
    if dtype == "bool":
        return bool(value)
    bounds = np.iinfo(dtype)
    if not bounds.min <= value <= bounds.max:  # also refuses NaN
        raise ValueError(f"{name}: value {value} is outside the range of {dtype} numbers")
    return int(value)


def as_ndarray(array: Any, device: DeviceLike | None, dtype: Any) -> NDArray:
    """Return the NDArray for a Tensor made from `array` (see Tensor)."""
    if isinstance(array, NDArray):
        array = array if device is None else array.to(device)
        return array if dtype is None else array.astype(dtype, copy=False)
    if not isinstance(array, (np.ndarray, np.generic)) and hasattr(array, "__dlpack__"):
        return as_ndarray(nd.from_dlpack(array), device, dtype)
    kept = isinstance(array, (np.ndarray, np.generic))
    values = as_numpy(array, "tensor")
    if dtype is None:
        if values.dtype == np.float64 and not kept:
            dtype = "float32"
        else:
            dtype = values.dtype
    return nd.array(values, dtype=dtype, device=device)
