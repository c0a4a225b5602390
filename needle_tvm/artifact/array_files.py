"""Arrays by name in .npy, .npz and .safetensors files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from needle_tvm.errors import InputError, InstallError, UsageError
from needle_tvm.process import atomic

SUFFIXES = (".npy", ".npz", ".safetensors")
UNNAMED = ""  # the name of the array in a .npy file

Arrays = dict[str, np.ndarray[Any, Any]]


def check_suffix(path: Path) -> None:
    """Raise UsageError unless the file's suffix names one of the three formats."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: its name must end in {', '.join(SUFFIXES)}")


def read(path: Path) -> Arrays:
    """The arrays of a file by name. Pickled arrays are refused: reading one would run its code.

    Raises InputError if the file is damaged, OSError if it cannot be read, UsageError for another
    suffix, InstallError for .safetensors without the package of that name.
    """
    check_suffix(path)
    with path.open("rb"):  # raises an OSError that names the file
        pass
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        try:
            found = np.load(path, allow_pickle=False)
        except ValueError as error:  # NumPy's advice would be to unpickle it
            raise ValueError("no arrays, or pickled objects, which are not read") from error
        if path.suffix == ".npy":
            if not isinstance(found, np.ndarray):
                raise ValueError("it is an .npz archive")
            return {UNNAMED: found}
        if isinstance(found, np.ndarray):
            raise ValueError("it is a single .npy array")
        with found:
            return {name: found[name] for name in found.files}
    except (BadZipFile, EOFError, KeyError, ValueError) as error:
        raise InputError(f"{path}: is no readable {path.suffix} file ({error})") from error


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
    """Write arrays to a file, whole or not at all; a .npy file holds a single one.

    Raises UsageError for arrays the format cannot hold, OSError if the file cannot be written,
    InstallError for .safetensors without the package of that name.
    """
    check_suffix(path)
    if path.suffix == ".safetensors":
        save = _safetensors().numpy.save
        atomic.write_file(path, save({k: np.asarray(v, order="C") for k, v in arrays.items()}))
        return
    for name, array in arrays.items():
        if array.dtype.kind == "V":  # bfloat16: NumPy would write untyped bytes
            raise UsageError(f"{path}: cannot hold {name} of {array.dtype}; .safetensors can")
    memory = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(memory, **dict(arrays))  # type: ignore[arg-type]
    elif len(arrays) == 1:
        np.save(memory, next(iter(arrays.values())))
    else:
        raise UsageError(f"{path}: holds one array, not {len(arrays)}; .npz holds several")
    atomic.write_file(path, memory.getvalue())
