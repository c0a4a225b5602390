"""libneedle_runtime, called through ctypes: functions that fail raise `Failed`."""

from __future__ import annotations

import ctypes
import enum
import os
from collections.abc import Iterator, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import needle_runtime

# The library to test, if it is not the installed one.
LIBRARY_VARIABLE = "NEEDLE_TESTED_LIBRARY"


def prefix() -> Path:
    """The folder in which needle-runtime has installed its headers and libraries."""
    folders = map(Path, needle_runtime.__path__)  # two folders in an editable install
    return next(each for each in folders if (each / "lib" / "libneedle_runtime.so").is_file())


class Status(enum.IntEnum):
    """enum needle_status."""

    OK, ARTIFACT, SIGNATURE, TARGET, INPUT, WEIGHTS, FILE, USAGE, MEMORY, CODE = range(10)


class Kind(enum.IntEnum):
    """enum needle_kind."""

    INPUTS, OUTPUTS, WEIGHTS, STATE = range(4)


# enum needle_dtype
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)


class Array(ctypes.Structure):
    """struct needle_array."""

    _fields_ = (
        ("name", c_char_p),
        ("dtype", c_int),
        ("ndim", c_int32),
        ("shape", POINTER(c_int64)),
        ("data", c_void_p),
        ("bytes", c_size_t),
    )


class Options(ctypes.Structure):
    """struct needle_options."""

    _fields_ = (("size", c_size_t), ("public_key", c_char_p), ("threads", c_int))


class Failed(Exception):
    """A function returned another status than OK."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = Status(status)


SIGNATURES: dict[str, tuple[Any, ...]] = {  # result, arguments
    "version": (c_char_p,),
    "error": (c_char_p,),
    "dtype_size": (c_size_t, c_int),
    "dtype_name": (c_char_p, c_int),
    "open": (c_int, c_char_p, POINTER(Options), POINTER(c_void_p)),
    "close": (None, c_void_p),
    "count": (c_size_t, c_void_p, c_int),
    "describe": (c_int, c_void_p, c_int, c_size_t, POINTER(Array)),
    "find": (c_int, c_void_p, c_int, c_char_p, POINTER(c_size_t)),
    "load_weights": (c_int, c_void_p, c_char_p),
    "set_weights": (c_int, c_void_p, POINTER(Array), c_size_t),
    "save_state": (c_int, c_void_p, c_char_p),
    "load_state": (c_int, c_void_p, c_char_p),
    "get_state": (c_int, c_void_p, c_char_p, c_void_p, c_size_t),
    "set_state": (c_int, c_void_p, POINTER(Array), c_size_t),
    "new_call": (c_int, c_void_p, POINTER(c_void_p)),
    "free_call": (None, c_void_p),
    "set_input": (c_int, c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_int64), c_int32),
    "set_output": (c_int, c_void_p, c_char_p, c_void_p, c_size_t),
    "run": (c_int, c_void_p),
    "output": (c_int, c_void_p, c_char_p, POINTER(Array)),
}


def open_library() -> ctypes.CDLL:
    """Load the library and declare its functions."""
    path = os.environ.get(LIBRARY_VARIABLE) or prefix() / "lib" / "libneedle_runtime.so"
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, f"needle_{name}")
        function.restype, function.argtypes = result, arguments
    return library


C = open_library()


def error() -> str:
    """The text of this thread's last failure."""
    return C.needle_error().decode()


def check(status: int) -> None:
    """Raise Failed unless the status is OK."""
    if status != Status.OK:
        raise Failed(status, error())


def numpy_dtype(number: int) -> np.dtype[Any]:
    """The NumPy dtype of an enum needle_dtype."""
    name = DTYPES[number]
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def extents(shape: tuple[int, ...]) -> Any:
    """A C array of int64."""
    return (c_int64 * len(shape))(*shape)


def c_arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """A C array of struct needle_array over the memory of NumPy arrays, which must stay alive."""
    found = (Array * len(arrays))()
    for each, (name, array) in zip(found, arrays.items(), strict=True):
        assert array.flags.c_contiguous, name
        each.name, each.dtype, each.ndim = name.encode(), DTYPES.index(str(array.dtype)), array.ndim
        each.shape, each.data, each.bytes = extents(array.shape), array.ctypes.data, array.nbytes
    return found


class Program:
    """A needle_program."""

    def __init__(self, path: Any, key: Any = None, threads: int = 0) -> None:
        self.handle = c_void_p()
        chosen = Options(ctypes.sizeof(Options), None if key is None else os.fsencode(key), threads)
        check(C.needle_open(os.fsencode(path), byref(chosen), byref(self.handle)))

    def __del__(self) -> None:
        C.needle_close(self.handle)

    def arrays(self, kind: Kind) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of the arrays of a kind."""
        for index in range(C.needle_count(self.handle, kind)):
            array = Array()
            check(C.needle_describe(self.handle, kind, index, byref(array)))
            assert not array.data and array.bytes == 0
            yield array.name.decode(), DTYPES[array.dtype], tuple(array.shape[: array.ndim])

    def set_weights(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """needle_set_weights."""
        check(C.needle_set_weights(self.handle, c_arrays(arrays), len(arrays)))

    def set_state(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """needle_set_state."""
        check(C.needle_set_state(self.handle, c_arrays(arrays), len(arrays)))

    def load_weights(self, path: Any) -> None:
        """needle_load_weights."""
        check(C.needle_load_weights(self.handle, os.fsencode(path)))

    def save_state(self, path: Any) -> None:
        """needle_save_state."""
        check(C.needle_save_state(self.handle, os.fsencode(path)))

    def load_state(self, path: Any) -> None:
        """needle_load_state."""
        check(C.needle_load_state(self.handle, os.fsencode(path)))

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all arrays of the state."""
        found = {}
        for name, dtype, shape in self.arrays(Kind.STATE):
            array = np.empty(shape, numpy_dtype(DTYPES.index(dtype)))
            data = array.ctypes.data_as(c_void_p)
            check(C.needle_get_state(self.handle, name.encode(), data, array.nbytes))
            found[name] = array
        return found

    def __call__(self, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Run on inputs in order; return copies of all outputs."""
        return Call(self).on(*inputs)


class Call:
    """A needle_call. It keeps its program and the arrays that it was given."""

    def __init__(self, program: Program) -> None:
        self.program, self.handle = program, c_void_p()
        self.given: dict[str, Any] = {}
        check(C.needle_new_call(program.handle, byref(self.handle)))

    def __del__(self) -> None:
        C.needle_free_call(self.handle)

    def input(self, name: str, array: np.ndarray[Any, Any], shape: Any = ()) -> None:
        """needle_set_input, with the array's shape unless `shape` is another, or None."""
        chosen = array.shape if shape == () else shape
        numbers = None if chosen is None else extents(chosen)
        data, count = array.ctypes.data_as(c_void_p), 0 if chosen is None else len(chosen)
        check(C.needle_set_input(self.handle, name.encode(), data, array.nbytes, numbers, count))
        self.given[name] = array

    def output(self, name: str, array: np.ndarray[Any, Any] | None) -> None:
        """needle_set_output; None for the call's own memory."""
        data = None if array is None else array.ctypes.data_as(c_void_p)
        size = 0 if array is None else array.nbytes
        check(C.needle_set_output(self.handle, name.encode(), data, size))
        self.given[name] = array

    def run(self) -> None:
        """needle_run."""
        check(C.needle_run(self.handle))

    def result(self, name: str) -> np.ndarray[Any, Any]:
        """needle_output, without a copy."""
        array = Array()
        check(C.needle_output(self.handle, name.encode(), byref(array)))
        assert array.name.decode() == name
        shape, dtype = tuple(array.shape[: array.ndim]), numpy_dtype(array.dtype)
        assert array.bytes == dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if array.bytes == 0:
            return np.empty(shape, dtype)
        memory = (ctypes.c_char * array.bytes).from_address(array.data)
        return np.frombuffer(memory, dtype).reshape(shape)

    def on(self, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Set all inputs in order, run, and return copies of all outputs."""
        names = [name for name, *_ in self.program.arrays(Kind.INPUTS)]
        for name, array in zip(names, inputs, strict=True):
            self.input(name, array)
        self.run()
        return [self.result(name).copy() for name, *_ in self.program.arrays(Kind.OUTPUTS)]
