"""A scratch folder is removed with its process, however that ends."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from needle_runtime.process.scratch import scratch_folder
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_is_new_ours_alone_and_gone_at_the_end(temporary):
    before, children = psutil.Process().num_fds(), psutil.Process().children()
    with scratch_folder("needle-test-") as folder, scratch_folder("needle-test-") as other:
        assert folder != other and folder.parent == other.parent == temporary
        assert folder.name.startswith("needle-test-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a").mkdir()
        (folder / "a" / "file").write_text("text")
    assert not list(temporary.iterdir())
    assert psutil.Process().children() == children, "its reaper is gone too"
    assert psutil.Process().num_fds() == before


def test_it_goes_when_the_block_raises(temporary):
    with pytest.raises(KeyError), scratch_folder("needle-test-"):
        raise KeyError
    assert not list(temporary.iterdir())


def test_one_removed_by_the_block_itself_is_no_error(temporary):
    with scratch_folder("needle-test-") as folder:
        folder.rmdir()


def test_a_place_where_no_folder_can_be_made_is_named(temporary, monkeypatch):
    children = psutil.Process().children()  # of other tests: a lasting folder has a reaper
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "nowhere"))
    with pytest.raises(OSError, match="nowhere"), scratch_folder("needle-test-"):
        pass
    assert psutil.Process().children() == children


PROGRAM = """
    import signal, subprocess, sys, time
    from needle_runtime.process.scratch import scratch_folder

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with scratch_folder("needle odd; $name-") as folder:
        (folder / "file").write_text("text")
        other = subprocess.Popen(["sleep", "30"])  # holds nothing that keeps the folder
        sys.stdout.write(f"{other.pid}\\n")
        sys.stdout.flush()
        time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_it_goes_when_the_process_is_killed(temporary, how):
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert program.stdout is not None
        other = psutil.Process(int(program.stdout.readline()))
        reapers = [p for p in psutil.Process(program.pid).children() if p.pid != other.pid]
        assert len(reapers) == 1 and list(temporary.iterdir())
        program.send_signal(how)
        program.wait(timeout=PATIENCE)
        assert until(lambda: not list(temporary.iterdir()))
        assert psutil.wait_procs(reapers, timeout=PATIENCE)[1] == []
        assert other.is_running(), "the folder went while the process it started still ran"
    finally:
        os.killpg(program.pid, signal.SIGKILL)  # its children are still in its group
        program.communicate()
