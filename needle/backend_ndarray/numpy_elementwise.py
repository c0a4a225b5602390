"""The elementwise kernels of the reference device, and helpers for operands and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import numpy_functions
from .dtypes import (
    FLOAT_OF_INTEGER,
    FLOATING,
    astype,
    compute_dtype,
    dtype_name,
    is_half,
    result_type,
)
from .indexing import compact_strides
from .numpy_view import Buffer, View

Scalar = bool | int | float
Array = np.ndarray[Any, Any]


def own(x: Any) -> View:
    """Copy x to new compact memory, and return a view of the copy."""
    x = np.asarray(x)
    x = np.array(x, dtype=dtype_name(x.dtype), order="C", copy=True)
    return View(Buffer(x.reshape(-1)), x.shape, compact_strides(x.shape), 0)


def scalar(value: Scalar, dtype: str) -> Array:
    if is_half(dtype):
        return astype(np.asarray(float(value)), dtype)
    return np.full((), value, dtype=dtype)


def wide(x: Array) -> Array:
    """Return a half-precision array as float32, the dtype it is computed in. Other arrays are
    unchanged."""
    return astype(x, "float32") if is_half(x.dtype.name) else x


def narrow(x: Any, dtype: str) -> Any:
    """Round a float32 result to `dtype` if that is half precision. Other results are unchanged."""
    return astype(x, dtype) if is_half(dtype) and x.dtype == np.float32 else x


def _floating(x: Any) -> Any:
    """Return the operand of a float-valued function: integers and bools become float64."""
    return x.astype(FLOAT_OF_INTEGER) if x.dtype.name not in FLOATING else x


def _not_of_bools(out: Any, *dtypes: str) -> Any:
    """Return `out`, the result of a NumPy function. Raises TypeError if the function turned bools
    into int8, as np.power does."""
    if out.dtype == np.int8 and "int8" not in dtypes:
        raise TypeError("the function is not defined for bool")
    return out


def _unary(fn: Callable[[Any], Any], floating: bool = False) -> Callable[[View], View]:
    def kernel(x: View) -> View:
        with np.errstate(all="ignore"):
            operand = wide(_floating(x.np) if floating else x.np)
            return own(narrow(_not_of_bools(fn(operand), x.dtype), x.dtype))

    return kernel


negative = _unary(np.negative)
abs = _unary(np.absolute)
sign = _unary(np.sign)
relu = _unary(lambda x: np.maximum(x, np.zeros((), x.dtype)))
square = _unary(np.square)
floor = _unary(np.floor)
ceil = _unary(np.ceil)
round = _unary(numpy_functions.rint)
trunc = _unary(np.trunc)
bitwise_not = _unary(np.invert)
exp = _unary(np.exp, floating=True)
exp2 = _unary(np.exp2, floating=True)
expm1 = _unary(np.expm1, floating=True)
log = _unary(np.log, floating=True)
log2 = _unary(np.log2, floating=True)
log10 = _unary(np.log10, floating=True)
log1p = _unary(np.log1p, floating=True)
sin = _unary(np.sin, floating=True)
cos = _unary(np.cos, floating=True)
tan = _unary(np.tan, floating=True)
asin = _unary(np.arcsin, floating=True)
acos = _unary(np.arccos, floating=True)
atan = _unary(np.arctan, floating=True)
sinh = _unary(np.sinh, floating=True)
cosh = _unary(np.cosh, floating=True)
asinh = _unary(np.arcsinh, floating=True)
acosh = _unary(np.arccosh, floating=True)
atanh = _unary(np.arctanh, floating=True)
tanh = _unary(np.tanh, floating=True)
sqrt = _unary(np.sqrt, floating=True)
rsqrt = _unary(lambda x: 1 / np.sqrt(x), floating=True)
reciprocal = _unary(lambda x: 1 / x, floating=True)
sigmoid = _unary(numpy_functions.sigmoid, floating=True)
erf = _unary(numpy_functions.erf, floating=True)
erfinv = _unary(numpy_functions.erfinv, floating=True)
logical_not = _unary(np.logical_not)
isnan = _unary(np.isnan)
isfinite = _unary(np.isfinite)


def operands(a: View | Scalar, b: View | Scalar) -> tuple[Any, Any, str]:
    """Return the two operands for NumPy, and the dtype of the result ("" if NumPy determines
    it)."""
    dtypes = [v.dtype for v in (a, b) if isinstance(v, View)]
    if not any(map(is_half, dtypes)):
        return a.np if isinstance(a, View) else a, b.np if isinstance(b, View) else b, ""
    dtype = result_type(dtypes[0], dtypes[-1])
    x, y = (
        astype(v.np if isinstance(v, View) else scalar(v, dtype), compute_dtype(dtype))
        for v in (a, b)
    )
    return x, y, dtype


def _binary(fn: Callable[[Any, Any], Any]) -> Callable[[View | Scalar, View | Scalar], View]:
    def kernel(a: View | Scalar, b: View | Scalar) -> View:
        with np.errstate(all="ignore"):
            x, y, dtype = operands(a, b)
            of = [v.dtype for v in (a, b) if isinstance(v, View)]
            return own(narrow(_not_of_bools(fn(x, y), *of), dtype))

    return kernel


add = _binary(np.add)
subtract = _binary(np.subtract)
multiply = _binary(np.multiply)
divide = _binary(np.true_divide)
power = _binary(np.power)
atan2 = _binary(numpy_functions.atan2)
fmod = _binary(np.fmod)
remainder = _binary(np.remainder)
floor_divide = _binary(np.floor_divide)
maximum = _binary(np.maximum)
minimum = _binary(np.minimum)
relu_grad = _binary(numpy_functions.relu_grad)
equal = _binary(np.equal)
not_equal = _binary(np.not_equal)
less = _binary(np.less)
less_equal = _binary(np.less_equal)
greater = _binary(np.greater)
greater_equal = _binary(np.greater_equal)
logical_and = _binary(np.logical_and)
logical_or = _binary(np.logical_or)
logical_xor = _binary(np.logical_xor)
bitwise_and = _binary(np.bitwise_and)
bitwise_or = _binary(np.bitwise_or)
bitwise_xor = _binary(np.bitwise_xor)
left_shift = _binary(np.left_shift)
right_shift = _binary(np.right_shift)
