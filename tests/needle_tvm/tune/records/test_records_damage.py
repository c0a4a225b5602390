"""The record store loses nothing that it acknowledged, and keeps a damaged store's intact lines."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import rows
from needle_tvm.tune.records.rows import KINDS, Record
from needle_tvm.tune.records.store import DAMAGED_FILE, FILE, Store
from tests.needle_tvm.tune.records import record_writer
from tests.needle_tvm.tune.records.record_writer import (
    SPENT,
    add_trial,
    make_record,
    make_trial,
    make_workload,
    session_of,
)

WRITER = Path(record_writer.__file__)


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
    """Check that the store has every counted trial whole, and nothing else. Each writer has spent
    what was acknowledged, or at most one trial more for each kill."""
    told = list(acknowledged_rows(file).values())
    expected = {}
    with Store(path, report=reported.append) as store:
        for writer, killed in kills.items():
            trials, seconds = store.spent(session_of(writer))
            acknowledged = sum(of == writer for of, _ in told)
            assert acknowledged <= trials <= acknowledged + killed
            assert seconds == SPENT * trials
            expected.update(rows_of(writer, trials))
        assert contents(store) == expected
    return len(told)


def kill_writers(tmp_path, kills):
    path, file, reported = tmp_path / "records", tmp_path / "acknowledged", []
    chance = random.Random(kills)
    total = 0
    killed = {"0": 0, "1": 0}
    for i in range(kills):
        # From time to time another process has the store open.
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


TRIALS = 9


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store's file, and the rows of each of its lines, but for the first."""
    with Store(tmp_path_factory.mktemp("whole") / "records") as store:
        lines = []
        for i in range(TRIALS):
            before = contents(store)
            add_trial(store, "writer", i, length=300)
            lines.append({n: row for n, row in contents(store).items() if n not in before})
        return (store.path / FILE).read_bytes(), lines


def opened(path, data, reported):
    path.mkdir(exist_ok=True)
    (path / FILE).write_bytes(data)
    return Store(path, report=reported.append)


def without(lines, *numbers):
    return {n: r for i, of in enumerate(lines) if i not in numbers for n, r in of.items()}


def flipped(data, at, bit):
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_a_flipped_bit_costs_its_line_alone_and_is_told(whole, tmp_path):
    """Or two lines, if it is in the newline between them; a budget is never a wrong one."""
    data, lines = whole
    chance = random.Random(0)
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    assert len(ends) == TRIALS + 1
    for at in [*ends[:-1], *chance.sample(range(len(data)), 300)]:
        number = sum(end < at for end in ends) - 1
        lost = {number, number + 1} if at in ends else {number}
        reported = []
        with opened(
            tmp_path / "records", flipped(data, at, chance.randrange(8)), reported
        ) as store:
            found = contents(store)
            assert without(lines, *lost).items() <= found.items() <= without(lines).items(), at
            known = [t for of in lines for t in of.values() if isinstance(t, rows.Trial)]
            there = [t for t in known if rows.name(t) in found and t.record in found]
            assert store.spent(session_of("writer"))[0] == len(there)
        if found != without(lines):
            assert len(reported) == 1 and "not used; prune sets" in reported[0]
            assert reported[0].startswith(str(tmp_path)) and "\n" not in reported[0]


def test_what_a_killed_writer_left_is_cut_off_and_its_rows_written_again(whole, tmp_path):
    data, lines = whole
    start = data.rindex(b"\n", 0, -1) + 1
    for end in [start, start + 1, (start + len(data)) // 2, len(data) - 2]:
        reported = []
        with opened(tmp_path / "records", data[:end], reported) as store:
            assert contents(store) == without(lines, TRIALS - 1)
            add_trial(store, "writer", TRIALS - 1, length=300)
            assert contents(store) == without(lines)
        assert (tmp_path / "records" / FILE).read_bytes() == data
        assert reported == []  # a killed writer is no damage


def test_a_last_line_without_its_newline_is_whole(whole, tmp_path):
    data, lines = whole
    with opened(tmp_path / "records", data[:-1], []) as store:
        assert contents(store) == without(lines)
        add_trial(store, "writer", 0, length=300)  # known already
        more = add_trial(store, "another", 0, length=300)
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store).items() > without(lines).items()
        assert rows.name(more) in store.all(Record)


def test_concatenated_files_are_a_merged_store(whole, tmp_path):
    data, lines = whole
    with Store(tmp_path / "other") as other:
        for i in range(TRIALS - 2, TRIALS + 2):
            add_trial(other, "writer", i, length=300)
        expected = without(lines) | contents(other)
        more = (other.path / FILE).read_bytes()
    for text in (data + more, more + data, data + b"\n\n" + more + data):
        with opened(tmp_path / "records", text, []) as store:
            assert contents(store) == expected
            assert store.spent(session_of("writer")) == (TRIALS + 2, SPENT * (TRIALS + 2))


def test_forgetting_sets_damaged_lines_aside_as_they_are(whole, tmp_path):
    data, _ = whole
    bad = flipped(data, 3 * len(data) // 4, 0)
    (line,) = set(bad.split(b"\n")) - set(data.split(b"\n"))
    with opened(tmp_path / "records", bad, []) as store:
        store.remove(list(store.all(Record))[:2])
        kept = contents(store)
    assert (tmp_path / "records" / DAMAGED_FILE).read_bytes() == line + b"\n"
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store) == kept


@pytest.mark.parametrize("added", [0, 4])  # the new file is shorter than the old one, or longer
def test_a_writer_goes_on_in_the_file_that_another_has_written_anew(tmp_path, added):
    with Store(tmp_path / "records") as one, Store(tmp_path / "records") as other:
        names = [rows.name(add_trial(one, "writer", i)) for i in range(4)]
        assert set(other.all(Record)) == set(names)
        one.remove(names[:2])
        names[:2] = [rows.name(add_trial(one, "writer", 4 + i)) for i in range(added)]
        names.append(rows.name(add_trial(other, "writer", 4 + added)))
        assert set(one.all(Record)) == set(other.all(Record)) == set(names)


def test_a_newer_format_is_refused_by_name(tmp_path):
    from needle_tvm.tune.records.store import _line

    path = tmp_path / "records"
    path.mkdir()
    (path / FILE).write_bytes(_line({"format": 7}))
    with pytest.raises(RecordsError, match=r"newer needle \(format 7, this one reads up to 1\)"):
        Store(path)
    assert (path / FILE).read_bytes() == _line({"format": 7})


def test_damaged_text_is_never_served_and_is_mended_by_writing_it_again(tmp_path):
    workload, module, key = make_workload(0)
    record = make_record(workload, 0, length=2000)
    with Store(tmp_path / "records") as store:
        store.add([record], workload=workload, module=module, key=key)
    file = tmp_path / "records" / FILE
    data = file.read_bytes()
    file.write_bytes(flipped(data, data.rindex(b"record.0"), 0))
    reported = []
    with Store(tmp_path / "records", report=reported.append) as store:
        assert store.best([rows.name(workload)], 1, ["measured"]) == []
        assert len(reported) == 1 and "not used; prune sets" in reported[0]
        store.add([record], workload=workload, module=module, key=key)
        assert store.best([rows.name(workload)], 1, ["measured"]) == [(rows.name(record), record)]
