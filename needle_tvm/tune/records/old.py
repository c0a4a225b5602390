"""The records of a store that an older needle kept in an SQLite file, for `records merge`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from needle_tvm.artifact.files import regular_size
from needle_tvm.errors import RecordsError
from needle_tvm.text import counted
from needle_tvm.tune.records import rows
from needle_tvm.tune.records.rows import COLUMNS, KINDS, Row


def read_old(file: Path, report: Callable[[str], None]) -> Iterator[Row]:
    """Yield the intact rows of a store's SQLite file; damaged ones are counted in a report.

    Raises RecordsError for a file that is no such store, or that SQLite cannot read.
    """
    damaged = 0
    try:
        regular_size(file)  # SQLite would wait for a pipe
        with closing(
            sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if not tables & set(COLUMNS):
                raise RecordsError(f"{file}: is not a record store; it was not touched")
            for kind in KINDS:
                if kind.table not in tables:  # trials came later
                    continue
                columns = ", ".join(COLUMNS[kind.table])
                for stored in connection.execute(f"SELECT digest, {columns} FROM {kind.table}"):
                    row = rows.verified(kind, stored)
                    damaged += row is None
                    if row is not None:
                        yield row
    except (OSError, sqlite3.Error) as error:
        raise RecordsError(f"{file}: cannot be read ({error}); nothing was taken") from error
    if damaged:
        report(f"{file}: {counted(damaged, 'damaged row')} not used")
