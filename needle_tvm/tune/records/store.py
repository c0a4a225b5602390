"""The record store: JSON lines in a file that processes share, and that concatenation merges.

    with Store() as store:
        store.add([record], workload=workload, module=module, key=key)
        store.best([name(workload)], 1)

The search opens one, and the `records` commands list, merge and prune with it. It imports no TVM:
modules, traces and targets are text here. `database` is the interface for meta_schedule.

A line holds rows that were written together, and the SHA-256 of their text:

    {"rows": [["records", ...], ["verdicts", ...]], "sha256": "..."}

A writer locks the folder, reads what others have written, appends one piece of text that ends with
a newline, and returns when it is on disk. What a killed writer has left has no newline; the next
writer cuts it off. A line whose SHA-256 is wrong is reported and not used.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import hashlib
import json
import math
import os
import platform
import stat
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from needle_tvm.artifact import cache
from needle_tvm.errors import ArtifactError, RecordsError
from needle_tvm.process import atomic
from needle_tvm.target import host
from needle_tvm.text import counted, one_line
from needle_tvm.tune.records import rows
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
    Row,
    Trial,
    Verdict,
    Workload,
)

FILE, OLD_FILE, DAMAGED_FILE = "records.jsonl", "records.sqlite3", "damaged.jsonl"
FORMAT = 1

Report = Callable[[str], None]


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

    Raises RecordsError if the folder holds something else or a newer format, if others could have
    written to a store in the cache, or if there is no store and `create` is false. With
    `beside_old`, a folder with only a store of an older needle is no error. Methods raise
    RecordsError if the file cannot be read or a write failed; nothing of that write is kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        create: bool = True,
        report: Report | None = None,
        beside_old: bool = False,
    ) -> None:
        self.path = default_path() if path is None else _absolute(path)
        self._file = self.path / FILE
        self._report = report or _warn
        self._mutex = threading.RLock()
        self._closed = False
        self._forget()
        self._private = _check_place(self.path, create)
        try:
            self._find(create, beside_old)
            self.writable = os.access(self.path, os.W_OK) and os.access(self._file, os.W_OK)
        except OSError as error:
            raise RecordsError(
                f"{self.path}: cannot be opened ({_reason(error)}); nothing was written"
            ) from error
        with self._using():  # reads it
            pass
        _OPEN.add(self)

    def _find(self, create: bool, beside_old: bool) -> None:
        """Check that the folder holds a store; make one if it may."""
        there = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        if self.path.exists() and not self.path.is_dir():
            raise RecordsError(f"{self.path}: is not a record store; it was not touched")
        if FILE in there:
            return
        if OLD_FILE in there and not beside_old:
            raise RecordsError(
                f"{self.path}: holds the records of an older needle ({OLD_FILE}), which only a "
                "command reads: python -m needle_tvm records merge --store "
                f"{self.path} {self.path / OLD_FILE}"
            )
        if there and OLD_FILE not in there:
            raise RecordsError(f"{self.path}: is not a record store; it was not touched")
        if not create:
            raise RecordsError(f"{self.path}: there is no record store (tuning and merge make one)")
        made = not self.path.exists()
        self.path.mkdir(mode=0o700 if self._private else 0o777, exist_ok=True)
        try:
            with self._locked():
                if not self._file.exists():
                    self._write(0, _line({"format": FORMAT}))
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
        self._identity: tuple[int, int] | None = None  # of the file that was read
        self._offset = 0  # up to which it was read
        self._ended = True  # whether that is behind a newline
        self._damaged: list[bytes] = []
        self._rows: dict[str, dict[str, Row]] = {table: {} for table in COLUMNS}
        self._of_workload: dict[str, dict[str, Record]] = {}
        self._verdicts: dict[str, list[Verdict]] = {}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """No other process or thread writes meanwhile."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # whoever has a copy of the descriptor
            os.close(descriptor)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """What is in the file has been read."""
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
        """As `_using`, and nobody else writes."""
        if not self.writable:
            raise RecordsError(f"{self.path}: is read-only; nothing was written")
        try:
            with self._mutex, self._locked(), self._using():
                yield
        except OSError as error:
            raise RecordsError(f"{self.path}: {_reason(error)}; nothing was written") from error

    def _read(self) -> None:
        """Read what has been written since the last time."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._file, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):  # nobody may write to a pipe
                raise RecordsError(f"{self._file}: is not a regular file")
            if (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset:
                self._forget()
                self._identity = status.st_dev, status.st_ino
            if status.st_size == self._offset:
                return
            file.seek(self._offset)
            data = file.read()
        *lines, last = data.split(b"\n")
        self._ended = _content(last) is None
        if not self._ended:  # only its newline is missing
            lines, last = [*lines, last], b""
        damaged = []
        for line in filter(bytes.strip, lines):
            content = _content(line)
            if content is None:
                damaged.append(line)
            elif content["format"] > FORMAT:
                raise RecordsError(
                    f"{self.path}: was written by a newer needle (format {content['format']}, "
                    f"this one reads up to {FORMAT}); it was not touched"
                )
            for row in content["rows"] if content else ():
                self._keep(row)
        self._damaged += damaged
        self._offset += len(data) - len(last)
        if damaged:
            these = counted(len(damaged), "damaged line")
            self._report(f"{self._file}: {these} not used; prune sets what is damaged aside")

    def _keep(self, row: Row) -> None:
        name = rows.name(row)
        if name in self._rows[row.table]:
            return
        self._rows[row.table][name] = row
        if isinstance(row, Record):
            self._of_workload.setdefault(row.workload, {})[name] = row
        elif isinstance(row, Verdict):
            self._verdicts.setdefault(row.record, []).append(row)

    def _append(self, batches: Iterable[Iterable[Row]]) -> list[Row]:
        """Write the rows that are not there yet, a line for each batch; return these."""
        new: dict[str, Row] = {}
        lines: list[bytes] = []
        for batch in batches:
            absent = {rows.name(r): r for r in batch}
            absent = {
                n: r for n, r in absent.items() if n not in self._rows[r.table] and n not in new
            }
            if absent:
                lines.append(_line({"rows": [[r.table, *rows.values(r)] for r in absent.values()]}))
                new |= absent
        if new:
            text = b"".join(lines if self._ended else [b"\n", *lines])
            self._write(self._offset, text)
            self._offset, self._ended = self._offset + len(text), True
            for row in new.values():
                self._keep(row)
        return list(new.values())

    def _write(self, end: int, text: bytes) -> None:
        """Put text behind the first `end` bytes of the file; on an error it is as it was."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file, flags, 0o600 if self._private else 0o666)
        try:
            os.ftruncate(descriptor, end)  # what a killed writer has left
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

    # The rows

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

        `verdicts` and `trials` are of these records and are stored in the same line, all or
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
        with self._writing():
            new = self._append([[module, key, workload, *records, *about]])
            return sum(isinstance(row, Record) for row in new)

    def spent(self, session: str) -> tuple[int, float]:
        """Return the trials of this session, and the seconds of its budget that they took.

        Only trials whose records are present count: a lost measurement is to be tried again.
        """
        # By record: however often it was written or merged, one measurement counts once.
        seconds: dict[str, float] = {}
        there = self.all(Record)
        for trial in self.all(Trial).values():
            if trial.session == session and trial.record in there:
                seconds[trial.record] = max(trial.seconds, seconds.get(trial.record, 0.0))
        return len(seconds), math.fsum(seconds.values())

    def tried(self, session: str, workloads: Collection[str]) -> dict[str, str]:
        """Return the records this session tried of the named workloads: name, and why rejected.

        The reason is the verdict's, or empty for a record that was not rejected.
        """
        with self._using():
            there = {n for workload in workloads for n in self._of_workload.get(workload, ())}
            trials = self.all(Trial).values()
            tried = {t.record for t in trials if t.session == session and t.record in there}
            return {record: self._detail(record) for record in sorted(tried)}

    def _detail(self, record: str) -> str:
        of = self._verdicts.get(record, ())
        return next((v.detail for v in of if v.state == REJECTED), "")

    def known(self, workloads: Collection[str]) -> dict[str, tuple[str, float | None]]:
        """Return every trace tried on the named workloads, as the records' JSON text.

        Each has the strongest state of its records, and the shortest time of those that ran (None
        if none did).
        """
        found: dict[str, tuple[str, float | None]] = {}
        with self._using():
            for workload in workloads:
                for name, record in self._of_workload.get(workload, {}).items():
                    state, seconds = found.get(record.trace, (rows.MEASURED, None))
                    times = [t for t in (record.seconds, seconds) if t is not None]
                    state = rows.strongest([state, self._state(name)])
                    found[record.trace] = state, min(times, default=None)
        return found

    def decide(self, records: Iterable[str], state: str, detail: str = "") -> None:
        """Store a verdict, "gated" or "rejected", on each of the named records.

        A rejection outweighs every gate, earlier or later. Raises ValueError for another state and
        KeyError for a record that is not in the store.
        """
        if state not in STATES[1:]:
            raise ValueError(f"state {state!r}: must be one of {', '.join(STATES[1:])}")
        records = list(records)
        with self._writing():
            for record in records:
                if record not in self._rows[Record.table]:
                    raise KeyError(f"there is no record {record}")
            self._append([[Verdict(n, state, now(), this_host(), detail) for n in records]])

    def candidates(self, structural_hash: str, key: KeyRow) -> list[tuple[str, str]]:
        """Return (name, module's JSON) of the workloads with this hash and key.

        Their modules need not be equal: the caller compares them.
        """
        key_name = rows.name(key)
        found = []
        for name, workload in self.all(Workload).items():
            if (workload.structural_hash, workload.key) == (structural_hash, key_name):
                module = self.row(Module, workload.module)
                if module is not None:
                    found.append((name, module.text))
        return found

    def best(
        self, workloads: Collection[str], limit: int, states: Sequence[str] = (GATED,)
    ) -> list[tuple[str, Record]]:
        """Return the `limit` fastest records of the named workloads, with the records' names.

        Only records in one of `states` that ran are returned.
        """
        with self._using():
            found = [
                (record.seconds, name, record)
                for workload in dict.fromkeys(workloads)
                for name, record in self._of_workload.get(workload, {}).items()
                if record.seconds is not None and self._state(name) in states
            ]
        return [(name, record) for _, name, record in sorted(found)[: max(limit, 0)]]

    def state(self, record: str) -> str:
        """Return the state of the record of this name."""
        with self._using():
            return self._state(record)

    def _state(self, record: str) -> str:
        of = self._verdicts.get(record, ())
        return rows.strongest([verdict.state for verdict in of if verdict.state in STATES])

    def all(self, kind: type[R], fits: Callable[[R], bool] | None = None) -> dict[str, R]:
        """Return the rows of one kind that fit, by name."""
        with self._using():
            found = cast(Mapping[str, R], self._rows[kind.table])
            return {n: found[n] for n in sorted(found) if fits is None or fits(found[n])}

    def row(self, kind: type[R], name: str) -> R | None:
        """Return the row of this kind and name, or None if it is absent."""
        with self._using():
            return cast("R | None", self._rows[kind.table].get(name))

    def merge(self, other: Store) -> dict[str, int]:
        """Take the rows of `other` that are missing here, all or nothing; return counts by table.

        Merging again changes nothing, and the order of merges does not matter.
        """
        return self.take(row for kind in KINDS for row in other.all(kind).values())

    def take(self, taken: Iterable[Row]) -> dict[str, int]:
        """Store rows of any kind, all or nothing; return the number of new ones by table."""
        counts = dict.fromkeys(COLUMNS, 0)
        with self._writing():
            for row in self._append([row] for row in taken):
                counts[row.table] += 1
        return counts

    def remove(self, records: Collection[str], *, dry_run: bool = False) -> dict[str, int]:
        """Delete records, and workloads left without any; return the number of rows by table.

        Damaged lines go to a file of their own, where nothing reads them.
        """
        doomed = set(records)
        with self._writing():
            kept: dict[str, list[Any]] = {t: list(of.values()) for t, of in self._rows.items()}
            for table in ("verdicts", "trials"):
                kept[table] = [row for row in kept[table] if row.record not in doomed]
            kept["records"] = [r for n, r in self._rows["records"].items() if n not in doomed]
            used = {record.workload for record in kept["records"]}
            kept["workloads"] = [w for n, w in self._rows["workloads"].items() if n in used]
            for table, field in (("modules", "module"), ("keys", "key")):
                used = {getattr(workload, field) for workload in kept["workloads"]}
                kept[table] = [row for n, row in self._rows[table].items() if n in used]
            counts = {table: len(of) - len(kept[table]) for table, of in self._rows.items()}
            if not dry_run:
                lines = [_line({"format": FORMAT})]
                for of in kept.values():
                    lines += [_line({"rows": [[row.table, *rows.values(row)]]}) for row in of]
                if self._damaged:
                    with open(self.path / DAMAGED_FILE, "ab") as aside:
                        aside.writelines(line + b"\n" for line in self._damaged)
                mode = self._file.stat().st_mode & 0o777
                atomic.write_file(self._file, b"".join(lines))
                self._file.chmod(mode)
        return counts


def _line(content: Mapping[str, Any]) -> bytes:
    text = rows.canonical(content)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (rows.canonical({**content, "sha256": digest}) + "\n").encode()


def _content(line: bytes) -> dict[str, Any] | None:
    """The format of a line, if it states one, and its rows; None if it is damaged."""
    try:
        content = json.loads(line)
        digest = content.pop("sha256")
        if hashlib.sha256(rows.canonical(content).encode()).hexdigest() != digest:
            return None
        found = [_KINDS[table](*values) for table, *values in content.get("rows", ())]
        return {"format": int(content.get("format", FORMAT)), "rows": found}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


_KINDS: dict[str, type[Row]] = {kind.table: kind for kind in KINDS}


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left on its disk"
    return error.strerror or str(error)


def _check_place(folder: Path, create: bool) -> bool:
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


def _absolute(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no such user, no current folder
        raise RecordsError(f"{os.fspath(path)}: names no folder ({error})") from None


# A forked child has a copy of each store, and must not find it half changed by another thread, or
# hold the folder's lock.
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
