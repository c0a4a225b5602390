"""Opening a store's folder: creating it, sharing it between processes, recovering a damaged one.

A store is a folder, so that the database file and its write-ahead log are put in place, moved
aside and copied together: a log beside another file than its own would damage that one. Every
process holds a shared lock on the folder while it has the store open. Who gets it alone may check
the files in peace, and replace the folder when they are damaged:

    NAME               the store
    NAME.recovered     complete and about to be renamed to NAME; found only after a crash
    NAME.damaged-TIME  what was damaged, as it was found; never deleted
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from needle_tvm.artifact import cache
from needle_tvm.errors import ArtifactError, DamagedRecordsError, RecordsError
from needle_tvm.process.atomic import sibling, sync
from needle_tvm.tune.records import sqlite
from needle_tvm.tune.records.rows import COLUMNS, Row, name, values
from needle_tvm.tune.records.salvage import read_wal, salvage, salvage_tail

Report = Callable[[str], None]

_WAIT_SECONDS = 60.0  # for another process that is checking or recovering the store
_DAMAGED_WAIT_SECONDS = 5.0  # for others to close a damaged store


class FolderLock:
    """A lock on a folder itself, which goes along when the folder is renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def try_alone(self) -> bool:
        """Get the folder alone, if nobody else has it."""
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        """Get the folder together with others, if nobody has it alone."""
        return self._try(fcntl.LOCK_SH)

    def share(self) -> None:
        """Let others in too."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def current(self) -> bool:
        """Whether the path still leads to the locked folder."""
        try:
            there = os.stat(self._folder)
        except OSError:
            return False
        mine = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def check_place(folder: Path, create: bool) -> bool:
    """Whether the store in `folder` is private: it is where it lies in the cache.

    What is in the cache decides what is compiled and run. Raises RecordsError where others can have
    written it; with `create` the cache's folder is made, and made private, first.
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


def open_folder(
    folder: Path, report: Report, *, private: bool = False
) -> tuple[sqlite3.Connection, FolderLock]:
    """A connection to the store in `folder`, which is created where there is none.

    What is created is for its owner alone where it is `private`. A damaged store is recovered
    first, and `report` is called with one line about it. Raises RecordsError when the folder cannot
    be written, holds something else or a newer schema, or is damaged while other processes use it.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    damaged_deadline: float | None = None
    while True:
        lock: FolderLock | None = None
        try:
            _create_where_absent(folder, private)
            lock = FolderLock(folder)
        except FileNotFoundError as error:
            # Being replaced this very moment; or a place where nothing can be made.
            if not folder.parent.is_dir() or time.monotonic() > deadline:
                raise RecordsError(f"{folder}: cannot be opened ({error.strerror})") from error
            time.sleep(0.001)
            continue
        except OSError as error:
            raise RecordsError(f"{folder}: cannot be opened ({error.strerror})") from error
        try:
            alone = lock.try_alone()
            if (alone or lock.try_shared()) and lock.current():
                try:
                    connection = _connected(folder, _check(folder, alone))
                except DamagedRecordsError as damage:
                    if alone:
                        _recover(folder, str(damage), report, private)
                        continue
                    damaged_deadline = damaged_deadline or time.monotonic() + _DAMAGED_WAIT_SECONDS
                    if time.monotonic() > damaged_deadline:
                        raise RecordsError(
                            f"{damage}, and other processes use it: it is recovered when it is "
                            "opened after they have ended"
                        ) from damage
                else:
                    lock.share()
                    if lock.current():
                        kept, lock = lock, None
                        return connection, kept
                    connection.close()
        finally:
            if lock is not None:
                lock.close()
        if time.monotonic() > deadline:
            raise RecordsError(f"{folder}: another process kept it for {_WAIT_SECONDS:g} s")
        time.sleep(0.02)


def _connected(folder: Path, rows: dict[str, Row]) -> sqlite3.Connection:
    with sqlite.errors(folder):
        connection = sqlite.connect(folder)
        try:
            sqlite.migrate(connection)
            if rows:
                _insert_all(connection, rows)
        except BaseException:
            connection.close()
            raise
        return connection


def _insert_all(connection: sqlite3.Connection, rows: dict[str, Row]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for row in rows.values():
            insert(connection, row)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check(folder: Path, alone: bool) -> dict[str, Row]:
    """Raise DamagedRecordsError or RecordsError unless the store can be used.

    Gives what SQLite will not find although it is there: see `salvage_tail`.
    """
    rows: dict[str, Row] = {}
    main, wal = folder / sqlite.FILE, folder / sqlite.WAL
    if not main.exists() and not wal.exists():
        raise RecordsError(f"{folder}: is not a record store; it was not touched")
    if not main.exists() or not main.stat().st_size:
        raise DamagedRecordsError(f"{folder}: is damaged ({sqlite.FILE} is empty or missing)")
    if alone and wal.exists():  # to others it may be in the middle of a change
        log = read_wal(wal.read_bytes())
        if log.damage is not None:
            raise DamagedRecordsError(f"{folder}: is damaged ({log.damage})")
        rows = salvage_tail(main.read_bytes(), log) if log.sound < len(log.frames) else rows
    sqlite.check(folder, thorough=alone)
    return rows


def _create_where_absent(folder: Path, private: bool) -> None:
    """Put a complete, empty store in place, or a recovered one that a crash left behind."""
    if folder.is_dir() and any(folder.iterdir()):
        return
    if folder.exists() and not folder.is_dir():
        raise RecordsError(f"{folder}: is not a record store; it was not touched")
    with suppress(FileNotFoundError):
        os.rename(recovered(folder), folder)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _filled(folder, {}, private) as new:
        try:
            os.rename(new, folder)
            sync(folder.parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # someone else was faster
                raise


@contextmanager
def _filled(folder: Path, rows: dict[str, Row], private: bool) -> Iterator[Path]:
    """A new folder beside `folder` to be renamed: a store with these rows, on disk."""
    with sibling(folder, private=private) as new:
        with sqlite.errors(folder):
            sqlite.create(new)
            if private:
                (new / sqlite.FILE).chmod(0o600)  # SQLite's other files take its mode
            with closing(sqlite.connect(new)) as connection:
                _insert_all(connection, rows)
        sync(new / sqlite.FILE)
        sync(new)
        yield new


def _recover(folder: Path, damage: str, report: Report, private: bool) -> None:
    """Put what is intact in a new store in the damaged one's place. The caller holds it alone."""
    try:
        found = salvage(_bytes(folder / sqlite.FILE), _bytes(folder / sqlite.WAL))
        waiting = recovered(folder)
        shutil.rmtree(waiting, ignore_errors=True)  # of an attempt that did not get further
        with _filled(folder, found, private) as new:
            os.rename(new, waiting)
        now = datetime.datetime.now(datetime.timezone.utc)
        aside = folder.with_name(f"{folder.name}.damaged-{now:%Y%m%dT%H%M%S.%f}")
        os.rename(folder, aside)
        with suppress(FileNotFoundError):  # who opens it this very moment does this for us
            os.rename(waiting, folder)
        sync(folder.parent)
    except OSError as error:
        text = f"{damage}, and cannot be recovered here ({error.strerror})"
        raise RecordsError(text) from error
    counted = sum(row.table == "records" for row in found.values())
    were = "record was" if counted == 1 else "records were"
    report(f"{damage}: {counted} intact {were} recovered; the damaged store is {aside}")


def insert(connection: sqlite3.Connection, row: Row) -> bool:
    """Have this row in the store; whether it was not there yet, or was damaged."""
    columns = COLUMNS[row.table]
    listed, marks = ", ".join(columns), ", ".join("?" * len(columns))
    excluded = ", ".join(f"excluded.{column}" for column in columns)
    before = connection.total_changes
    connection.execute(
        f"INSERT INTO {row.table} (digest, {listed}) VALUES (?, {marks}) "
        f"ON CONFLICT (digest) DO UPDATE SET ({listed}) = ({excluded}) "
        f"WHERE ({listed}) IS NOT ({excluded})",
        (name(row), *values(row)),
    )
    return connection.total_changes > before


def recovered(folder: Path) -> Path:
    """Where the store that replaces a damaged one waits for the last step."""
    return folder.with_name(f"{folder.name}.recovered")


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
