"""A folder is replaced whole or not at all, at whatever point its writer is killed."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from needle_runtime.process import atomic

# Forks a writer for each point at which it can be killed: before each step that Python's audit
# hooks report (opening, renaming, making and removing files and folders, the call of renameat2) and
# after each fsync. Prints the contents of the folder after each.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from needle_runtime.process import atomic

target, two_steps = Path(sys.argv[1]), sys.argv[2] == "two steps"
FILES = ["a", "b", "manifest.json"]

def write(version):
    with atomic.writing(target) as folder:
        for name in FILES:
            (folder / name).write_text(version * 1000)

def found():
    texts = {(target / name).read_text() for name in FILES} if target.exists() else {""}
    return sorted(texts)

def writer(kill_at):
    count = 0
    def step(*_):
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    if two_steps:
        atomic._exchange = lambda new, old: False
    fsync = os.fsync
    os.fsync = lambda descriptor: (fsync(descriptor), step())
    sys.addaudithook(lambda event, args: step() if event.split(".")[0] in
                     ("open", "os", "shutil", "ctypes", "fcntl") else None)
    write("new")
    os._exit(0)

answers = []
if sys.argv[3] == "replacing":
    write("old")
for kill_at in range(1, 1000):
    child = os.fork()
    if child == 0:
        writer(kill_at)
    status = os.waitpid(child, 0)[1]
    answers.append([text[:3] for text in found()])
    if not os.WIFSIGNALED(status):
        break
    if sys.argv[3] == "replacing":
        write("old")
    elif target.exists():
        import shutil
        shutil.rmtree(target)
print(json.dumps({"code": status, "found": answers, "left": os.listdir(target.parent)}))
"""


def killed_everywhere(tmp_path, *arguments):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["code"] == 0 and answer["found"][-1] == ["new"]
    assert len(answer["found"]) > 20  # the number of points at which a writer was killed
    assert answer["left"] == ["out"]  # leftovers of killed writers were removed
    return answer["found"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are swapped by Linux's renameat2")
def test_killed_anywhere_while_replacing(tmp_path):
    found = killed_everywhere(tmp_path, "one step", "replacing")
    assert {tuple(texts) for texts in found} == {("old",), ("new",)}
    assert found == sorted(found, reverse=True)  # once new, it stays new


def test_killed_anywhere_while_replacing_where_names_cannot_be_swapped(tmp_path):
    found = killed_everywhere(tmp_path, "two steps", "replacing")
    assert {tuple(texts) for texts in found} == {("old",), ("",), ("new",)}  # never a mix


def test_killed_anywhere_while_writing_the_first(tmp_path):
    found = killed_everywhere(tmp_path, "one step", "writing")
    assert {tuple(texts) for texts in found} == {("",), ("new",)}


def test_the_disk_holds_everything_before_and_after_the_names_change(tmp_path, monkeypatch):
    steps = []
    sync, put = atomic.sync, atomic._put
    monkeypatch.setattr(atomic, "sync", lambda path: (steps.append(path.name), sync(path)))
    monkeypatch.setattr(atomic, "_put", lambda *names: (steps.append("put"), put(*names)))
    target = tmp_path / "new" / "parents" / "out"
    with atomic.writing(target) as folder:
        (folder / "inner").mkdir()
        for name in ("b", "a", "inner/c"):
            (folder / name).write_text(name)
    parents = [tmp_path.name, "new"]
    assert sorted(steps[:2]) == sorted(parents)
    assert steps[2:] == ["a", "b", "inner", "c", folder.name, "put", "parents"]


def test_an_error_leaves_what_was_there(tmp_path):
    target = tmp_path / "out"
    with atomic.writing(target) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(KeyError), atomic.writing(target) as folder:
        (folder / "a").write_text("new")
        raise KeyError
    assert (target / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_a_writer_at_work_is_left_alone(tmp_path):
    target = tmp_path / "out"
    (tmp_path / ".out.needle-notes").write_text("a file is nobody's temporary folder")
    with atomic.writing(target) as slow:
        (slow / "a").write_text("slow")
        with atomic.writing(target) as quick:
            (quick / "a").write_text("quick")
        assert (target / "a").read_text() == "quick"
    assert (target / "a").read_text() == "slow"
    assert sorted(os.listdir(tmp_path)) == [".out.needle-notes", "out"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic.write_file(path, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, name in ((os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(owner, name, full)
            atomic.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    atomic.write_file(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["file"])


# Leftovers of a process that is killed together with the process that would clean up after it

LEFT = """
import contextlib, os, signal, sys
from pathlib import Path
from needle_runtime.process import atomic

atomic.reaped = lambda path: contextlib.nullcontext()
target, what = Path(sys.argv[1]), sys.argv[2]
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if what == "file":
    Path.replace = die
    atomic.write_file(target, b"new")
if what == "moved aside":
    atomic._exchange = lambda new, old: False
    rename = Path.rename
    Path.rename = lambda path, to: die() if path.name.startswith(".") else rename(path, to)
with atomic.writing(target) as folder:
    (folder / "a").write_text("new")
    if what == "folder":
        die()
    if what == "alive":
        print("writing", flush=True)
        sys.stdin.read()
"""


def left_by(target, what):
    """The names that a killed process left beside `target`."""
    command = [sys.executable, "-c", LEFT, str(target), what]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    return [name for name in os.listdir(target.parent) if name.startswith(".")]


def rewritten(target, text):
    with atomic.writing(target) as folder:
        (folder / "a").write_text(text)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_left_is_removed_before_anything_is_written(tmp_path, what):
    """Leftovers may be what fills a full disk."""
    target = tmp_path / "out"
    rewritten(tmp_path / "other", "kept")
    if what == "file":
        target.write_bytes(b"old")
    (left,) = left_by(target, what)
    with pytest.raises(KeyError), atomic.writing(target):
        assert not (tmp_path / left).exists()
        raise KeyError
    assert left_by(target, what)
    if what == "file":
        atomic.write_file(target, b"new")
    else:
        rewritten(target, "new")
    assert sorted(os.listdir(tmp_path)) == ["other", "out"]


def test_what_was_moved_aside_is_kept_until_it_is_replaced(tmp_path):
    target = tmp_path / "out"
    rewritten(target, "old")
    assert len(left_by(target, "moved aside")) == 2 and not target.exists()
    with pytest.raises(KeyError), atomic.writing(target):
        raise KeyError
    (aside,) = tmp_path.iterdir()
    assert (aside / "old" / "a").read_text() == "old"
    rewritten(target, "new")
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_living_process_writes_is_left_alone(tmp_path):
    target = tmp_path / "out"
    command = [sys.executable, "-c", LEFT, str(target), "alive"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "writing\n"
        rewritten(target, "ours")
        atomic.remove_abandoned(tmp_path)
        process.communicate("")
    assert process.returncode == 0
    assert (target / "a").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_where_there_are_no_locks_nothing_is_removed(tmp_path, monkeypatch):
    target = tmp_path / "out"
    left = left_by(target, "folder")

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(atomic.fcntl, "flock", refuse)
    rewritten(target, "new")
    assert sorted(os.listdir(tmp_path)) == [*left, "out"]


def test_nothing_else_is_taken_for_left_behind(tmp_path):
    names = [".out.needle-", ".out.needle-0123", ".out.needle-0123456789abcdef.txt", ".hidden"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".out.needle-0123456789abcdef").symlink_to(tmp_path / ".hidden")
    atomic.remove_abandoned(tmp_path)
    assert len(os.listdir(tmp_path)) == len(names) + 1


def test_private_folders_are_private_whatever_the_umask(tmp_path):
    for mask in (0, 0o077):
        before = os.umask(mask)
        try:
            with atomic.writing(tmp_path / "out", private=True) as folder:
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                (folder / "a").write_text("new")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "out" / "a").stat().st_mode) == 0o600


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="takes Linux's /proc")
@pytest.mark.parametrize("name", ["x", "x/y"])
def test_a_file_system_that_makes_nothing_is_an_error(name):
    with pytest.raises(OSError), atomic.writing(Path("/proc") / name):
        pass
    with pytest.raises(OSError):
        atomic.write_file(Path("/proc") / name, b"")


def test_a_name_that_never_stays_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with pytest.raises(OSError, match="removed at once"), atomic.sibling(tmp_path / "x"):
        pass
