"""The record store loses nothing that it acknowledged, and keeps a damaged store's intact lines."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import facts
from needle_tvm.tune.records.facts import KINDS, Trial
from needle_tvm.tune.records.store import FILE, Store
from tests.needle_tvm.tune.records import record_writer
from tests.needle_tvm.tune.records.record_writer import (
    SPENT,
    add_numbered,
    make_kernel,
    make_trial,
    numbered,
    session_of,
)

WRITER = Path(record_writer.__file__)


def contents(store):
    return {name: line for kind in KINDS.values() for name, line in store.all(kind).items()}


def start_writer(path, acknowledged, name, count):
    command = [sys.executable, str(WRITER), str(path), str(acknowledged), str(name), str(count)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def acknowledged_trials(file):
    """name -> (writer, number) of every trial whose commit had returned."""
    told = file.read_text().split("\n")[:-1] if file.exists() else []
    return {name: (writer, int(number)) for name, writer, number in map(str.split, told)}


def lines_of(writer, trials):
    """The lines of a writer's first trials, by name."""
    return {facts.name(line): line for i in range(trials) for line in numbered(str(writer), i)}


def check_all_there(path, file, kills, reported):
    """Check that the store has every counted trial whole, and nothing else. Each writer has spent
    what was acknowledged, or at most one trial more for each kill."""
    told = list(acknowledged_trials(file).values())
    expected = {}
    with Store(path, report=reported.append) as store:
        for writer, killed in kills.items():
            trials, seconds = store.spent(session_of(writer))
            acknowledged = sum(of == writer for of, _ in told)
            assert acknowledged <= trials <= acknowledged + killed
            assert seconds == SPENT * trials
            expected.update(lines_of(writer, trials))
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
        before = len(acknowledged_trials(file))
        while len(acknowledged_trials(file)) == before:
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
    """A store's file, and the name and fact of each of its lines but for the first."""
    with Store(tmp_path_factory.mktemp("whole") / "records") as store:
        for i in range(TRIALS):
            add_numbered(store, "writer", i, length=300)
        data = (store.path / FILE).read_bytes()
    return data, [facts.read(line) for line in data.split(b"\n")[1:-1]]


def opened(path, data, reported):
    path.mkdir(exist_ok=True)
    (path / FILE).write_bytes(data)
    return Store(path, report=reported.append)


def without(found, *numbers):
    return dict(each for number, each in enumerate(found) if number not in numbers)


def flipped(data, at, bit):
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_a_flipped_bit_costs_its_line_alone_and_is_told(whole, tmp_path):
    """Or two lines, if it is in the newline between them; a budget is never a wrong one."""
    data, found = whole
    chance = random.Random(0)
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    assert len(ends) == TRIALS + 3 + 1
    for at in [*ends[:-1], *chance.sample(range(len(data)), 300)]:
        number = sum(end < at for end in ends) - 1
        lost = {number, number + 1} if at in ends else {number}
        reported = []
        with opened(
            tmp_path / "records", flipped(data, at, chance.randrange(8)), reported
        ) as store:
            there = contents(store)
            assert without(found, *lost).items() <= there.items() <= without(found).items(), at
            assert store.spent(session_of("writer"))[0] == len(store.all(Trial))
        if there != without(found):
            assert len(reported) == 1 and "1 damaged line not used" in reported[0]
            assert reported[0].startswith(str(tmp_path)) and "\n" not in reported[0]


def test_what_a_killed_writer_left_is_cut_off_and_its_lines_written_again(whole, tmp_path):
    data, found = whole
    start = data.rindex(b"\n", 0, -1) + 1
    for end in [start, start + 1, (start + len(data)) // 2, len(data) - 2]:
        reported = []
        with opened(tmp_path / "records", data[:end], reported) as store:
            assert contents(store) == without(found, len(found) - 1)
            add_numbered(store, "writer", TRIALS - 1, length=300)
            assert contents(store) == without(found)
        assert (tmp_path / "records" / FILE).read_bytes() == data
        assert reported == []  # a killed writer is no damage


def test_a_last_line_without_its_newline_is_whole(whole, tmp_path):
    data, found = whole
    with opened(tmp_path / "records", data[:-1], []) as store:
        assert contents(store) == without(found)
        add_numbered(store, "writer", 0, length=300)  # known already
        more = add_numbered(store, "another", 0, length=300)
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store).items() > without(found).items()
        assert more in store.all(Trial)


def test_concatenated_files_are_a_merged_store(whole, tmp_path):
    data, found = whole
    with Store(tmp_path / "other") as other:
        for i in range(TRIALS - 2, TRIALS + 2):
            add_numbered(other, "writer", i, length=300)
        expected = without(found) | contents(other)
        more = (other.path / FILE).read_bytes()
    for text in (data + more, more + data, data + b"\n\n" + more + data):
        with opened(tmp_path / "records", text, []) as store:
            assert contents(store) == expected
            assert store.spent(session_of("writer")) == (TRIALS + 2, SPENT * (TRIALS + 2))


@pytest.mark.parametrize("others", [0, 2 * TRIALS])  # the new file is shorter, or longer
def test_a_writer_goes_on_in_the_file_that_has_been_written_anew(whole, tmp_path, others):
    data, _ = whole
    with Store(tmp_path / "new") as new:
        names = [add_numbered(new, "another", i, length=300) for i in range(others)]
    with opened(tmp_path / "records", data, []) as store:
        assert len(store.all(Trial)) == TRIALS
        (tmp_path / "new" / FILE).rename(tmp_path / "records" / FILE)
        names.append(add_numbered(store, "writer", TRIALS, length=300))
        assert set(store.all(Trial)) == set(names)
    assert ((tmp_path / "records" / FILE).stat().st_size > len(data)) == bool(others)
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert set(store.all(Trial)) == set(names)


@pytest.mark.parametrize("head", [b'{"format": 7}', facts.text({"format": 7})])
def test_another_format_is_refused_by_name(tmp_path, head):
    """Not so a first line that is damaged: it is told, as any other."""
    path = tmp_path / "records"
    path.mkdir()
    (path / FILE).write_bytes(head)
    if b"sha256" in head:
        with pytest.raises(RecordsError, match=r"version of needle \(format 7, this one reads 2\)"):
            Store(path)
    else:
        Store(path, report=pytest.fail).close()  # without a newline, a writer was killed
    assert (path / FILE).read_bytes() == head


def test_damaged_text_is_never_served_and_is_mended_by_writing_it_again(tmp_path):
    kernel = make_kernel(0)
    trial = make_trial(kernel, 0)
    with Store(tmp_path / "records") as store:
        name = store.add(trial, kernel)
    file = tmp_path / "records" / FILE
    data = file.read_bytes()
    file.write_bytes(flipped(data, data.rindex(b"trial.0"), 0))
    reported = []
    with Store(tmp_path / "records", report=reported.append) as store:
        assert store.best([trial.kernel], 1) == []
        assert len(reported) == 1
        assert store.add(trial, kernel) == name
        assert store.best([trial.kernel], 1) == [(name, trial)]
