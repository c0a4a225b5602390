"""The record store: a file of JSON lines that several processes can share, and that can be merged
with others.

    with Store() as store:
        store.add(trial, kernel)
        store.best([name(kernel)], 1)

The search opens a store; the `records` commands list and merge stores. This module imports no TVM:
modules, traces and targets are text here. `database` translates them; `facts` defines the format.

A writer locks the folder, reads the lines of other writers, appends its own lines, and returns when
they are on disk. If a writer is killed, its last line may be incomplete; the next writer cuts it
off. A line whose SHA-256 is wrong is reported and not used.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import math
import os
import platform
import stat
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from needle_runtime.errors import ArtifactError
from needle_runtime.process import atomic
from needle_runtime.target import host
from needle_runtime.text import counted, one_line
from needle_tvm import cache
from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import facts
from needle_tvm.tune.records.facts import FORMAT, HEAD, Kernel, L, Line, Rejection, Trial

FILE = "records.jsonl"

Report = Callable[[str], None]


def default_path() -> Path:
    """Return the path of this user's store: `records` in the cache folder."""
    return cache.root() / cache.RECORDS


def now() -> str:
    """Return the current time in the records' format."""
    moment = datetime.datetime.now(datetime.timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def this_host() -> str:
    """Return a name for this machine in the records' format: its host name and a digest of its
    processor."""
    return f"{platform.node()}/{host.identity()}"


def _warn(line: str) -> None:
    warnings.warn(one_line(line), stacklevel=2)


class Store:
    """The store in the folder `path`, by default the user's own. It is a context manager.

    One object may be used from several threads, and by a process forked after it was opened. A
    folder that cannot be written is opened read-only. If lines are damaged, `report` is called with
    one line of text; by default it issues a warning.

    Raises RecordsError if the folder contains something else or records of another version of
    needle, if other users could have written to a store in the cache, or if there is no store and
    `create` is false. Methods raise RecordsError if the file cannot be read or a write fails; a
    failed write leaves nothing in the store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        create: bool = True,
        report: Report | None = None,
    ) -> None:
        self.path = default_path() if path is None else _absolute(path)
        self._file = self.path / FILE
        self._report = report or _warn
        self._mutex = threading.RLock()
        self._closed = False
        self._forget()
        self._private = _check_place(self.path, create)
        try:
            self._find(create)
            self.writable = os.access(self.path, os.W_OK) and os.access(self._file, os.W_OK)
        except OSError as error:
            raise RecordsError(
                f"{self.path}: cannot be opened ({_reason(error)}); nothing was written"
            ) from error
        with self._using():  # reads the file
            pass
        _OPEN.add(self)

    def _find(self, create: bool) -> None:
        """Check that the folder contains a store; create one if `create` is true."""
        there = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        if FILE in there:
            return
        if there or (self.path.exists() and not self.path.is_dir()):
            raise RecordsError(
                f"{self.path}: is not a record store{': it holds ' + there[0] if there else ''}. "
                "It was not touched; move it away to begin a store there"
            )
        if not create:
            raise RecordsError(f"{self.path}: there is no record store (tuning and merge make one)")
        made = not self.path.exists()
        self.path.mkdir(mode=0o700 if self._private else 0o777, exist_ok=True)
        try:
            with self._locked():
                if not self._file.exists():
                    self._write(0, facts.text(HEAD))
                    atomic.sync(self.path)
        except OSError:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
                if made:
                    self.path.rmdir()
            raise

    def close(self) -> None:
        """Forget what was read. Everything written is already on disk."""
        with self._mutex:
            self._closed = True
            self._forget()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The file

    def _forget(self) -> None:
        self._identity: tuple[int, int] | None = None  # device and inode of the file that was read
        self._offset = 0  # end of the part of the file that was read
        self._ended = True  # whether a newline precedes the offset
        self._lines: dict[str, dict[str, Line]] = {kind: {} for kind in facts.KINDS}
        self._of_kernel: dict[str, dict[str, Trial]] = {}
        self._rejections: dict[str, str] = {}  # by trial

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes and threads from writing inside the block."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have a copy of it
            os.close(descriptor)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Hold this object's lock; first read the file's new lines."""
        with self._mutex:
            if self._closed:
                raise RecordsError(f"{self.path}: was closed")
            try:
                self._read()
            except OSError as error:
                raise RecordsError(f"{self.path}: cannot be read ({_reason(error)})") from error
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock as in `_using`, and keep other writers out."""
        if not self.writable:
            raise RecordsError(f"{self.path}: is read-only; nothing was written")
        try:
            with self._mutex, self._locked(), self._using():
                yield
        except OSError as error:
            raise RecordsError(f"{self.path}: {_reason(error)}; nothing was written") from error

    def _read(self) -> None:
        """Read the lines that were added since the last read."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._file, flags), "rb") as file:
            status = os.fstat(file.fileno())
            # Reading a pipe without a writer would look like an empty file.
            if not stat.S_ISREG(status.st_mode):
                raise RecordsError(f"{self._file}: is not a regular file")
            if (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset:
                self._forget()
                self._identity = status.st_dev, status.st_ino
            if status.st_size == self._offset:
                return
            file.seek(self._offset)
            data = file.read()
        *stored, last = data.split(b"\n")
        self._ended = facts.read(last) is None
        if not self._ended:  # only its newline is missing
            stored, last = [*stored, last], b""
        damaged = 0
        for each in filter(bytes.strip, stored):
            found = facts.read(each)
            if found is None:
                damaged += 1
                continue
            name, line = found
            if not isinstance(line, Mapping):
                self._keep(name, line)
            elif line != HEAD:
                raise RecordsError(
                    f"{self.path}: holds records of another version of needle (format "
                    f"{line.get('format')}, this one reads {FORMAT}). It was not touched; move "
                    "it away to begin a store there"
                )
        self._offset += len(data) - len(last)
        if damaged:
            self._report(
                f"{self._file}: {counted(damaged, 'damaged line')} not used; 'records merge' "
                "copies the others into another store"
            )

    def _keep(self, name: str, line: Line) -> None:
        self._lines[line.kind][name] = line
        if isinstance(line, Trial):
            self._of_kernel.setdefault(line.kernel, {})[name] = line
        elif isinstance(line, Rejection):
            self._rejections.setdefault(line.trial, line.reason)

    def _append(self, taken: Iterable[Line]) -> list[Line]:
        """Write the lines that the store lacks, either all or none; return them."""
        new = {facts.name(line): line for line in taken}
        new = {n: line for n, line in new.items() if n not in self._lines[line.kind]}
        if new:
            text = b"".join(facts.text(line) for line in new.values())
            text = text if self._ended else b"\n" + text
            self._write(self._offset, text)
            self._offset, self._ended = self._offset + len(text), True
            for name, line in new.items():
                self._keep(name, line)
        return list(new.values())

    def _write(self, end: int, text: bytes) -> None:
        """Write text after the first `end` bytes of the file; after an error, keep only these."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file, flags, 0o600 if self._private else 0o666)
        try:
            os.ftruncate(descriptor, end)  # removes the text of a killed writer
            try:
                written = 0
                while written < len(text):
                    written += os.pwrite(descriptor, text[written:], end + written)
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)

    # The lines

    def add(self, trial: Trial, kernel: Kernel) -> str:
        """Store a `trial` durably, and its `kernel` if the store lacks it; return the trial's name.

        Raises ValueError if the trial belongs to another kernel.
        """
        if trial.kernel != facts.name(kernel):
            raise ValueError("the trial names another kernel")
        with self._writing():
            self._append([kernel, trial])
        return facts.name(trial)

    def reject(self, trial: str, reason: str) -> None:
        """Store a verdict: the trial named `trial` is never used again, for this `reason`.

        Raises KeyError if the trial is not in the store.
        """
        with self._writing():
            if trial not in self._lines[Trial.kind]:
                raise KeyError(f"there is no trial {trial}")
            self._append([Rejection(trial, reason, now(), this_host())])

    def rejected(self, trial: str) -> str:
        """Return the reason why the trial named `trial` must not be used, or "" if it may be."""
        with self._using():
            return self._why(trial, cast(Trial, self._lines[Trial.kind][trial]))

    def _why(self, name: str, trial: Trial) -> str:
        return trial.rejected or self._rejections.get(name, "")

    def all(self, kind: type[L]) -> dict[str, L]:
        """Return the lines of one kind, by name."""
        with self._using():
            return cast("dict[str, L]", dict(sorted(self._lines[kind.kind].items())))

    def of(self, kernels: Collection[str]) -> dict[str, Trial]:
        """Return the trials of the named kernels, by name."""
        with self._using():
            return {n: t for each in kernels for n, t in self._of_kernel.get(each, {}).items()}

    def best(self, kernels: Collection[str], limit: int) -> list[tuple[str, Trial]]:
        """Return the `limit` fastest usable trials of the named kernels, with their names."""
        with self._using():
            usable = [
                (trial.seconds, name, trial)
                for name, trial in self.of(kernels).items()
                if not self._why(name, trial) and trial.seconds is not None
            ]
        return [(name, trial) for _, name, trial in sorted(usable, key=lambda each: each[:2])][
            : max(limit, 0)
        ]

    def known(self, kernels: Collection[str]) -> dict[str, float | None]:
        """Return all traces tried on the named kernels, each with its shortest time.

        The time is None if a trial of that trace was rejected.
        """
        found: dict[str, float | None] = {}
        with self._using():
            for name, trial in self.of(kernels).items():
                taken = None if self._why(name, trial) else trial.seconds
                before = found.get(trial.trace, math.inf)
                found[trial.trace] = None if taken is None or before is None else min(taken, before)
        return found

    def spent(self, session: str) -> tuple[int, float]:
        """Return the number of trials of this `session`, and the seconds that they cost it."""
        spent = [trial.spent for trial in self.all(Trial).values() if trial.session == session]
        return len(spent), math.fsum(spent)

    def merge(self, other: Store) -> dict[str, int]:
        """Copy the lines of `other` that are missing here, all or none; return counts by kind.

        Merging again changes nothing, and the order of merges does not matter.
        """
        taken = [line for kind in facts.KINDS.values() for line in other.all(kind).values()]
        with self._writing():
            new = self._append(taken)
        return {kind: sum(line.kind == kind for line in new) for kind in facts.KINDS}


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left on its disk"
    return error.strerror or str(error)


def _check_place(folder: Path, create: bool) -> bool:
    """Return whether the store in `folder` must be private, because the folder is in the cache.

    The contents of the cache decide which code is compiled and run. Raises RecordsError if other
    users could have written to it. With `create`, the cache folder is first created and made
    private.
    """
    private = cache.holds(folder)
    try:
        if private and create:
            cache.make_private(folder.parent)
        if private and folder.is_dir():
            cache.check(folder)
    except ArtifactError as error:
        raise RecordsError(str(error)) from error
    except OSError as error:
        raise RecordsError(f"{folder}: cannot be opened ({error.strerror})") from error
    return private


def _absolute(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no such user, no current folder
        raise RecordsError(f"{os.fspath(path)}: names no folder ({error})") from None


# A forked child has a copy of each store. The copy must not be in the middle of a change by another
# thread, and the child must not hold the folder's lock.
_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()
_forking: list[Store] = []


def _before_fork() -> None:
    for store in list(_OPEN):
        store._mutex.acquire()
        _forking.append(store)


def _after_fork() -> None:
    while _forking:
        _forking.pop()._mutex.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
