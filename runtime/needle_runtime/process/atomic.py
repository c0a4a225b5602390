"""Folders and files that are written as a whole or not at all, and synced to disk.

A folder is filled under a temporary name beside its target. Every file and the folder itself are
synced, and then the folder takes the target's place in one step: a reader sees the old contents or
the new ones, even after a crash or a power cut. A killed process cannot clean up; another process
does it (`scratch.reaped`), unless that one is killed as well. The next process to write there then
removes the leftovers, which it recognises by their name and by a lock that nobody holds. A lock
is released when its process ends, even if the process id is reused. Without locks, as on most
network file systems, no leftovers of other processes are removed. This module uses only the
standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from needle_runtime.process.scratch import reaped

_MARK = ".needle-"  # in the names of temporary siblings
_NAME_LENGTH = 32  # characters of the target's name in a temporary name: a name's length is limited
_TEMPORARY = re.compile(rf"\..*{re.escape(_MARK)}[0-9a-f]{{16}}", re.DOTALL)
_OLD = "old"  # in a temporary sibling: the target that is about to be replaced
_TRIES = 100  # attempts to make a temporary sibling if others remove it at once

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


@contextlib.contextmanager
def writing(target: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill; it becomes `target` if the block ends without an exception.

    Any folder at `target` is replaced. If `private`, only the owner can access the folder and its
    files, whatever the umask. Raises OSError if something cannot be written; `target` is then
    unchanged and the temporary folder is gone.
    """
    _make_parents(target.parent)
    with sibling(target, private=private) as temporary:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if private:
                file.chmod(0o700 if file.is_dir() else 0o600)
            sync(file)
        sync(temporary)
        _put(temporary, target)
        sync(target.parent)
    remove_abandoned(target.parent, target, replaced=True)


@contextlib.contextmanager
def sibling(target: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a new folder beside `target`. When the block ends, anything with its name is removed.

    Siblings that killed processes left for this target are removed too.
    """
    remove_abandoned(target.parent, target)
    path, lock = _locked(target, lambda path: _new_folder(path, private))
    try:
        with reaped(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def write_file(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all. After an OSError, the old file is still at `path`."""
    remove_abandoned(path.parent, path)
    temporary, lock = _locked(path, _new_file)
    try:
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(lock)


def remove_abandoned(folder: Path, target: Path | None = None, *, replaced: bool = False) -> None:
    """Remove the leftovers of dead processes in `folder`, for one target or for all.

    `replaced` says that the target exists. Then an old version that a dead process was about to
    replace, which might be the only copy, is no longer needed.
    """
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            ours = target is None or path.name.startswith(_prefix(target))
            if ours and _TEMPORARY.fullmatch(path.name) and not path.is_symlink():
                _remove_if_unlocked(path, replaced)


def sync(path: Path) -> None:
    """Sync a file's bytes, or a folder's list of names, to disk."""
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


def _locked(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Make a temporary sibling of `target`; return it and the descriptor that holds its lock."""
    for left in reversed(range(_TRIES)):
        path = target.parent / (_prefix(target) + secrets.token_hex(8))
        try:
            descriptor = make(path)
        except FileNotFoundError:
            # It was removed as abandoned before it was opened, or nothing can be made here (/proc).
            if not left or not path.parent.is_dir():
                raise
            continue
        with contextlib.suppress(OSError):  # without locks, no leftovers are removed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "every file made there is removed at once", str(path))


def _new_folder(path: Path, private: bool) -> int:
    path.mkdir(0o700 if private else 0o777)  # not mkdtemp: its folders are always private
    if private:
        path.chmod(0o700)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _put(new: Path, target: Path) -> None:
    """Give `new` the name `target`; an existing target gets the name `new` in the same step."""
    if not target.exists():
        new.rename(target)
    elif not _exchange(new, target):
        _put_in_two_steps(new, target)


def _put_in_two_steps(new: Path, target: Path) -> None:
    """Do the work of `_put` if names cannot be swapped: for a moment nothing is at `target`."""
    aside, lock = _locked(target, lambda path: _new_folder(path, private=True))
    try:
        target.rename(aside / _OLD)
        try:
            new.rename(target)
        except OSError:
            (aside / _OLD).rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(lock)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; return False if the system or the file system cannot."""
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


def _remove_if_unlocked(path: Path, replaced: bool) -> None:
    with contextlib.suppress(OSError):
        # O_NONBLOCK: if it is a pipe, do not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.is_dir():
                path.unlink()
            elif replaced or not (path / _OLD).exists():
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
