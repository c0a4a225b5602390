"""Strided arrays on devices: the native CPU, the NumPy reference, and CUDA if it is built.

An `NDArray` is a strided view with NumPy's indexing. A `Device` loads its kernels when it is first
used. The kernels are a module of functions over views; `cpu`, `cpu_numpy` and `cuda` have the same
functions under the same names. `cpu_numpy` is the reference for tests of the native kernels, so its
code is short and obviously right.

Movement, comparison, bitwise operations, `+ - * / // %`, `fmod`, `sqrt`, `square`, `reciprocal`,
`floor`, `ceil`, `round`, `trunc`, `abs` and `sign` give the same bits on every device. `accuracy`
bounds the errors of all other functions, and docs/dtypes.md shows its table. `sum` and `prod` use a
wider accumulator: float64 for float32.
"""

from .creation import empty, from_dlpack, full, ones, where, zeros
from .dtypes import DTYPES, dtype_name, is_floating, result_type
from .ndarray import (
    Device,
    DeviceLike,
    NDArray,
    all_devices,
    array,
    cpu,
    cpu_numpy,
    cuda,
    default_device,
)
from .threads import get_num_threads, set_num_threads

__all__ = [
    "DTYPES",
    "Device",
    "DeviceLike",
    "NDArray",
    "all_devices",
    "array",
    "cpu",
    "cpu_numpy",
    "cuda",
    "default_device",
    "dtype_name",
    "empty",
    "from_dlpack",
    "full",
    "get_num_threads",
    "is_floating",
    "ones",
    "result_type",
    "set_num_threads",
    "where",
    "zeros",
]
