"""The record store: durable, shared by any number of processes, merged by taking both sides' rows.

    with Store() as store:
        store.add([record], workload=workload, module=module, key=key)
        store.best([name(workload)], 1)

The search opens one, and the `records` commands list, merge, prune and import with it. It imports
no TVM: modules, traces and targets are text here. `database` is the interface for meta_schedule.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import shutil
import sqlite3
import tempfile
import threading
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from needle_tvm.artifact import cache
from needle_tvm.errors import RecordsError
from needle_tvm.target import host
from needle_tvm.text import one_line
from needle_tvm.tune.records import rows, sqlite
from needle_tvm.tune.records.opening import (
    FolderLock,
    Report,
    check_place,
    insert,
    open_folder,
    recovered,
)
from needle_tvm.tune.records.rows import (
    COLUMNS,
    GATED,
    KINDS,
    REJECTED,
    STATES,
    KeyRow,
    Module,
    R,
    Record,
    Trial,
    Verdict,
    Workload,
)


def default_path() -> Path:
    """Return the path of this user's store: `records` in the cache's folder."""
    return cache.root() / cache.RECORDS


def now() -> str:
    """Return the current time in the records' format."""
    moment = datetime.datetime.now(datetime.timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def this_host() -> str:
    """Return this machine in the records' format: its name, and a digest of its processor."""
    return f"{platform.node()}/{host.identity()}"


def _warn(line: str) -> None:
    warnings.warn(one_line(line), stacklevel=2)


class Store:
    """The store in the folder `path`, by default the user's own. A context manager.

    One object may be used from several threads, and by a process forked after it was opened. A
    folder that cannot be written is opened read-only. `report` is called with one line about any
    damage found; by default it is a warning.

    Raises RecordsError if the folder holds something else or a newer schema, if it is damaged and
    in use, or if there is no store and `create` is false. Methods raise RecordsError if a write
    failed, and DamagedRecordsError if the files have been damaged since.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        create: bool = True,
        report: Report | None = None,
    ) -> None:
        self.path = default_path() if path is None else _absolute(path)
        self._report = report or _warn
        self._mutex = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._lock: FolderLock | None = None
        self._closed = False
        self._folder = self.path
        self._private = check_place(self.path, create)
        try:
            there = self.path.is_dir() and any(self.path.iterdir())
        except OSError as error:
            raise RecordsError(f"{self.path}: cannot be read ({error.strerror})") from error
        absent = not there and not self.path.is_file() and not recovered(self.path).is_dir()
        if absent and not create:
            raise RecordsError(
                f"{self.path}: there is no record store (tuning, import and merge make one)"
            )
        files = (self.path, self.path / sqlite.FILE, self.path / sqlite.WAL)
        self.writable = all(os.access(file, os.W_OK) for file in files if file.exists())
        if there and not self.writable:
            self._folder = self._copied()
        self._connected()
        _OPEN.add(self)

    def _copied(self) -> Path:
        """Copy the files to a temporary folder: SQLite cannot read a log in a read-only folder."""
        temporary = Path(tempfile.mkdtemp(prefix="needle-records-"))
        self._remove_copy = weakref.finalize(self, _remove, temporary, os.getpid())
        folder = temporary / self.path.name
        folder.mkdir()
        try:
            for file in (sqlite.FILE, sqlite.WAL):
                if (self.path / file).exists():
                    shutil.copyfile(self.path / file, folder / file)
        except OSError as error:
            raise RecordsError(f"{self.path}: cannot be read ({error.strerror})") from error
        if not any(folder.iterdir()):
            raise RecordsError(f"{self.path}: is not a record store")
        return folder

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            own = self._folder == self.path
            self._connection, self._lock = open_folder(
                self._folder, self._report if own else self._report_copy, private=self._private
            )
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            self._lock.close()
        self._connection = self._lock = None

    def _report_copy(self, _: str) -> None:
        """Report damage without naming the recovered files, which are a temporary copy."""
        self._report(f"{self.path}: is damaged, and read-only: only what is intact of it is read")

    def close(self) -> None:
        """Close the files. Everything written is already on disk."""
        with self._mutex:
            self._closed = True
            self._disconnect()
            if self._folder != self.path:
                self._remove_copy()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            if self._closed:
                raise RecordsError(f"{self.path}: was closed")
            connection = self._connected()
            with sqlite.errors(self.path, "; opening it again recovers what is intact"):
                yield connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all that the block writes is stored durably, or none of it."""
        with self._using() as connection:
            if not self.writable:
                raise RecordsError(f"{self.path}: is read-only; nothing was written")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def add(
        self,
        records: Iterable[Record] = (),
        *,
        workload: Workload,
        module: Module,
        key: KeyRow,
        verdicts: Iterable[Verdict] = (),
        trials: Iterable[Trial] = (),
    ) -> int:
        """Store a workload and records of it, durably; return the number of new records.

        `verdicts` and `trials` are of these records and are stored in the same transaction, all or
        nothing. Raises ValueError if the rows do not belong together.
        """
        records = list(records)
        if workload.module != rows.name(module) or workload.key != rows.name(key):
            raise ValueError("the workload names another module or key")
        if any(record.workload != rows.name(workload) for record in records):
            raise ValueError("a record names another workload")
        about: list[Verdict | Trial] = [*verdicts, *trials]
        if not {row.record for row in about} <= {rows.name(record) for record in records}:
            raise ValueError("a verdict or trial names another record")
        with self._transaction() as connection:
            for row in (module, key, workload):
                insert(connection, row)
            new = sum(insert(connection, record) for record in records)
            for about_record in about:
                insert(connection, about_record)
            return new

    def spent(self, session: str) -> tuple[int, float]:
        """Return the trials of this session, and the seconds of its budget that they took.

        Only trials whose records are present count: a lost measurement is to be tried again.
        """
        # By record: however often it was written or merged, one measurement counts once.
        seconds: dict[str, float] = {}
        there = "WHERE session = ? AND record IN (SELECT digest FROM records)"
        for trial in self.all(Trial, there, (session,)).values():
            seconds[trial.record] = max(trial.seconds, seconds.get(trial.record, 0.0))
        return len(seconds), math.fsum(seconds.values())

    def tried(self, session: str, workloads: Collection[str]) -> dict[str, str]:
        """Return the records this session tried of the named workloads: name, and why rejected.

        The reason is the verdict's, or empty for a record that was not rejected.
        """
        marks = ", ".join("?" * len(workloads))
        of_these = f"SELECT digest FROM records WHERE workload IN ({marks})"
        where = f"WHERE session = ? AND record IN ({of_these})"
        trials = self.all(Trial, where, (session, *workloads)).values()
        reasons = {trial.record: "" for trial in trials}
        verdicts = self.all(Verdict, f"WHERE record IN ({of_these})", tuple(workloads)).values()
        for verdict in verdicts:
            if verdict.record in reasons and verdict.state == REJECTED:
                reasons[verdict.record] = verdict.detail
        return reasons

    def known(self, workloads: Collection[str]) -> dict[str, tuple[str, float | None]]:
        """Return every trace tried on the named workloads, as the records' JSON text.

        Each has the strongest state of its records, and the shortest time of those that ran (None
        if none did).
        """
        marks = ", ".join("?" * len(workloads))
        records = self.all(Record, f"WHERE workload IN ({marks})", tuple(workloads))
        of_these = f"SELECT digest FROM records WHERE workload IN ({marks})"
        states: dict[str, list[str]] = {}
        found = self.all(Verdict, f"WHERE record IN ({of_these})", tuple(workloads))
        for verdict in found.values():
            record_of = records.get(verdict.record)  # None if it is damaged
            if record_of is not None and verdict.state in STATES:
                states.setdefault(record_of.trace, []).append(verdict.state)
        known: dict[str, tuple[str, float | None]] = {}
        for record in records.values():
            times = [
                seconds
                for seconds in (record.seconds, known.get(record.trace, ("", None))[1])
                if seconds is not None
            ]
            state = rows.strongest(states.get(record.trace, []))
            known[record.trace] = (state, min(times, default=None))
        return known

    def decide(self, records: Iterable[str], state: str, detail: str = "") -> None:
        """Store a verdict, "gated" or "rejected", on each of the named records.

        A rejection outweighs every gate, earlier or later. Raises ValueError for another state and
        KeyError for a record that is not in the store.
        """
        if state not in STATES[1:]:
            raise ValueError(f"state {state!r}: must be one of {', '.join(STATES[1:])}")
        with self._transaction() as connection:
            for record in records:
                if self._row(connection, Record, record) is None:
                    raise KeyError(f"there is no record {record}")
                insert(connection, Verdict(record, state, now(), this_host(), detail))

    def candidates(self, structural_hash: str, key: KeyRow) -> list[tuple[str, str]]:
        """Return (name, module's JSON) of the workloads with this hash and key.

        Their modules need not be equal: the caller compares them.
        """
        found = []
        with self._using() as connection:
            for workload in self._rows(
                connection,
                Workload,
                "WHERE structural_hash = ? AND key = ? ORDER BY digest",
                (structural_hash, rows.name(key)),
            ):
                module = self._row(connection, Module, workload.module)
                if module is not None:
                    found.append((rows.name(workload), module.text))
        return found

    def best(
        self, workloads: Collection[str], limit: int, states: Sequence[str] = (GATED,)
    ) -> list[tuple[str, Record]]:
        """Return the `limit` fastest records of the named workloads, with the records' names.

        Only records in one of `states` that ran are returned.
        """
        found: list[tuple[str, Record]] = []
        if limit <= 0 or not workloads:
            return found
        marks = ", ".join("?" * len(workloads))
        condition = f"WHERE workload IN ({marks}) AND seconds IS NOT NULL "
        if rows.MEASURED not in states:  # else verdicts need looking up only for a few
            condition += "AND digest IN (SELECT record FROM verdicts) "
        with self._using() as connection:
            order = "ORDER BY seconds, digest"
            for record in self._rows(connection, Record, condition + order, tuple(workloads)):
                name = rows.name(record)
                if self._state(connection, name) in states:
                    found.append((name, record))
                    if len(found) == limit:
                        break
        return found

    def state(self, record: str) -> str:
        """Return the state of the record of this name."""
        with self._using() as connection:
            return self._state(connection, record)

    def all(self, kind: type[R], where: str = "", values: Sequence[Any] = ()) -> dict[str, R]:
        """Return the intact rows of one kind by name; `where` is SQL about its columns."""
        with self._using() as connection:
            found = self._rows(connection, kind, f"{where} ORDER BY digest", tuple(values))
            return {rows.name(row): row for row in found}

    def row(self, kind: type[R], name: str) -> R | None:
        """Return the row of this kind and name, or None if it is absent or damaged."""
        with self._using() as connection:
            return self._row(connection, kind, name)

    def merge(self, other: Store) -> dict[str, int]:
        """Take the rows of `other` that are missing here, all or nothing; return counts by table.

        Merging again changes nothing, and the order of merges does not matter.
        """
        taken = [row for kind in KINDS for row in other.all(kind).values()]
        counts = dict.fromkeys(COLUMNS, 0)
        with self._transaction() as connection:
            for row in taken:
                counts[row.table] += insert(connection, row)
        return counts

    def remove(self, records: Collection[str], *, dry_run: bool = False) -> dict[str, int]:
        """Delete records, and workloads left without any; return the number of rows by table."""
        counts = {}
        with self._transaction() as connection:
            connection.execute("CREATE TEMP TABLE IF NOT EXISTS doomed (name TEXT PRIMARY KEY)")
            connection.execute("DELETE FROM doomed")
            connection.executemany(
                "INSERT OR IGNORE INTO doomed VALUES (?)", ((record,) for record in records)
            )
            for table, condition in (
                ("verdicts", "record IN (SELECT name FROM doomed)"),
                ("trials", "record IN (SELECT name FROM doomed)"),
                ("records", "digest IN (SELECT name FROM doomed)"),
                ("workloads", "digest NOT IN (SELECT workload FROM records)"),
                ("modules", "digest NOT IN (SELECT module FROM workloads)"),
                ("keys", "digest NOT IN (SELECT key FROM workloads)"),
            ):
                counts[table] = connection.execute(
                    f"DELETE FROM {table} WHERE {condition}"
                ).rowcount
            if dry_run:
                connection.execute("ROLLBACK")
                connection.execute("BEGIN")
        return counts

    def _state(self, connection: sqlite3.Connection, record: str) -> str:
        found = self._rows(connection, Verdict, "WHERE record = ?", (record,))
        return rows.strongest([verdict.state for verdict in found if verdict.state in STATES])

    def _row(self, connection: sqlite3.Connection, kind: type[R], name: str) -> R | None:
        return next(self._rows(connection, kind, "WHERE digest = ?", (name,)), None)

    def _rows(
        self, connection: sqlite3.Connection, kind: type[R], condition: str, values: tuple[Any, ...]
    ) -> Iterator[R]:
        """Yield the rows whose name fits their values; report and skip the others."""
        columns = ", ".join(COLUMNS[kind.table])
        query = f"SELECT digest, {columns} FROM {kind.table} {condition}"
        for stored in connection.execute(query, values):
            row = rows.verified(kind, stored)
            if row is None:
                shown = str(stored[0])[:12]
                self._report(f"{self.path}: {kind.table[:-1]} {shown} is damaged and not used")
            else:
                yield row


def _absolute(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no such user, no current folder
        raise RecordsError(f"{os.fspath(path)}: names no folder ({error})") from None


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove its parent's copy
        shutil.rmtree(folder, ignore_errors=True)


# SQLite tracks the locks of its process in memory. A forked child finds its parent's locks there,
# does not hold them, and damages the file, even through a connection it opens itself. So every
# store is disconnected while a process forks; both sides connect again at the next use.
_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()
_forking: list[Store] = []


def _before_fork() -> None:
    for store in list(_OPEN):
        store._mutex.acquire()
        _forking.append(store)
        store._disconnect()


def _after_fork() -> None:
    while _forking:
        _forking.pop()._mutex.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
