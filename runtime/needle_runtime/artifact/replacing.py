"""Write an artifact as a whole in place of an old one, and read one while it may be replaced."""

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

_RETRIES = 10  # how often exports may replace an artifact while it is being read


@contextlib.contextmanager
def writing(path: StrPath, *, private: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill. It becomes `path` when the block ends, unless an error is raised.

    The folder is a temporary sibling, synced to disk and then renamed; see `process.atomic`. An
    artifact that is already at `path` is replaced in one step; anything else there is not touched.
    With `private`, only the owner may read or write the folder. Raises ArtifactError if the folder
    cannot be written; then no partial folder is left behind.
    """
    from needle_runtime.process import atomic  # imported here, because readers do not need it

    target = as_path(path, "path", ArtifactError)
    try:
        target = replaceable(target, MANIFEST, "an artifact")
        with atomic.writing(target, private=private) as folder:
            yield folder
            mode = stat.S_IMODE((folder / MANIFEST).stat().st_mode)
            for file in folder.iterdir():
                file.chmod(mode)  # safetensors creates files that only their owner can read
    except OSError as error:
        raise ArtifactError(f"{target}: cannot be written ({error})") from error


def replaceable(target: Path, mark: str, kind: str) -> Path:
    """Return the absolute path at which to write a folder of this `kind`, for `target`. Raises
    ArtifactError unless `target` is missing, an empty folder, or a folder with the file `mark`."""
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

    An export replaces the old folder as a whole. A reader that had read some files from the old and
    some from the new folder would report damage.
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
