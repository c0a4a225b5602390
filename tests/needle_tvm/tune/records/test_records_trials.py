"""Trials: a session's spent budget survives its process and damage; stores of older schemas."""

import math
import os
import random
import shutil
import signal
import sqlite3
from contextlib import closing

import pytest

from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import rows
from needle_tvm.tune.records import sqlite as files
from needle_tvm.tune.records.opening import insert
from needle_tvm.tune.records.rows import GATED, MEASURED, REJECTED, Record, Trial
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.tune.records.record_writer import (
    SPENT,
    add_trial,
    make_record,
    make_trial,
    make_workload,
    session_of,
)
from tests.needle_tvm.tune.records.test_records_damage import contents, rows_of, start_writer
from tests.needle_tvm.tune.records.test_records_store import Killed, run_beside

SESSION = session_of("writer")


def test_a_trial_is_kept_whole_and_counts_once(store, tmp_path):
    assert store.spent(SESSION) == (0, 0.0)
    for _ in range(2):  # writing a row again changes nothing
        for i in range(6):
            add_trial(store, "writer", i)
        add_trial(store, "another", 0)
        assert store.spent(SESSION) == (6, 6 * SPENT)
        assert contents(store) == rows_of("writer", 6) | rows_of("another", 1)
    with Store(tmp_path / "merged") as other:
        for i in range(3, 8):
            add_trial(other, "writer", i)
        for _ in range(2):
            other.merge(store)
        assert other.spent(SESSION) == (8, 8 * SPENT)
    record = rows.name(make_trial("writer", 0)[3])
    workload, module, key, kept, _, _ = make_trial("writer", 0)
    longer = [Trial(SESSION, record, 1.0, "seed")]  # another trial of the same record
    store.add([kept], workload=workload, module=module, key=key, trials=longer)
    assert store.spent(SESSION) == (6, 5 * SPENT + 1.0)
    counts = store.remove([record])
    assert (counts["records"], counts["trials"]) == (1, 2)
    assert store.spent(SESSION) == (5, 5 * SPENT)


def test_a_trial_that_cannot_be_written_whole_is_not_written(store, monkeypatch):
    add_trial(store, "writer", 0)
    before = contents(store)

    def failing(connection, row):
        if isinstance(row, Trial):  # the last row of the transaction
            raise sqlite3.OperationalError("database or disk is full")
        return insert(connection, row)

    monkeypatch.setattr("needle_tvm.tune.records.store.insert", failing)
    with pytest.raises(RecordsError, match="nothing was written"):
        add_trial(store, "writer", 1)
    assert contents(store) == before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"session": "my session"}, "session 'my session': must be 8 to 64 hex digits"),
        ({"seconds": -1.0}, "seconds -1.0: must be a float from 0"),
        ({"seconds": math.nan}, "seconds nan"),
        ({"seconds": math.inf}, "seconds inf"),
        ({"seconds": 1}, "seconds 1: must be a float"),
        ({"source": "luck"}, "source 'luck': must be one of search, rule, seed"),
    ],
)
def test_a_bad_trial_is_refused_by_name(changed, said):
    values = {"session": SESSION, "record": "0" * 64, "seconds": 1.0, "source": "rule"}
    with pytest.raises(ValueError, match=said):
        Trial(**{**values, **changed})


def test_what_is_about_another_record_is_refused(store):
    workload, module, key, _, verdicts, trials = make_trial("writer", 1)
    of = {"workload": workload, "module": module, "key": key}
    for about in ({"verdicts": verdicts}, {"trials": trials}):
        with pytest.raises(ValueError, match="another record"):
            store.add([make_record(workload, "other")], **of, **about)
    assert contents(store) == {}


def test_what_was_tried_is_known_with_its_strongest_state(store):
    workload, module, key = make_workload(0)
    of = {"workload": workload, "module": module, "key": key}
    for i, (run_secs, states) in enumerate(
        [([3.0], []), ([2.0], [GATED]), ([1.0], [GATED, REJECTED]), (None, [REJECTED])]
    ):
        record = rows.measurement(workload, [i], run_secs, [], host="first")
        again = rows.measurement(workload, [i], run_secs and [5.0], [], host="again")
        store.add([record, again], **of)
        for state in states:
            store.decide([rows.name(record)], state)
    assert store.known([rows.name(workload)]) == {
        "[0]": (MEASURED, 3.0),
        "[1]": (GATED, 2.0),
        "[2]": (REJECTED, 1.0),
        "[3]": (REJECTED, None),
    }
    assert store.known([rows.name(make_workload(1)[0])]) == store.known([]) == {}


def flipped(data, at, bit):
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_a_flipped_bit_in_a_trial_is_never_a_wrong_budget(tmp_path):
    path = tmp_path / "whole"
    with Store(path) as store:
        for i in range(9):
            add_trial(store, "writer", i, spent=0.1 + i / 7)
        everything = contents(store)
        trials = store.all(Trial)
    data = (path / files.FILE).read_bytes()
    name, trial = max(trials.items())
    values = "".join((name, trial.session, trial.record)).encode()
    start = data.index(values)
    chance = random.Random(0)
    lost = 0
    for at in range(start - 8, start + len(values) + 8 + len(trial.source)):
        if at % 5 and start <= at < start + len(values):
            continue
        shutil.rmtree(tmp_path / "records", ignore_errors=True)
        shutil.copytree(path, tmp_path / "records")
        (tmp_path / "records" / files.FILE).write_bytes(flipped(data, at, chance.randrange(8)))
        reported = []
        with Store(tmp_path / "records", report=reported.append) as store:
            found, spent = contents(store), store.spent(SESSION)
        assert found.items() <= everything.items()
        # The flip may be in the neighbouring cell, where cells meet.
        missing = set(everything) - set(found)
        assert len(missing) <= 1 and missing <= set(trials)
        assert bool(missing) <= bool(reported), at
        kept = [row.seconds for one, row in trials.items() if one not in missing]
        assert spent == (len(kept), math.fsum(kept))
        lost += bool(missing)
    assert lost > 40


# Stores of schema 1, which had no trials

SCHEMA_1 = """
PRAGMA page_size = 4096;
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE modules (digest TEXT NOT NULL UNIQUE, text TEXT NOT NULL);
CREATE TABLE keys (digest TEXT NOT NULL UNIQUE, text TEXT NOT NULL);
CREATE TABLE workloads (digest TEXT NOT NULL UNIQUE, structural_hash TEXT NOT NULL,
  module TEXT NOT NULL, key TEXT NOT NULL);
CREATE TABLE records (digest TEXT NOT NULL UNIQUE, workload TEXT NOT NULL, trace TEXT NOT NULL,
  run_secs TEXT NOT NULL, args_info TEXT NOT NULL, seconds REAL, measured_at TEXT NOT NULL,
  host TEXT NOT NULL);
CREATE TABLE verdicts (digest TEXT NOT NULL UNIQUE, record TEXT NOT NULL, state TEXT NOT NULL,
  decided_at TEXT NOT NULL, host TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX workloads_by_hash ON workloads(structural_hash, key);
CREATE INDEX records_by_time ON records(workload, seconds);
CREATE INDEX verdicts_by_record ON verdicts(record);
PRAGMA application_id = 1852075122;
PRAGMA user_version = 1;
COMMIT;
"""


def old_store(path, count=9):
    """Make a store of schema 1 in `path` and return its rows."""
    path.mkdir()
    found = {name: row for name, row in rows_of("writer", count).items() if type(row) is not Trial}
    with closing(sqlite3.connect(path / files.FILE)) as connection:
        connection.executescript(SCHEMA_1)
        for row in found.values():
            insert(connection, row)
        connection.commit()
    return found


def schema(path):
    with closing(sqlite3.connect(path / files.FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (tables,) = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE tbl_name = 'trials'"
        ).fetchone()
        return connection.execute("PRAGMA user_version").fetchone()[0], tables


def test_an_old_store_is_brought_up_to_date_in_place(tmp_path):
    old = old_store(tmp_path / "records")
    assert schema(tmp_path / "records") == (1, 0)
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store) == old and store.spent(SESSION) == (0, 0.0)
        for i in range(9):
            add_trial(store, "writer", i)
    assert schema(tmp_path / "records") == (2, 4)  # the table and its three indexes
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store) == rows_of("writer", 9)
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


@pytest.mark.parametrize("statements", range(6))
def test_an_interrupted_migration_is_done_again(tmp_path, statements):
    old = old_store(tmp_path / "records")
    code = (
        "import os, signal, sys\n"
        "from record_writer import *\n"
        "from needle_tvm.tune.records import sqlite\n"
        "left = int(sys.argv[2])\n"
        "def trace(statement):\n"
        "    global left\n"
        "    if statement.startswith(('BEGIN', 'CREATE', 'PRAGMA user_version =', 'COMMIT')):\n"
        "        if left == 0:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        left -= 1\n"
        "migrate = sqlite.migrate\n"
        "def traced(connection):\n"
        "    connection.set_trace_callback(trace)\n"
        "    migrate(connection)\n"
        "sqlite.migrate = traced\n"
        "Store(sys.argv[1])\n"
    )
    with pytest.raises(Killed):
        run_beside(code, tmp_path / "records", statements)
    assert schema(tmp_path / "records") == (1, 0)
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store) == old
    assert schema(tmp_path / "records") == (2, 4)


def test_processes_that_meet_an_old_store_bring_it_up_to_date_once(tmp_path):
    for turn in range(3):
        path = tmp_path / str(turn)
        old = old_store(path)
        writers = [start_writer(path, tmp_path / f"told{turn}.{i}", i, 4) for i in range(6)]
        for writer in writers:
            _, err = writer.communicate(timeout=60)
            assert writer.returncode == 0, err.decode()
        for i in range(6):
            old |= rows_of(i, 4)
        with Store(path, report=pytest.fail) as store:
            assert contents(store) == old


def test_an_old_needle_goes_on_with_a_store_that_a_new_one_opened(tmp_path):
    path = tmp_path / "records"
    old = old_store(path)
    with closing(sqlite3.connect(path / files.FILE)) as theirs:
        assert theirs.execute("SELECT count(*) FROM records").fetchone() == (9,)
        with Store(path, report=pytest.fail) as store:
            record = make_record(make_workload(0)[0], "of an old needle")
            insert(theirs, record)
            theirs.commit()
            add_trial(store, "writer", 0)
            assert store.row(Record, rows.name(record)) == record
            assert len(contents(store)) == len(old) + 2


def test_an_old_store_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    path = tmp_path / "records"
    old = old_store(path)
    before = {item.name: item.read_bytes() for item in path.iterdir()}
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Store(path, report=pytest.fail) as store:
        assert contents(store) == old and store.spent(SESSION) == (0, 0.0)
    assert {item.name: item.read_bytes() for item in path.iterdir()} == before


def test_what_is_intact_of_a_damaged_old_store_comes_to_a_new_one(tmp_path):
    path, reported = tmp_path / "records", []
    old = old_store(path)
    data = (path / files.FILE).read_bytes()
    (path / files.FILE).write_bytes(bytes(4096) + data[4096:])
    with Store(path, report=reported.append) as store:
        assert contents(store) == old
        add_trial(store, "writer", 0)
    assert len(reported) == 1 and "9 intact records" in reported[0]
    assert schema(path) == (2, 4)


def test_a_trial_outlives_a_kill_right_after_its_commit(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from record_writer import *\n"
        "add_trial(Store(sys.argv[1]), 'writer', 0)\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    with pytest.raises(Killed):
        run_beside(code, tmp_path / "records")
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert store.spent(SESSION) == (1, SPENT)
