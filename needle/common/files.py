"""Open files whose paths come from outside, without blocking on pipes. This module uses only the
standard library."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open the file `path` to read bytes. Raises OSError if it is unreadable or not a regular
    file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # the path has a NUL or half of a surrogate pair
        name = ascii(os.fspath(path))
        raise OSError(errno.EINVAL, "no file can have this name", name) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of the file `path`. Raises OSError as in `open_regular`."""
    with open_regular(path) as file:
        return file.read()
