"""Names of the element types, and the rules for result dtypes.

A dtype is represented by its name ("float32"). Names compare and hash fast, need no NumPy extension
for types that NumPy lacks, and are accepted by `np.dtype`. docs/dtypes.md lists the rules.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

# These dtypes are stored in two bytes, and computed and accumulated in float32. bfloat16 comes from
# ml_dtypes, whose import makes the name known to np.dtype.
HALVES = ("float16", "bfloat16")
FLOATING = ("float32", "float64", *HALVES)
# These dtypes are stored in one or two bytes and computed in int32; the low bits of a result are
# kept.
SMALL_INTEGER = ("int8", "uint8", "int16", "uint16")
INTEGER = ("int32", "int64", *SMALL_INTEGER)
DTYPES = (*FLOATING, *INTEGER, "bool")
ITEMSIZE = {name: np.dtype(name).itemsize for name in DTYPES}
_NAME_OF = {np.dtype(name): name for name in DTYPES}  # NumPy takes microseconds to build a name

# Float-valued functions (exp, true division, mean) compute non-float inputs in this type.
FLOAT_OF_INTEGER = "float64"


def dtype_name(dtype: Any) -> str:
    """Return the canonical name of `dtype` (a name, a NumPy dtype or scalar type, or a Python
    type).

    Raises TypeError for types that needle does not store.
    """
    if type(dtype) is str and dtype in ITEMSIZE:
        return dtype
    if isinstance(dtype, np.dtype) and dtype in _NAME_OF:
        return _NAME_OF[dtype]
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if dtype is None or name not in ITEMSIZE:
        raise TypeError(f"dtype {name!r} is not supported; needle stores {', '.join(DTYPES)}")
    return name


def result_type(a: str, b: str) -> str:
    """Return the dtype of an arithmetic operation between arrays of the dtypes `a` and `b`.

    This is NumPy's rule. bfloat16, which NumPy lacks, follows float16; float16 with bfloat16 gives
    float32, because neither can represent all values of the other.
    """
    if a == b:
        return a
    if a in HALVES and b in HALVES:
        return "float32"
    known = ["float16" if dtype == "bfloat16" else dtype for dtype in (a, b)]
    name = np.result_type(*known).name
    return "bfloat16" if name == "float16" and "bfloat16" in (a, b) else name


def is_floating(dtype: str) -> bool:
    """Return whether the dtype is floating-point."""
    return dtype in FLOATING


def is_half(dtype: str) -> bool:
    """Return whether the dtype is float16 or bfloat16."""
    return dtype in HALVES


def compute_dtype(dtype: str) -> str:
    """Return the dtype in which `dtype` is computed and accumulated: float32 for float16 and
    bfloat16, int32 for integers of 8 and 16 bits."""
    if dtype in HALVES:
        return "float32"
    return "int32" if dtype in SMALL_INTEGER else dtype


def is_narrow(dtype: str) -> bool:
    """Return whether `dtype` is computed in a wider dtype, as half precision and integers of 8 and
    16 bits are."""
    return compute_dtype(dtype) != dtype


def finfo(dtype: str) -> Any:
    """Return np.finfo of a floating `dtype`, including bfloat16."""
    return ml_dtypes.finfo(dtype)


def _odd(x: Any) -> Any:
    """Truncate x (float64 or integers) to float32, and set the last bit if the result is inexact.

    The result and x are on the same side of every half-precision number and of every midpoint
    between two such numbers. So rounding the result to half precision rounds x once (round to odd:
    Boldo and Melquiond 2008, "Emulation of a FMA and correctly rounded sums").
    """
    exact = x.astype(np.longdouble)
    out = np.atleast_1d(x.astype(np.float32))
    back = out.astype(np.longdouble)
    bits = out.view(np.uint32)
    bits -= np.abs(back) > np.abs(exact)
    bits |= (back < exact) | (back > exact)
    return out.reshape(x.shape)


def astype(x: Any, dtype: str) -> Any:
    """Convert a NumPy array `x` to `dtype` like x.astype(dtype), but round only once from any
    dtype. Floats out of range become infinite.

    ml_dtypes converts to bfloat16 through float32, so it rounds twice; nor does it support all
    types.
    """
    if x.dtype == np.dtype(dtype):  # a dtype's name does not show swapped bytes
        return x
    name = x.dtype.name
    if name == "bfloat16":
        x = x.astype(np.float32)
    elif dtype == "bfloat16" and name in ("float64", *INTEGER):
        x = _odd(x)
    return x.astype(dtype)
