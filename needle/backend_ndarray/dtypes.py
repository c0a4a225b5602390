"""Names of the element types, and what each operation makes of them.

A dtype is its name ("float32"): names compare and hash fast, need no NumPy extension for types that
NumPy lacks, and are what `np.dtype` accepts. Promotion between arrays is NumPy's `result_type`;
Python scalars are weak: they only change the dtype when they are of a higher kind
(int array + float scalar -> float64, float32 array + any real scalar -> float32).
"""

from __future__ import annotations

from typing import Any

import numpy as np

FLOATING = ("float32", "float64")
INTEGER = ("int32", "int64")
DTYPES = (*FLOATING, *INTEGER, "bool")
ITEMSIZE = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}

# Non-float input to a float-valued function (exp, true division, mean) is computed in this type.
FLOAT_OF_INTEGER = "float64"


def dtype_name(dtype: Any) -> str:
    """The canonical name of `dtype` (a name, a NumPy dtype or scalar type, or a Python type).

    Raises TypeError for types needle does not store.
    """
    if type(dtype) is str and dtype in ITEMSIZE:
        return dtype
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if dtype is None or name not in ITEMSIZE:
        raise TypeError(f"dtype {name!r} is not supported; needle stores {', '.join(DTYPES)}")
    return name


def result_type(a: str, b: str) -> str:
    """The dtype of an arithmetic operation between arrays of dtypes `a` and `b` (NumPy's rule)."""
    return a if a == b else np.result_type(a, b).name


def is_floating(dtype: str) -> bool:
    """True for the real floating-point dtypes."""
    return dtype in FLOATING
