"""Folders and files that are written whole or not at all, on disk and not only in memory.

A folder is filled under a temporary name beside its place, every file and the folder itself are
synced, and then it takes its place in one step: who looks there sees what was before or what is
new, also after a crash or a power cut. A process that is killed cannot clean up: another one does
(`scratch.reaped`). What a power cut leaves is known by its name and by the lock that nobody holds,
and the next one to write there removes it. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from needle_tvm.scratch import reaped

_MARK = ".needle-"  # in the names of temporary siblings
_NAME_LENGTH = 32  # how much of the folder's own name they carry: names have a limit

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


@contextlib.contextmanager
def writing(target: Path) -> Iterator[Path]:
    """A new folder to fill that becomes `target` when the block ends without an exception.

    Whatever folder is at `target` is replaced. Raises OSError when something cannot be written;
    `target` is then as it was and the temporary folder is gone.
    """
    _make_parents(target.parent)
    temporary, lock = _new_sibling(target)
    try:
        with reaped(temporary):
            yield temporary
            for file in sorted(temporary.iterdir()):
                sync(file)
            sync(temporary)
            _put(temporary, target)
            sync(target.parent)
    finally:
        # Under this name there is now what was replaced, or what was not finished, or nothing.
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)
    _remove_abandoned(target)


def write_file(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises OSError; what was at `path` is then still there."""
    temporary = path.parent / (_prefix(path) + secrets.token_hex(8))
    try:
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have the disk hold a file's bytes, or a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_parents(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def _prefix(target: Path) -> str:
    return f".{target.name[:_NAME_LENGTH]}{_MARK}"


def _new_sibling(target: Path) -> tuple[Path, int]:
    """An empty folder beside `target`, and the descriptor that holds its lock."""
    while True:
        path = target.parent / (_prefix(target) + secrets.token_hex(8))
        path.mkdir()  # not mkdtemp: its folders are for their owner's eyes only
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # taken for abandoned before it was locked
        with contextlib.suppress(OSError):  # no locks on this file system: none is removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)


def _put(new: Path, target: Path) -> None:
    """Give `new` the name `target`; what is there gets the name `new` in the same step."""
    if not target.exists():
        new.rename(target)
    elif not _exchange(new, target):
        _put_in_two_steps(new, target)


def _put_in_two_steps(new: Path, target: Path) -> None:
    """As `_put`, where names cannot be swapped: for a moment there is nothing at `target`."""
    aside, lock = _new_sibling(target)
    try:
        target.rename(aside / "old")
        try:
            new.rename(target)
        except OSError:
            (aside / "old").rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(lock)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if renameat2(*arguments) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _remove_abandoned(target: Path) -> None:
    """Remove temporary siblings of `target` whose process has ended without doing so."""
    prefix = _prefix(target)
    with contextlib.suppress(OSError):
        for path in list(target.parent.iterdir()):
            if path.name.startswith(prefix) and path.is_dir() and not path.is_symlink():
                _remove_if_unlocked(path)


def _remove_if_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
