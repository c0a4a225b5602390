"""Paths given by users. This module uses only the standard library."""

from __future__ import annotations

import os
from pathlib import Path

from needle_runtime.errors import NeedleTVMError, UsageError

StrPath = str | os.PathLike[str]


def as_path(path: object, what: str, refuse: type[NeedleTVMError]) -> Path:
    """Return `path`, the argument named `what`, as a Path.

    Raises UsageError unless it is a str or a PathLike of one, and `refuse` if no file can have this
    name because it contains a NUL or half of a surrogate pair.
    """
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise UsageError(f"{what}={path!r}: must be a str or a Path")
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise refuse(f"{what}={os.fspath(path)!r}: no file can have this name")
    return Path(path)
