"""The record store: a write is there once, for all readers, or the writer gets an error."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import rows
from needle_tvm.tune.records.rows import GATED, KINDS, MEASURED, REJECTED, Record
from needle_tvm.tune.records.store import FILE, OLD_FILE, Store, default_path
from tests.needle_tvm.tune.records.record_writer import (
    SPENT,
    add_trial,
    make_record,
    make_workload,
    session_of,
)
from tests.needle_tvm.tune.records.test_records_damage import (
    acknowledged_rows,
    contents,
    rows_of,
    start_writer,
)


def add(store, *parts, of=0, **options):
    """Add a record and return its name."""
    workload, module, key = make_workload(of)
    record = make_record(workload, *parts, **options)
    store.add([record], workload=workload, module=module, key=key)
    return rows.name(record)


def test_a_write_is_on_disk_when_it_returns(store, monkeypatch):
    """As far as the system says so: the file is synchronised after its last byte is written."""
    synchronised, fsync = [], os.fsync

    def noted(descriptor):
        fsync(descriptor)
        synchronised.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", noted)
    add(store, 1)
    found = (store.path / FILE).stat()
    assert (found.st_ino, found.st_size) in synchronised


def best(store, limit=99, states=(GATED,), of=0):
    found = store.best([rows.name(make_workload(of)[0])], limit, states)
    return [name for name, _ in found]


def test_what_was_written_is_there_after_reopening(tmp_path):
    with Store(tmp_path / "records") as store:
        names = {add(store, i, of=i % 2) for i in range(5)}
        before = contents(store)
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store) == before
        assert set(store.all(Record)) == names


def test_it_lives_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    with Store() as store:
        assert store.path == default_path() == tmp_path / "cache" / "records"
    monkeypatch.delenv("NEEDLE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_path().name == "records" and default_path().parent.name == "needle"


def test_the_same_record_is_kept_once(store):
    workload, module, key = make_workload(0)
    record = make_record(workload, 1)
    counts = [store.add([record], workload=workload, module=module, key=key) for _ in range(3)]
    assert counts == [1, 0, 0]


def test_only_gated_records_are_served_unless_asked(store):
    names = [add(store, i, seconds=1e-3 * (i + 1)) for i in range(4)]
    add(store, "failed", seconds=1e10)
    add(store, "elsewhere", of=1, seconds=1e-9)
    assert best(store) == []
    assert best(store, states=[MEASURED]) == names
    store.decide(names[1:3], GATED, "differs by 1e-7")
    assert best(store) == names[1:3]
    assert best(store, 1) == names[1:2] and best(store, 0) == []
    assert best(store, states=[MEASURED, GATED]) == names
    store.decide(names[:2], REJECTED)
    assert best(store) == names[2:3]
    assert [store.state(name) for name in names] == [REJECTED, REJECTED, GATED, MEASURED]


def test_a_rejection_outweighs_every_gate(store):
    name = add(store, 0)
    for state in (REJECTED, GATED):
        store.decide([name], state)
    assert best(store, states=[MEASURED, GATED]) == []


def test_rows_that_do_not_belong_together_are_refused(store):
    workload, module, key = make_workload(0)
    _, another, _ = make_workload(1)
    with pytest.raises(ValueError, match="another module"):
        store.add([], workload=workload, module=another, key=key)
    record = make_record(make_workload(1)[0], 0)
    with pytest.raises(ValueError, match="another workload"):
        store.add([record], workload=workload, module=module, key=key)
    with pytest.raises(KeyError, match="no record"):
        store.decide(["0" * 64], GATED)
    with pytest.raises(ValueError, match="must be one of gated, rejected"):
        store.decide([], MEASURED)
    assert contents(store) == {}


@pytest.mark.parametrize("seed", range(3))
def test_merging_is_idempotent_and_takes_both_whatever_the_order(tmp_path, seed):
    chance = random.Random(seed)

    def make(name):
        with Store(tmp_path / name) as store:
            for i in range(12):
                if chance.random() < 0.6:
                    record = add(store, i, of=i % 3)
                    if chance.random() < 0.5:
                        store.decide([record], chance.choice([GATED, REJECTED]))
            return contents(store)

    parts = {name: make(name) for name in "abc"}
    for order in ("abc", "cab", "bcacab"):
        with Store(tmp_path / order) as store:
            for name in order:
                with Store(tmp_path / name) as other:
                    store.merge(other)
                    assert not any(store.merge(other).values())
            assert contents(store) == parts["a"] | parts["b"] | parts["c"]
            states = {name: store.state(name) for name in store.all(Record)}
        if order == "abc":
            expected = states
        assert states == expected


def test_forgetting_takes_along_what_nothing_needs_any_more(store):
    kept = add(store, 0)
    gone = rows.name(add_trial(store, "writer", 3))
    store.decide([gone], GATED)
    before = contents(store)
    counts = {"verdicts": 1, "trials": 1, "records": 1, "workloads": 1, "modules": 1, "keys": 0}
    assert store.remove([gone], dry_run=True) == counts
    assert contents(store) == before
    assert store.remove([gone]) == counts
    assert set(store.all(Record)) == {kept} and len(contents(store)) == 4


def test_8_processes_write_at_once(tmp_path):
    write_at_once(tmp_path, 50)


@pytest.mark.long
def test_8_processes_write_1000_records_each(tmp_path):
    write_at_once(tmp_path, 1000)


def write_at_once(tmp_path, count):
    path = tmp_path / "records"  # the processes create it
    writers = [start_writer(path, tmp_path / f"told{i}", i, count) for i in range(8)]
    for writer in writers:
        _, err = writer.communicate()
        assert writer.returncode == 0, err.decode()
    expected = {}
    with Store(path, report=pytest.fail) as store:
        for i in range(8):
            told = list(acknowledged_rows(tmp_path / f"told{i}").values())
            assert told == [(str(i), number) for number in range(count)]
            assert store.spent(session_of(i)) == (count, SPENT * count)
            expected.update(rows_of(i, count))
        assert contents(store) == expected


def test_threads_share_one_store(store):
    def write(writer):
        for i in range(10):
            add(store, writer, i, of=i % 2)

    threads = [threading.Thread(target=write, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.all(Record)) == 40


def test_a_forked_child_and_its_parent_both_write(tmp_path):
    code = (
        "import glob, os, sys\n"
        "from record_writer import *\n"
        "store = Store(sys.argv[1])\n"
        "workload, module, key = make_workload(0)\n"
        "def write(who):\n"
        "    for i in range(20):\n"
        "        record = make_record(workload, who, i)\n"
        "        store.add([record], workload=workload, module=module, key=key)\n"
        "write('before')\n"
        "child = os.fork()\n"
        "held = [os.path.realpath(file) for file in glob.glob('/proc/self/fd/*')]\n"
        "assert not [file for file in held if 'records' in file], held\n"
        "write('parent' if child else 'child')\n"
        "store.close()\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    run_beside(code, tmp_path / "records")
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert len(store.all(Record)) == 60


class Killed(Exception):
    """A process was ended by SIGKILL."""


def run_beside(code, *arguments):
    """Run Python code in a separate process that can import record_writer."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == -signal.SIGKILL:
        raise Killed
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_no_store_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "records"
    path.mkdir()
    (path / "notes").write_text("mine")
    with pytest.raises(RecordsError, match="not a record store"):
        Store(path)
    assert [item.name for item in path.iterdir()] == ["notes"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RecordsError, match="not a record store"):
        Store(tmp_path / "file")


def test_a_store_of_an_older_needle_is_refused_with_the_command_that_reads_it(tmp_path):
    path = tmp_path / "records"
    path.mkdir()
    (path / OLD_FILE).write_bytes(b"SQLite format 3")
    for create in (True, False):
        with pytest.raises(RecordsError, match=rf"records merge --store \S+ \S+{OLD_FILE}"):
            Store(path, create=create)
    assert [item.name for item in path.iterdir()] == [OLD_FILE]


def test_a_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / "records"
    path.mkdir()
    os.mkfifo(path / FILE)
    with pytest.raises(RecordsError, match="not a regular file"):
        Store(path)


def test_a_store_that_must_exist(tmp_path):
    with pytest.raises(RecordsError, match="there is no record store"):
        Store(tmp_path / "records", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def disk(tmp_path):
    """A function, mount(options), that returns a folder with its own small file system."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("mounting is not allowed here")
        mounted.append(folder)
        return folder

    yield mount
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_an_error_and_loses_nothing(disk):
    folder = disk("size=600k")
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(100_000))
    with Store(folder / "records") as store:
        written = []
        with pytest.raises(RecordsError, match=r"no space is left .*nothing was written"):
            for i in range(1000):
                written.append(add(store, i, length=20_000))
        assert len(written) > 2
        assert set(store.all(Record)) == set(written)
        ballast.unlink()
        written.append(add(store, "more"))
        assert set(store.all(Record)) == set(written)
    with Store(folder / "records", report=pytest.fail) as store:
        assert set(store.all(Record)) == set(written)


def test_a_disk_too_full_for_a_store(disk):
    folder = disk("size=40k")
    with suppress(OSError), open(folder / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    with pytest.raises(RecordsError, match="no space is left"):
        Store(folder / "records")
    assert [path.name for path in folder.iterdir()] == ["ballast"]


def test_a_limit_on_file_sizes_is_an_error_and_loses_nothing(tmp_path):
    code = (
        "import resource, sys\n"
        "from record_writer import *\n"
        "from needle_tvm.errors import RecordsError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        "workload, module, key = make_workload(0)\n"
        "store = Store(sys.argv[1])\n"
        "for i in range(1000):\n"
        "    record = make_record(workload, i, length=20_000)\n"
        "    try:\n"
        "        store.add([record], workload=workload, module=module, key=key)\n"
        "    except RecordsError as error:\n"
        "        print(error)\n"
        "        break\n"
        "    print(rows.name(record))\n"
    )
    *written, error = run_beside(code, tmp_path / "records").split("\n")[:-1]
    assert "nothing was written" in error and len(written) > 2
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert set(store.all(Record)) == set(written)


def test_a_read_only_folder_is_read_and_not_written(disk, tmp_path):
    folder = disk("size=2m")
    with Store(tmp_path / "records") as store:
        name = add(store, 0)
        shutil.copytree(store.path, folder / "records")
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    with Store(folder / "records", report=pytest.fail) as store:
        assert not store.writable
        assert set(store.all(Record)) == {name}
        for change in (lambda: add(store, 1), lambda: store.decide([name], GATED)):
            with pytest.raises(RecordsError, match="read-only; nothing was written"):
                change()
        with Store(tmp_path / "records") as mine:
            assert not any(mine.merge(store).values())
    with pytest.raises(RecordsError, match="Read-only file system"):
        Store(folder / "new")


def test_every_kind_of_row_names_itself(store):
    name = rows.name(add_trial(store, "writer", 0))
    store.decide([name], GATED)
    for kind in KINDS:
        assert store.all(kind)
        for row_name, row in store.all(kind).items():
            stored = (row_name, *rows.values(row))
            assert rows.verified(kind, stored) == row
            for i in range(len(stored)):
                changed = [*stored[:i], "another", *stored[i + 1 :]]
                assert rows.verified(kind, changed) is None


def test_a_closed_store_says_so(tmp_path):
    store = Store(tmp_path / "records")
    store.close()
    store.close()
    with pytest.raises(RecordsError, match="was closed"):
        store.all(Record)
