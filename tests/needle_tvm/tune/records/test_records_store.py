"""The record store: a write is there once, for all readers, or the writer gets an error."""

import errno
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import pytest

from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import facts
from needle_tvm.tune.records.facts import KINDS, Trial
from needle_tvm.tune.records.store import FILE, Store, default_path
from tests.needle_tvm.tune.records.record_writer import (
    CRASH,
    SPENT,
    add_numbered,
    make_kernel,
    make_trial,
    session_of,
)
from tests.needle_tvm.tune.records.test_records_damage import (
    acknowledged_trials,
    contents,
    lines_of,
    start_writer,
)


def add(store, *parts, of=0, **options):
    """Add a trial of kernel number `of` and return its name."""
    kernel = make_kernel(of)
    return store.add(make_trial(kernel, *parts, **options), kernel)


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


def best(store, limit=99, of=0):
    return [name for name, _ in store.best([facts.name(make_kernel(of))], limit)]


def test_what_was_written_is_there_after_reopening(tmp_path):
    with Store(tmp_path / "records") as store:
        names = {add(store, i, of=i % 2) for i in range(5)}
        before = contents(store)
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert contents(store) == before
        assert set(store.all(Trial)) == names


def test_it_lives_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    with Store() as store:
        assert store.path == default_path() == tmp_path / "cache" / "records"
    monkeypatch.delenv("NEEDLE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_path().name == "records" and default_path().parent.name == "needle"


def test_the_same_trial_is_kept_and_paid_once(store, tmp_path):
    for _ in range(2):
        for i in range(6):
            add_numbered(store, "writer", i)
        add_numbered(store, "another", 0)
        assert store.spent(session_of("writer")) == (6, 6 * SPENT)
        assert contents(store) == lines_of("writer", 6) | lines_of("another", 1)
    with Store(tmp_path / "merged") as other:
        for i in range(3, 8):
            add_numbered(other, "writer", i)
        for _ in range(2):
            other.merge(store)
        assert other.spent(session_of("writer")) == (8, 8 * SPENT)


def test_the_fastest_usable_trials_are_served(store):
    names = [add(store, i, seconds=1e-3 * (4 - i)) for i in range(4)]
    add(store, "failed", rejected=CRASH)
    add(store, "elsewhere", of=1, seconds=1e-9)
    assert best(store) == names[::-1]
    assert best(store, 1) == names[3:] and best(store, 0) == []
    store.reject(names[3], "wrong: at [0]")
    assert best(store) == names[2::-1]
    assert store.rejected(names[3]) == "wrong: at [0]" and store.rejected(names[0]) == ""
    with pytest.raises(KeyError, match="no trial"):
        store.reject("0" * 64, "wrong")


def test_what_was_tried_is_known_and_a_rejection_is_final(store):
    kernel = make_kernel(0)
    for trace, seconds, rejected in (
        ("a", 3.0, ""),
        ("a", 2.0, ""),
        ("b", 1.0, ""),
        ("b", 1.0, CRASH),
        ("c", 1.0, CRASH),
    ):
        trial = make_trial(kernel, seconds, rejected, seconds=seconds, rejected=rejected)
        name = store.add(replace(trial, trace=trace, host=trace), kernel)
    assert store.known([trial.kernel]) == {"a": 2.0, "b": None, "c": None}
    assert store.rejected(name) == CRASH
    assert store.known([facts.name(make_kernel(1))]) == store.known([]) == {}


@pytest.mark.parametrize("spent", [-1.0, math.nan, math.inf])
def test_a_trial_that_took_no_length_of_time_is_refused(spent):
    with pytest.raises(ValueError, match="spent="):
        replace(make_trial(make_kernel(0), 0), spent=spent)


def test_a_trial_of_another_kernel_is_refused(store):
    with pytest.raises(ValueError, match="another kernel"):
        store.add(make_trial(make_kernel(1), 0), make_kernel(0))
    assert contents(store) == {}


@pytest.mark.parametrize("seed", range(3))
def test_merging_is_idempotent_and_takes_both_whatever_the_order(tmp_path, seed):
    chance = random.Random(seed)

    def make(name):
        with Store(tmp_path / name) as store:
            for i in range(12):
                if chance.random() < 0.6:
                    trial = add(store, i, of=i % 3)
                    if chance.random() < 0.3:
                        store.reject(trial, "wrong")
            return contents(store)

    parts = {name: make(name) for name in "abc"}
    for order in ("abc", "cab", "bcacab"):
        with Store(tmp_path / order) as store:
            for name in order:
                with Store(tmp_path / name) as other:
                    store.merge(other)
                    assert not any(store.merge(other).values())
            assert contents(store) == parts["a"] | parts["b"] | parts["c"]
            served = [best(store, of=i) for i in range(3)]
        if order == "abc":
            expected = served
        assert served == expected


def test_a_trial_that_cannot_be_written_whole_is_not_written(store, monkeypatch):
    add_numbered(store, "writer", 0)
    before = contents(store)

    def failing(descriptor, data, offset, write=os.pwrite):
        write(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(RecordsError, match="nothing was written"):
        add_numbered(store, "writer", 1)
    assert contents(store) == before


def test_a_trial_outlives_a_kill_right_after_its_commit(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from record_writer import *\n"
        "add_numbered(Store(sys.argv[1]), 'writer', 0)\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    with pytest.raises(Killed):
        run_beside(code, tmp_path / "records")
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert store.spent(session_of("writer")) == (1, SPENT)


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
            told = list(acknowledged_trials(tmp_path / f"told{i}").values())
            assert told == [(str(i), number) for number in range(count)]
            assert store.spent(session_of(i)) == (count, SPENT * count)
            expected.update(lines_of(i, count))
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
    assert len(store.all(Trial)) == 40


def test_a_forked_child_and_its_parent_both_write(tmp_path):
    code = (
        "import glob, os, sys\n"
        "from record_writer import *\n"
        "store = Store(sys.argv[1])\n"
        "def write(who):\n"
        "    for i in range(20):\n"
        "        store.add(make_trial(make_kernel(0), who, i), make_kernel(0))\n"
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
        assert len(store.all(Trial)) == 60


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


def test_a_store_of_an_older_needle_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "records"
    path.mkdir()
    (path / "records.sqlite3").write_bytes(b"SQLite format 3")
    for create in (True, False):
        with pytest.raises(RecordsError, match=r"it holds records\.sqlite3.* move it away"):
            Store(path, create=create)
    assert [item.name for item in path.iterdir()] == ["records.sqlite3"]


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
        assert set(store.all(Trial)) == set(written)
        ballast.unlink()
        written.append(add(store, "more"))
        assert set(store.all(Trial)) == set(written)
    with Store(folder / "records", report=pytest.fail) as store:
        assert set(store.all(Trial)) == set(written)


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
        "kernel = make_kernel(0)\n"
        "store = Store(sys.argv[1])\n"
        "for i in range(1000):\n"
        "    try:\n"
        "        print(store.add(make_trial(kernel, i, length=20_000), kernel))\n"
        "    except RecordsError as error:\n"
        "        print(error)\n"
        "        break\n"
    )
    *written, error = run_beside(code, tmp_path / "records").split("\n")[:-1]
    assert "nothing was written" in error and len(written) > 2
    with Store(tmp_path / "records", report=pytest.fail) as store:
        assert set(store.all(Trial)) == set(written)


def test_a_read_only_folder_is_read_and_not_written(disk, tmp_path):
    folder = disk("size=2m")
    with Store(tmp_path / "records") as store:
        name = add(store, 0)
        shutil.copytree(store.path, folder / "records")
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    with Store(folder / "records", report=pytest.fail) as store:
        assert not store.writable
        assert set(store.all(Trial)) == {name}
        for change in (lambda: add(store, 1), lambda: store.reject(name, CRASH)):
            with pytest.raises(RecordsError, match="read-only; nothing was written"):
                change()
        with Store(tmp_path / "records") as mine:
            assert not any(mine.merge(store).values())
    with pytest.raises(RecordsError, match="Read-only file system"):
        Store(folder / "new")


def test_every_kind_of_line_names_itself(store):
    store.reject(add_numbered(store, "writer", 0), "wrong")
    for kind in KINDS.values():
        ((name, line),) = store.all(kind).items()
        assert facts.read(facts.text(line)) == (name, line) and facts.name(line) == name
        for field in fields(line):
            changed = json.loads(facts.text(line))
            changed[kind.kind][field.name] = "another"
            assert facts.read(json.dumps(changed).encode()) is None


def test_a_closed_store_says_so(tmp_path):
    store = Store(tmp_path / "records")
    store.close()
    store.close()
    with pytest.raises(RecordsError, match="was closed"):
        store.all(Trial)
