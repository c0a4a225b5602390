"""The SQLite file of a store: its schema, its connections, and the meaning of its errors.

`opening` and `store` use it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from needle_tvm.errors import DamagedRecordsError, RecordsError
from needle_tvm.tune.records.rows import COLUMNS

FILE = "records.sqlite3"
WAL = f"{FILE}-wal"
SCHEMA = 2
_ADDED = {"trials": 2, "trials_by_session": 2, "trials_by_record": 2}  # schema that introduced each
_APPLICATION = 0x6E64_6C72  # "ndlr", in the file's header
_BUSY_SECONDS = 60.0  # how long a writer waits for another writer's transaction

_INDEXES = {
    "workloads_by_hash": "workloads(structural_hash, key)",
    "records_by_time": "records(workload, seconds)",
    "verdicts_by_record": "verdicts(record)",
    "trials_by_session": "trials(session)",
    "trials_by_record": "trials(record)",
}


def _script() -> str:
    # Values keep the type they are given, except `seconds`: NULL or REAL. There are no foreign
    # keys: a row whose related row was lost to damage is kept, and counts again when that row comes
    # back.
    statements = ["PRAGMA page_size = 4096", "PRAGMA journal_mode = WAL", "BEGIN"]
    statements += _definitions(0)
    statements += [f"PRAGMA application_id = {_APPLICATION}", f"PRAGMA user_version = {SCHEMA}"]
    statements.append("COMMIT")
    return ";\n".join(statements) + ";"


def _definitions(schema: int) -> list[str]:
    """Return the statements that add what a file of this schema lacks; everything for 0."""
    types = {"seconds": "REAL"}
    statements = []
    for table, columns in COLUMNS.items():
        if _ADDED.get(table, 1) > schema:
            cells = ", ".join(f"{name} {types.get(name, 'TEXT NOT NULL')}" for name in columns)
            statements.append(
                f"CREATE TABLE IF NOT EXISTS {table} (digest TEXT NOT NULL UNIQUE, {cells})"
            )
    statements += [
        f"CREATE INDEX IF NOT EXISTS {name} ON {columns}"
        for name, columns in _INDEXES.items()
        if _ADDED.get(name, 1) > schema
    ]
    return statements


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file of an older schema up to this one, in one transaction.

    Every row of schema 1 is a valid row of schema 2: nothing is rewritten, and a process of an
    older needle that has the file open can continue.
    """
    if _schema(connection) == SCHEMA:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        schema = _schema(connection)  # another process may have been faster
        if schema < SCHEMA:
            for statement in _definitions(schema):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _schema(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def create(folder: Path) -> None:
    """Create a new, empty file in `folder`."""
    with closing(_connect(folder, "rwc")) as connection:
        connection.executescript(_script())


def connect(folder: Path) -> sqlite3.Connection:
    """Open a connection whose commits are on disk when they return."""
    connection = _connect(folder, "rw")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone stops at the drive's cache
    # Overwrites what prune removed, so that salvaging does not bring it back.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _connect(folder: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{(folder / FILE).absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,  # explicit transactions only
        check_same_thread=False,
    )
    connection.text_factory = _text
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _text(data: bytes) -> str:
    """Decode text. Damaged text is not an error here: it will not fit the row's name."""
    return data.decode(errors="replace")


def check(folder: Path, *, thorough: bool) -> None:
    """Raise DamagedRecordsError if the file is damaged; changes nothing on disk.

    `thorough` also compares indexes with their tables. Raises RecordsError for a file of a newer
    schema, and for one that is not a record store.
    """
    # A read-only connection leaves the write-ahead log in place when it closes.
    with errors(folder), closing(_connect(folder, "ro")) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        schema = _schema(connection)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if application != _APPLICATION and not tables & set(COLUMNS):
            raise RecordsError(f"{folder / FILE}: is not a record store; it was not touched")
        if schema > SCHEMA:
            raise RecordsError(
                f"{folder}: was written by a newer needle (schema {schema}, this one reads up to "
                f"{SCHEMA}); it was not touched"
            )
        pragma = "integrity_check" if thorough else "quick_check"
        ((found,),) = connection.execute(f"PRAGMA {pragma}(1)").fetchmany(1)
        expected = (*COLUMNS, *_INDEXES)
        missing = {name for name in expected if _ADDED.get(name, 1) <= schema} - tables
    if found != "ok":
        raise DamagedRecordsError(f"{folder}: is damaged ({_first_line(found)})")
    if missing or application != _APPLICATION or schema < 1:
        what = f"{min(missing)} is missing" if missing else "its header"
        raise DamagedRecordsError(f"{folder}: is damaged ({what})")


def _first_line(text: str) -> str:
    return " ".join(text.replace("*** in database main ***", "").split()) or "unreadable"


@contextmanager
def errors(path: Path, advice: str = "") -> Iterator[None]:
    """Turn SQLite's errors into DamagedRecordsError, or RecordsError with what to do about it.

    Nothing that the block was writing is then in the store.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "malformed" in text or "not a database" in text or "no such" in text:
            raise DamagedRecordsError(f"{path}: is damaged ({text}){advice}") from error
        raise RecordsError(f"{path}: {_meaning(text)}; nothing was written") from error


def _meaning(text: str) -> str:
    if "full" in text:
        return "no space is left on its disk"
    if "readonly" in text or "unable to open" in text:
        return f"cannot be written ({text})"
    if "locked" in text:
        return f"was locked by another process for more than {_BUSY_SECONDS:g} s"
    return f"cannot be read or written ({text})"
