"""Strided arrays on devices: the native CPU, the NumPy reference, and CUDA where it is built."""

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
