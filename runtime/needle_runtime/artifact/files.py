"""Read the files of an artifact, up to their recorded sizes, and check their hashes."""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from needle_runtime.artifact import safetensors_reader
from needle_runtime.errors import ArtifactError


def sha256(path: Path, size: int | None = None) -> str:
    """Return the hex SHA-256 of a file's bytes; with `size`, of the first `size` + 1 bytes."""
    digest = hashlib.sha256()
    left = math.inf if size is None else size + 1
    with path.open("rb") as file:
        while chunk := file.read(int(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def check_file(folder: Path, manifest: Mapping[str, Any], name: str, *, digest: bool) -> None:
    """Raise ArtifactError unless a file has its recorded size and, with `digest`, its SHA-256."""
    file, recorded = folder / name, manifest["files"][name]
    try:
        _check_size(file, recorded["size"])
        if digest:
            _check_digest(file, sha256(file, recorded["size"]), recorded["sha256"])
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from None


def read_file(folder: Path, manifest: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of a file whose hash the manifest records.

    The bytes are checked even if `check_file` has checked the file, which may have changed since.
    Raises ArtifactError if they differ from the record or cannot be read.
    """
    file, recorded = folder / name, manifest["files"][name]
    try:
        _check_size(file, recorded["size"])
        data = read_at_most(file, recorded["size"])
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from None
    _check_digest(file, hashlib.sha256(data).hexdigest(), recorded["sha256"])
    return data


def read_arrays(
    folder: Path, manifest: Mapping[str, Any], name: str
) -> dict[str, np.ndarray[Any, Any]] | None:
    """Return the arrays in the safetensors file `name` of the artifact in `folder`, which has this
    `manifest`; return None if there is no such file.

    Raises ArtifactError if the file has changed since it was verified, or is malformed.
    """
    if name not in manifest["files"]:
        return None
    data = read_file(folder, manifest, name)
    try:
        return safetensors_reader.views(data)
    except ValueError as error:
        raise ArtifactError(f"{folder / name}: cannot be read ({error})") from error


def read_at_most(file: Path, size: int) -> bytes:
    """Return a file's first `size` + 1 bytes, or all if it has fewer."""
    # O_NONBLOCK: if the file has become a pipe, opening it must not wait.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as opened:
        return opened.read(size + 1) or b""


def regular_size(file: Path) -> int:
    """Return a regular file's size in bytes. Raises OSError for other files, such as a pipe, which
    has no end."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")
    return found.st_size


def _check_size(file: Path, recorded: int) -> None:
    size = regular_size(file)
    if size != recorded:
        raise ArtifactError(f"{file}: is damaged ({size} bytes long, not {recorded})")


def _check_digest(file: Path, found: str, recorded: str) -> None:
    if found != recorded:
        raise ArtifactError(f"{file}: is damaged (SHA-256 {found}, not {recorded})")
