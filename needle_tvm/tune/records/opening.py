"""Open a store's folder: create it, share it between processes, recover a damaged one.

`store.Store` calls `open_folder`. A store is a folder, so that the database file and its
write-ahead log are put in place, moved aside and copied together: a log beside another database
would damage that one. Every process holds a shared lock on the folder while it has the store open.
A process that gets an exclusive lock may check the files undisturbed, and replace the folder if
they are damaged:

    NAME               the store
    NAME.recovered     complete and about to be renamed to NAME; found only after a crash
    NAME.damaged-TIME  a damaged store, as it was found; never deleted
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

_WAIT_SECONDS = 60.0  # while another process checks or recovers the store
_DAMAGED_WAIT_SECONDS = 5.0  # until other processes close a damaged store


class FolderLock:
    """A lock on a folder itself, which stays with the folder when it is renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def try_alone(self) -> bool:
        """Take the exclusive lock, if nobody else holds a lock."""
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        """Take a shared lock, if nobody holds the exclusive one."""
        return self._try(fcntl.LOCK_SH)

    def share(self) -> None:
        """Turn the exclusive lock into a shared one."""
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
        """Release the lock."""
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
    """Whether the store in `folder` is private, which it is inside the cache.

    The contents of the cache decide what is compiled and run. Raises RecordsError if others could
    have written to it. With `create`, the cache's folder is first created and made private.
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
    """Open the store in `folder`, creating it if it does not exist; return connection and lock.

    If it is `private`, what is created is accessible to its owner alone. A damaged store is
    recovered first, and `report` is called with one line about it. Raises RecordsError if the
    folder cannot be written, holds something else or a newer schema, or is damaged while other
    processes use it.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    damaged_deadline: float | None = None
    while True:
        lock: FolderLock | None = None
        try:
            _create_where_absent(folder, private)
            lock = FolderLock(folder)
        except FileNotFoundError as error:
            # It is being replaced at this moment, or nothing can be created there.
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

    Returns the rows that SQLite will not find although they are in the log: see `salvage_tail`.
    """
    rows: dict[str, Row] = {}
    main, wal = folder / sqlite.FILE, folder / sqlite.WAL
    if not main.exists() and not wal.exists():
        raise RecordsError(f"{folder}: is not a record store; it was not touched")
    if not main.exists() or not main.stat().st_size:
        raise DamagedRecordsError(f"{folder}: is damaged ({sqlite.FILE} is empty or missing)")
    if alone and wal.exists():  # without the exclusive lock it may be changing
        log = read_wal(wal.read_bytes())
        if log.damage is not None:
            raise DamagedRecordsError(f"{folder}: is damaged ({log.damage})")
        rows = salvage_tail(main.read_bytes(), log) if log.sound < len(log.frames) else rows
    sqlite.check(folder, thorough=alone)
    return rows


def _create_where_absent(folder: Path, private: bool) -> None:
    """Put a complete, empty store in place, or the recovered one that a crash left behind."""
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
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
                raise


@contextmanager
def _filled(folder: Path, rows: dict[str, Row], private: bool) -> Iterator[Path]:
    """A new folder beside `folder`, ready to be renamed: a store with these rows, on disk."""
    with sibling(folder, private=private) as new:
        with sqlite.errors(folder):
            sqlite.create(new)
            if private:
                (new / sqlite.FILE).chmod(0o600)  # SQLite gives its other files the same mode
            with closing(sqlite.connect(new)) as connection:
                _insert_all(connection, rows)
        sync(new / sqlite.FILE)
        sync(new)
        yield new


def _recover(folder: Path, damage: str, report: Report, private: bool) -> None:
    """Replace the damaged store by one with its intact rows. The caller holds it exclusively."""
    try:
        found = salvage(_bytes(folder / sqlite.FILE), _bytes(folder / sqlite.WAL))
        waiting = recovered(folder)
        shutil.rmtree(waiting, ignore_errors=True)  # of an earlier attempt that was interrupted
        with _filled(folder, found, private) as new:
            os.rename(new, waiting)
        now = datetime.datetime.now(datetime.timezone.utc)
        aside = folder.with_name(f"{folder.name}.damaged-{now:%Y%m%dT%H%M%S.%f}")
        os.rename(folder, aside)
        with suppress(FileNotFoundError):  # a process opening the store just now does this for us
            os.rename(waiting, folder)
        sync(folder.parent)
    except OSError as error:
        text = f"{damage}, and cannot be recovered here ({error.strerror})"
        raise RecordsError(text) from error
    counted = sum(row.table == "records" for row in found.values())
    were = "record was" if counted == 1 else "records were"
    report(f"{damage}: {counted} intact {were} recovered; the damaged store is {aside}")


def insert(connection: sqlite3.Connection, row: Row) -> bool:
    """Insert this row or repair it; return whether it was missing or damaged."""
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
    """Return the path at which a recovered store waits to be renamed."""
    return folder.with_name(f"{folder.name}.recovered")


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
