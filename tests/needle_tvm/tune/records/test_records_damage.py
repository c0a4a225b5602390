"""The record store loses nothing that it acknowledged, and keeps a damaged store's intact rows."""

import math
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import rows, sqlite
from needle_tvm.tune.records.rows import GATED, KINDS, Record
from needle_tvm.tune.records.salvage import read_wal
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.tune.records import record_writer
from tests.needle_tvm.tune.records.record_writer import (
    SPENT,
    add_trial,
    make_record,
    make_trial,
    make_workload,
    session_of,
    token,
)

WRITER = Path(record_writer.__file__)
PAGE, FRAME = 4096, 24 + 4096


def contents(store):
    return {name: row for kind in KINDS for name, row in store.all(kind).items()}


def start_writer(path, acknowledged, name, count):
    command = [sys.executable, str(WRITER), str(path), str(acknowledged), str(name), str(count)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def acknowledged_rows(file):
    """name -> (writer, number) of every record whose commit had returned."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return {name: (writer, int(number)) for name, writer, number in map(str.split, lines)}


def rows_of(writer, trials):
    """The rows of a writer's first trials, by name."""
    found = {}
    for i in range(trials):
        *single, verdicts, spent = make_trial(str(writer), i)
        found.update({rows.name(row): row for row in (*single, *verdicts, *spent)})
    return found


def check_all_there(path, file, kills, reported):
    """Check that the store has every counted trial whole. Each writer has spent what was
    acknowledged, or at most one trial more for each kill. Some rows of a trial that was being
    written may be there; they are true (see salvage_tail), but do not count."""
    told = list(acknowledged_rows(file).values())
    expected, begun = {}, {}
    with Store(path, report=reported.append) as store:
        for writer, killed in kills.items():
            trials, seconds = store.spent(session_of(writer))
            acknowledged = sum(of == writer for of, _ in told)
            assert acknowledged <= trials <= acknowledged + killed
            assert seconds == SPENT * trials
            expected.update(rows_of(writer, trials))
            begun.update(rows_of(writer, trials + 1))
        found = contents(store)
        assert expected.items() <= found.items() <= begun.items()
    return len(told)


def kill_writers(tmp_path, kills):
    path, file, reported = tmp_path / "records", tmp_path / "acknowledged", []
    chance = random.Random(kills)
    total = 0
    killed = {"0": 0, "1": 0}
    for i in range(kills):
        # From time to time another process has the store open, so that its log stays.
        other = Store(path) if i % 3 == 2 else None
        writers = [start_writer(path, file, j, 1_000_000) for j in range(1 + i % 2)]
        before = len(acknowledged_rows(file))
        while len(acknowledged_rows(file)) == before:
            assert all(writer.poll() is None for writer in writers), writers[0].stderr.read()
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.08))
        for j, writer in enumerate(writers):
            writer.send_signal(signal.SIGKILL)
            killed[str(j)] += 1
        for writer in writers:
            writer.communicate()
        total = check_all_there(path, file, killed, reported)
        if other is not None:
            other.close()
    assert total >= kills
    with Store(path, report=reported.append) as store:
        budget = store.spent(session_of("0"))[0] + 5
    writer = start_writer(path, file, "0", budget)
    _, err = writer.communicate(timeout=60)
    assert writer.returncode == 0, err
    with Store(path, report=reported.append) as store:
        assert store.spent(session_of("0")) == (budget, SPENT * budget)
    assert reported == []  # a killed writer does not count as damage


def test_no_acknowledged_trial_is_lost_when_its_writer_is_killed(tmp_path):
    kill_writers(tmp_path, 10)


@pytest.mark.long
def test_no_acknowledged_trial_is_lost_in_200_kills(tmp_path):
    kill_writers(tmp_path, 200)


def fill(store, first, count):
    for i in range(first, first + count):
        workload, module, key = make_workload(i % 3)
        record = make_record(workload, i, seconds=1e-3 * (i + 1), length=200 if i % 2 else 6000)
        store.add([record], workload=workload, module=module, key=key)
        if i % 4 == 0:
            store.decide([rows.name(record)], GATED, token("verdict", i))
        add_trial(store, "writer", i, spent=math.sqrt(i + 0.3), length=200)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder with a checkpointed file, its rows), (folder with a log left behind, its rows)."""
    folder = tmp_path_factory.mktemp("whole")
    with Store(folder / "closed") as store:
        fill(store, 0, 60)
        closed = contents(store)
    shutil.copytree(folder / "closed", folder / "open")
    with Store(folder / "open") as store:
        fill(store, 60, 12)
        copied = contents(store)
        shutil.copytree(folder / "open", folder / "logged")  # as left by a killed process
    return (folder / "closed", closed), (folder / "logged", copied)


def mark_of(row):
    """Bytes that every page with a piece of the row contains, without the first and last."""
    return _mark_of(row)[1:-1]


def _mark_of(row):
    if isinstance(row, rows.Trial):
        return struct.pack(">d", row.seconds)
    return _text_of(row).encode()


def _text_of(row):
    if isinstance(row, rows.Module):
        return row.text[: row.text.index(">") + 1]
    if isinstance(row, Record):
        return row.trace[2 : row.trace.index(">") + 1]
    return row.detail if isinstance(row, rows.Verdict) else rows.name(row)


def damage_and_open(source, everything, tmp_path, file, start, change):
    """Damage a copy of a store, open it, compare, and return what was reported.

    `change` returns a file's new bytes, given its bytes. Rows to which no changed byte belongs must
    be there, and no new rows.
    """
    path = tmp_path / "records"
    for old in tmp_path.glob("records*"):
        shutil.rmtree(old)
    shutil.copytree(source, path)
    data = (path / file).read_bytes()
    changed = change(data, start)
    (path / file).write_bytes(changed)
    kept = len(data) - len(changed)
    gone = data[start:] if kept else data[start : start + PAGE + 24]
    damaged = {item.name: item.read_bytes() for item in path.iterdir()}
    reported = []
    with Store(path, report=reported.append) as store:
        found = contents(store)
    assert found.items() <= everything.items()
    # A page's edge may cut a mark in two, but other copies of it in the row are whole.
    for name in set(everything) - set(found):
        assert mark_of(everything[name]) in gone, (file, start, change.__name__)
    if any("recovered" in line for line in reported):
        (aside,) = tmp_path.glob("records.damaged-*")
        was = {name: data for name, data in damaged.items() if not name.endswith("-shm")}
        assert {name: (aside / name).read_bytes() for name in was} == was
        with Store(path, report=lambda line: pytest.fail(line)) as store:
            assert contents(store) == found
    else:
        assert not list(tmp_path.glob("records.*"))
    for line in reported:
        assert line.startswith(str(path)) and "damaged" in line and "\n" not in line
    return reported


def noise(data, start):
    return data[:start] + random.Random(start).randbytes(PAGE) + data[start + PAGE :]


def zeros(data, start):
    return data[:start] + bytes(PAGE) + data[start + PAGE :]


def another_page(data, start):
    """Simulate a write to the wrong page."""
    source = (start + 7 * PAGE) % (len(data) // PAGE * PAGE)
    return data[:start] + data[source : source + PAGE] + data[start + PAGE :]


def cut(data, start):
    return data[:start]


CHANGES = [noise, zeros, another_page, cut]


def damage_every(whole, tmp_path, step):
    (closed, in_closed), (logged, in_logged) = whole
    said = 0
    pages = (closed / sqlite.FILE).stat().st_size // PAGE
    assert pages > 60
    turn = 0
    for page in sorted({0, 1, *range(0, pages, step)}):
        for change in CHANGES if step == 1 or page < 2 else [CHANGES[turn % len(CHANGES)]]:
            reported = damage_and_open(
                closed, in_closed, tmp_path, sqlite.FILE, page * PAGE, change
            )
            said += bool(reported)
            turn += 1
    for page in range(0, pages, 4 * step):
        change = CHANGES[turn % len(CHANGES)]
        damage_and_open(logged, in_logged, tmp_path, sqlite.FILE, page * PAGE, change)
        turn += 1
    frames = ((logged / sqlite.WAL).stat().st_size - 32) // FRAME
    assert frames > 50
    for frame in sorted({0, frames - 1, *range(0, frames, step)}):
        for change in CHANGES if step == 1 else [CHANGES[turn % len(CHANGES)]]:
            for start in (32 + frame * FRAME, 32 + frame * FRAME + 24):
                damage_and_open(logged, in_logged, tmp_path, sqlite.WAL, start, change)
            turn += 1
    return said


def test_what_is_intact_outlives_a_damaged_page(whole, tmp_path):
    assert damage_every(whole, tmp_path, 16) > 3


@pytest.mark.long
def test_what_is_intact_outlives_damage_to_any_page(whole, tmp_path):
    assert damage_every(whole, tmp_path, 1) > 50


def test_a_log_left_behind_is_read(whole, tmp_path):
    _, (logged, everything) = whole
    assert read_wal((logged / sqlite.WAL).read_bytes()).damage is None
    shutil.copytree(logged, tmp_path / "records")
    with Store(tmp_path / "records", report=lambda line: pytest.fail(line)) as store:
        assert contents(store) == everything


def test_damage_in_the_midst_of_a_log_is_told(whole, tmp_path):
    """SQLite silently drops the frames after a damaged one."""
    _, (logged, everything) = whole
    middle = 32 + (logged / sqlite.WAL).stat().st_size // FRAME // 2 * FRAME
    for start in (middle, middle + 24):
        reported = damage_and_open(logged, everything, tmp_path, sqlite.WAL, start, noise)
        assert any("write-ahead log" in line for line in reported)


def test_the_last_transaction_is_read_when_only_its_end_is_damaged(tmp_path):
    workload, module, key = make_workload(0)
    with Store(tmp_path / "whole") as store:
        for i in range(200):
            record = make_record(workload, i, length=400)
            store.add([record], workload=workload, module=module, key=key)
            data = (store.path / sqlite.WAL).read_bytes()
            if i and mark_of(record) not in data[-PAGE:]:  # the last page is an index page
                break
        else:
            pytest.fail("the record was always on the last page")
        everything = contents(store)
        shutil.copytree(store.path, tmp_path / "logged")
    for start in (len(data) - FRAME, len(data) - PAGE):
        reported = damage_and_open(
            tmp_path / "logged", everything, tmp_path, sqlite.WAL, start, zeros
        )
        assert reported == []  # it looks like the log of a killed writer
        with Store(tmp_path / "records") as store:
            assert contents(store) == everything


@pytest.mark.parametrize("file", [sqlite.FILE, sqlite.WAL])
def test_a_missing_file(whole, tmp_path, file):
    _, (logged, everything) = whole
    shutil.copytree(logged, tmp_path / "records")
    gone = (tmp_path / "records" / file).read_bytes()
    (tmp_path / "records" / file).unlink()
    with Store(tmp_path / "records", report=[].append) as store:
        found = contents(store)
    assert found.items() <= everything.items()
    for name in set(everything) - set(found):
        assert mark_of(everything[name]) in gone


def test_a_recovery_that_was_interrupted_is_finished(whole, tmp_path):
    (closed, everything), _ = whole
    shutil.copytree(closed, tmp_path / "records.recovered")
    with Store(tmp_path / "records", create=False) as store:
        assert contents(store) == everything
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_a_damaged_store_in_use_is_left_to_its_users(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("needle_tvm.tune.records.opening._DAMAGED_WAIT_SECONDS", 0.1)
    (closed, everything), _ = whole
    path = tmp_path / "records"
    shutil.copytree(closed, path)
    with Store(path):
        data = (path / sqlite.FILE).read_bytes()
        (path / sqlite.FILE).write_bytes(data[: 20 * PAGE])
        with pytest.raises(RecordsError, match=r"damaged .*other processes use it"):
            Store(path)
        (path / sqlite.FILE).write_bytes(data)
    with Store(path) as store:
        assert contents(store) == everything


def test_damaged_text_is_never_served_and_is_mended_by_writing_it_again(tmp_path):
    """The damage is in a page of text, which SQLite cannot check."""
    workload, module, key = make_workload(0)
    with Store(tmp_path / "records") as store:
        record = make_record(workload, 0, length=20_000)
        store.add([record], workload=workload, module=module, key=key)
    file = tmp_path / "records" / sqlite.FILE
    data = file.read_bytes()
    at = data.rindex(token("record", 0).encode() * 10)
    file.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    reported = []
    with Store(tmp_path / "records", report=reported.append) as store:
        assert store.best([rows.name(workload)], 1, ["measured"]) == []
        assert len(reported) == 1 and "damaged and not used" in reported[0]
        store.add([record], workload=workload, module=module, key=key)
        assert store.best([rows.name(workload)], 1, ["measured"]) == [(rows.name(record), record)]
