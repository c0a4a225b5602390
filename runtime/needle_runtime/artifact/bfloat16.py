"""Passes bfloat16 arrays between NumPy and TVM.

NumPy gets the type from ml_dtypes, but does not accept it in DLPack. So the elements are passed as
integers of the same size, and the capsule's type code is then corrected. ml_dtypes is imported only
if there is an array of such a type; other models run without it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from needle_runtime.errors import InstallError

NAME = "bfloat16"
_UINT, _BFLOAT = 1, 4  # DLPack's type codes
_CODES = {"i": 0, "u": _UINT, "f": 2, "V": _BFLOAT, "c": 5, "b": 6}  # by NumPy's kind
# The offset of the type code, by the capsule's name. In the older structure, the code follows data
# (8 bytes), device (8) and ndim (4); in the newer structure, version, context, deleter and flags
# (8 bytes each) come before these.
_CODE_OFFSETS = {b"dltensor": 20, b"dltensor_versioned": 52}

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called `name`, which may be one that ml_dtypes adds.

    Raises InstallError if NumPy does not know the name and ml_dtypes is not installed, and
    TypeError if neither knows it.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # noqa: F401  # registers its names with NumPy
    except ImportError as error:
        raise InstallError(
            f"{name!r} arrays need the package ml_dtypes ({error}): "
            "pip install 'needle-runtime[bfloat16]'"
        ) from None
    return np.dtype(name)


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` is ml_dtypes' bfloat16."""
    return dtype.kind == "V" and dtype.name == NAME  # `name` is slow, so test `kind` first


def dlpack_type(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return DLPack's type code and number of bits for a dtype."""
    return _CODES[dtype.kind], 8 * dtype.itemsize


class _Relabelled:
    """A DLPack exporter that gives the capsule of `source` another type code."""

    def __init__(self, source: Any, code: int) -> None:
        self._source, self._code = source, code

    def __dlpack__(self, max_version: Any = None, **_: Any) -> Any:
        # Each call makes a new structure, so it may be changed. NumPy treats arrays in the older
        # structure as read-only.
        try:
            capsule = self._source.__dlpack__(max_version=max_version)
        except TypeError:  # a producer older than DLPack 1.0
            capsule = self._source.__dlpack__()
        name = _name(capsule)
        address = _pointer(capsule, name) + _CODE_OFFSETS[name]
        ctypes.c_uint8.from_address(address).value = self._code
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()


def to_tensor(ffi: Any, array: np.ndarray[Any, Any]) -> Any:
    """Return a tvm_ffi tensor over a NumPy array's memory."""
    if not is_bfloat16(array.dtype):
        return ffi.from_dlpack(array)
    return ffi.from_dlpack(_Relabelled(array.view(np.uint16), _BFLOAT))


def to_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the memory of anything with `__dlpack__`.

    Raises BufferError if the value has elements but no memory, and InstallError if its dtype is
    bfloat16 and ml_dtypes is not installed.
    """
    half = str(getattr(value, "dtype", "")).endswith(NAME)
    array = np.from_dlpack(_Relabelled(value, _UINT) if half else value)
    if array.flags.owndata and array.size:  # NumPy allocated this memory, and nobody wrote to it
        raise BufferError("it has no memory")
    return array.view(dtype_named(NAME)) if half else array
