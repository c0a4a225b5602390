"""Replace an artifact as a whole: write the new one, and read while it is being replaced."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from needle_runtime.artifact.layout import MANIFEST
from needle_runtime.errors import ArtifactError
from needle_runtime.process.paths import StrPath, as_path

_Result = TypeVar("_Result")

_RETRIES = 10  # how often an export may replace an artifact while it is being read


@contextlib.contextmanager
def writing(path: StrPath, *, private: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill, which becomes `path` when the block ends, or not at all.

    The folder is a temporary sibling, synced to disk and then renamed; see `process.atomic`. An
    artifact that is already at `path` is replaced in one step; anything else there is left alone.
    With `private`, only the owner may read or write the folder. Raises ArtifactError if the folder
    cannot be written; nothing half-written is left behind.
    """
    from needle_runtime.process import atomic  # not needed by readers, whose start it would slow

    target = as_path(path, "path", ArtifactError)
    try:
        target = replaceable(target, MANIFEST, "an artifact")
        with atomic.writing(target, private=private) as folder:
            yield folder
            mode = stat.S_IMODE((folder / MANIFEST).stat().st_mode)
            for file in folder.iterdir():
                file.chmod(mode)  # safetensors makes files that only their owner can read
    except OSError as error:
        raise ArtifactError(f"{target}: cannot be written ({error})") from error


def replaceable(target: Path, mark: str, kind: str) -> Path:
    """Return the absolute path at which a folder of this `kind`, which has a file `mark`, may be
    written. Raises ArtifactError if anything else is there, except an empty folder."""
    target = target.absolute()
    if target.is_symlink():  # the link stays, and its target is replaced
        target = target.resolve()
    if target.exists() and not (target / mark).is_file():
        occupied = not target.is_dir() or any(target.iterdir())
        if occupied:
            raise ArtifactError(f"{target}: exists and is not {kind}; it was not touched")
    return target


def undisturbed(path: StrPath, read: Callable[[], _Result]) -> _Result:
    """Return `read()`, repeated if the artifact at `path` was replaced while it was being read.

    An export replaces the old folder as a whole. A reader that had opened one file of each folder
    would mistake that for damage.
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
