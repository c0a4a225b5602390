"""Replacing an artifact as a whole: writing the new one, and reading while it is replaced."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from needle_tvm.artifact.layout import MANIFEST
from needle_tvm.errors import ArtifactError
from needle_tvm.process import atomic
from needle_tvm.process.paths import StrPath, as_path

_Result = TypeVar("_Result")

_RETRIES = 10  # how often an export may replace an artifact while it is being read


@contextlib.contextmanager
def writing(path: StrPath, *, private: bool = False) -> Iterator[Path]:
    """A new folder to fill that becomes `path` when the block ends, whole or not at all.

    It is a temporary sibling, synced to disk and then renamed; see `process.atomic`. An artifact
    that is already at `path` is replaced in one step; anything else there is left alone. With
    `private`, only its owner may read or write it. Raises ArtifactError if the folder cannot be
    written; nothing half-written stays behind.
    """
    target = as_path(path, "path", ArtifactError)
    try:
        target = target.absolute()
        if target.is_symlink():  # the link stays, and what it leads to is replaced
            target = target.resolve()
        if target.exists() and not (target / MANIFEST).is_file():
            occupied = not target.is_dir() or any(target.iterdir())
            if occupied:
                raise ArtifactError(f"{target}: exists and is not an artifact; it was not touched")
        with atomic.writing(target, private=private) as folder:
            yield folder
            for file in folder.iterdir():
                # safetensors makes files for their owner's eyes only.
                shutil.copymode(folder / MANIFEST, file)
    except OSError as error:
        raise ArtifactError(f"{target}: cannot be written ({error})") from error


def undisturbed(path: StrPath, read: Callable[[], _Result]) -> _Result:
    """`read()`, repeated if the artifact at `path` was replaced while it was being read.

    An export puts a whole new folder in the old one's place. A reader that had opened one file of
    each would take that for damage.
    """
    for _ in range(_RETRIES):
        before = _identity(path)
        try:
            return read()
        except ArtifactError:
            if _identity(path) == before:
                raise
    return read()


def _identity(path: StrPath) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
