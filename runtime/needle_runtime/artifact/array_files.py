"""Reads and writes named arrays in .npy, .npz and .safetensors files."""

from __future__ import annotations

import errno
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format

from needle_runtime.artifact.files import regular_size
from needle_runtime.errors import InputError, InstallError, UsageError
from needle_runtime.process import atomic

SUFFIXES = (".npy", ".npz", ".safetensors")
UNNAMED = ""  # the name of the array in a .npy file

_LONGEST_HEADER = 1 << 16  # bytes

Check = Callable[[str, tuple[int, ...], np.dtype[Any]], None]
Arrays = dict[str, np.ndarray[Any, Any]]


def check_suffix(path: Path) -> None:
    """Raise UsageError unless the file's suffix names one of the three formats."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: its name must end in {', '.join(SUFFIXES)}")


def read(path: Path, check: Check = lambda name, shape, dtype: None) -> Arrays:
    """Return the arrays of the file at `path`, by name.

    Pickled arrays are refused, because reading one would run its code. `check` is called with the
    name, shape and dtype of each array in a .npy or .npz file before arrays are read, and may raise
    an error: a .npz file of 3 MB may contain 3 GB.

    Raises InputError if the file is damaged, OSError if it cannot be read or is not a regular file,
    UsageError for any other suffix, and InstallError for .safetensors without the package
    safetensors.
    """
    check_suffix(path)
    try:
        regular_size(path)
        with path.open("rb"):
            pass
    except OSError as error:  # raise an error that names the file
        raise error if error.filename else OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        for name, shape, dtype in _headers(path):
            check(name, shape, dtype)
        try:
            loaded = np.load(path, allow_pickle=False)
        except ValueError as error:  # NumPy's own message would advise allowing pickles
            raise ValueError(
                "it holds no arrays, or it holds pickled objects, which needle does not read"
            ) from error
        if path.suffix == ".npy":
            if not isinstance(loaded, np.ndarray):
                raise ValueError("it is an .npz archive")
            return {UNNAMED: loaded}
        if isinstance(loaded, np.ndarray):
            raise ValueError("it is a single .npy array")
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except InputError:  # raised by `check`
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        raise InputError(f"{path}: is not a readable {path.suffix} file ({error})") from error


def _headers(path: Path) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Yield name, shape and dtype of the arrays in a .npy or .npz file."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield (UNNAMED, *_header(file))
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as part:
                yield (member.removesuffix(".npy"), *_header(part))


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = format.read_magic(file)
    if version != (1, 0):  # the header may have up to 4 GB; NumPy writes few files like this
        length = file.read(4)
        if int.from_bytes(length, "little") > _LONGEST_HEADER:
            raise ValueError(f"its header has {int.from_bytes(length, 'little')} bytes")
        file = io.BytesIO(length + file.read(int.from_bytes(length, "little")))
        shape, _, dtype = format.read_array_header_2_0(file)
    else:
        shape, _, dtype = format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which needle does not read")
    return shape, dtype


def _read_safetensors(path: Path) -> Arrays:
    package = _safetensors()
    try:
        return dict(package.numpy.load_file(path))
    except package.SafetensorError as error:
        raise ValueError(str(error)) from error


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise InstallError(
            f".safetensors files need the package safetensors ({error}): pip install safetensors"
        ) from None
    return safetensors


def write(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write `arrays` to the file at `path`, as a whole or not at all. A .npy file has only one
    array.

    Raises UsageError for arrays that the format cannot hold, OSError if the file cannot be written,
    and InstallError for .safetensors without the package safetensors.
    """
    check_suffix(path)
    if path.suffix == ".safetensors":
        save = _safetensors().numpy.save
        atomic.write_file(path, save({k: np.asarray(v, order="C") for k, v in arrays.items()}))
        return
    for name, array in arrays.items():
        if array.dtype.kind == "V":  # bfloat16: NumPy would write untyped bytes
            raise UsageError(
                f"{path}: this format cannot hold the array '{name}' of dtype {array.dtype}; "
                ".safetensors can"
            )
    memory = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(memory, **dict(arrays))  # type: ignore[arg-type]
    elif len(arrays) == 1:
        np.save(memory, next(iter(arrays.values())))
    else:
        raise UsageError(f"{path}: holds one array, not {len(arrays)}; .npz holds several")
    atomic.write_file(path, memory.getvalue())
