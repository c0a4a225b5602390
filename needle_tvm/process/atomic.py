"""Folders and files that are written whole or not at all, on disk and not only in memory.

A folder is filled under a temporary name beside its place, every file and the folder itself are
synced, and then it takes its place in one step: who looks there sees what was before or what is
new, also after a crash or a power cut. A process that is killed cannot clean up: another one does
(`scratch.reaped`), unless it is killed as well. What is left then is known by its name and by the
lock that nobody holds, and the next one to write there removes it: a lock ends with its process,
whatever becomes of the process's number. Where there are no locks, as on most network file systems,
nothing of another process is removed. Standard library only.
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

from needle_tvm.process.scratch import reaped

_MARK = ".needle-"  # in the names of temporary siblings
_NAME_LENGTH = 32  # how much of the folder's own name they carry: names have a limit
_TEMPORARY = re.compile(rf"\..*{re.escape(_MARK)}[0-9a-f]{{16}}", re.DOTALL)
_OLD = "old"  # in a temporary sibling: what is about to be replaced
_TRIES = 100  # how often a temporary sibling is made that others remove at once

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


@contextlib.contextmanager
def writing(target: Path, *, private: bool = False) -> Iterator[Path]:
    """A new folder to fill that becomes `target` when the block ends without an exception.

    Whatever folder is at `target` is replaced. A `private` one, and the files in it, are for their
    owner alone, whatever the umask. Raises OSError when something cannot be written; `target` is
    then as it was and the temporary folder is gone.
    """
    _make_parents(target.parent)
    with sibling(target, private=private) as temporary:
        yield temporary
        for file in sorted(temporary.iterdir()):
            if private:
                file.chmod(0o600)
            sync(file)
        sync(temporary)
        _put(temporary, target)
        sync(target.parent)
    remove_abandoned(target.parent, target, replaced=True)


@contextlib.contextmanager
def sibling(target: Path, *, private: bool = False) -> Iterator[Path]:
    """A new folder beside `target`; what has its name when the block ends is removed.

    So are those that killed processes have left for this target.
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
    """Write a file, whole or not at all. Raises OSError; what was at `path` is then still there."""
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
    """Remove what processes that are gone have left in `folder`: for one target, or for all.

    `replaced` says that the target is there, so that what one of them was about to replace, and
    may be the only one of its kind, is no longer needed.
    """
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            ours = target is None or path.name.startswith(_prefix(target))
            if ours and _TEMPORARY.fullmatch(path.name) and not path.is_symlink():
                _remove_if_unlocked(path, replaced)


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


def _locked(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A new temporary sibling of `target`, and the descriptor that holds its lock."""
    for left in reversed(range(_TRIES)):
        path = target.parent / (_prefix(target) + secrets.token_hex(8))
        try:
            descriptor = make(path)
        except FileNotFoundError:
            # Taken for abandoned before it was opened, or a file system that makes nothing (/proc).
            if not left or not path.parent.is_dir():
                raise
            continue
        with contextlib.suppress(OSError):  # no locks on this file system: none is removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "what is made there is removed at once", str(path))


def _new_folder(path: Path, private: bool) -> int:
    path.mkdir(0o700 if private else 0o777)  # not mkdtemp: its folders are always private
    if private:
        path.chmod(0o700)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _put(new: Path, target: Path) -> None:
    """Give `new` the name `target`; what is there gets the name `new` in the same step."""
    if not target.exists():
        new.rename(target)
    elif not _exchange(new, target):
        _put_in_two_steps(new, target)


def _put_in_two_steps(new: Path, target: Path) -> None:
    """As `_put`, where names cannot be swapped: for a moment there is nothing at `target`."""
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


def _remove_if_unlocked(path: Path, replaced: bool) -> None:
    with contextlib.suppress(OSError):
        # Nothing is waited for, should it be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.is_dir():
                path.unlink()
            elif replaced or not (path / _OLD).exists():
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
