"""`make gpu-test` where there is no GPU: its steps, their time, what is counted."""

import sys
import time

import pytest

from tests import ROOT
from tests import gpu_suite as suite

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    monkeypatch.setattr(suite, "_LEAST_SECONDS", 6.0)
    monkeypatch.setattr(suite, "_ENDING_SECONDS", 5.0)


def test_reports_of_pytest_are_counted():
    report = '<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>'
    assert suite.count_tests(report) == {"passed": 3, "failed": 2, "skipped": 2}


def step(title, tmp_path, body, environment=None, **options):
    path = tmp_path / f"test_{title}.py"
    path.write_text(body)
    empty = tmp_path / "empty.ini"  # in place of the project's options
    empty.touch()
    arguments = (str(path), "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", str(empty))
    return suite.Step(title, arguments, environment=environment or {}, **options)


def run(*steps, seconds=100.0):
    return suite.run_all(steps, [], time.time() + seconds)


def test_steps_are_run_and_told(tmp_path, capfd):
    reads = "import os\ndef test_it(): assert os.environ['A'] == 'b'"
    right = step("right", tmp_path, reads, environment={"A": "b"})
    wrong = step("wrong", tmp_path, "def test_it(): assert False")
    code, told = run(right, wrong)
    assert code == 1
    assert told[0] == "right: passed (1 passed, 0 failed, 0 skipped)"
    assert told[1] == "wrong: failed (exit 1) (0 passed, 1 failed, 0 skipped)"
    assert run(right)[0] == 0


SLOW = "import time\ndef test_one(): pass\ndef test_two(): time.sleep(60)"


def test_what_the_deadline_cuts_short_keeps_what_was_found(tmp_path, capfd):
    code, told = run(step("whole", tmp_path, SLOW), step("late", tmp_path, SLOW), seconds=16.0)
    assert code == 1
    assert told[0] == "whole: cut short (1 passed, 0 failed, 0 skipped)"
    assert told[1] == "late: not run, no time was left"


def test_a_sample_may_be_cut_short_and_not_run(tmp_path, capfd):
    first, late = (step(name, tmp_path, SLOW, sample=True) for name in ("sample", "late"))
    code, told = run(first, late, seconds=16.0)
    assert code == 0
    assert told[0] == "sample: cut short (1 passed, 0 failed, 0 skipped)"


def test_a_failure_before_the_deadline_fails_a_sample(tmp_path, capfd):
    body = "import time\ndef test_one(): assert 0\ndef test_two(): time.sleep(60)"
    code, (told,) = run(step("sample", tmp_path, body, sample=True), seconds=16.0)
    assert code == 1 and told.startswith("sample: cut short (0 passed, 1 failed")


def test_nothing_that_ran_is_a_failure(tmp_path):
    skips = "import pytest\n@pytest.mark.skip\ndef test_it(): pass"
    code, told = run(step("skips", tmp_path, skips))
    assert code == 1 and told == ["skips: passed (0 passed, 0 failed, 1 skipped)"]
    code, told = run(step("none", tmp_path, skips, before=("no-such-program",)))
    assert code == 1 and told == ["none: not run, there is no no-such-program"]


def test_several_processes_test_at_once(tmp_path, capfd):
    pytest.importorskip("xdist")
    body = "import os\ndef test_it(): assert os.environ['PYTEST_XDIST_WORKER']"
    assert run(step("parallel", tmp_path, body, parallel=True))[0] == 0


def test_every_step_names_what_is_there():
    found = suite.steps(["tests/kernel_lab/test_gpu_ladders.py"])
    assert tuple(each.title for each in found) == suite.TITLES and len(set(suite.TITLES)) == 6
    for each in found:
        paths = [word for word in each.arguments if word.startswith("tests/")]
        assert paths and all((ROOT / path).exists() for path in paths)
        assert each.sample == bool(each.before) and not (each.parallel and each.before)


def test_steps_are_chosen_by_title(monkeypatch):
    asked = []
    monkeypatch.setattr(
        suite, "run_all", lambda found, more, deadline: asked.extend(found) or (0, [])
    )
    assert suite.run(["arrays"], [], 0.0) == 0
    assert [each.title for each in asked] == ["arrays"]
    suite.run(None, [], 0.0)
    (marked,) = (each.arguments for each in asked if each.title == "marked")
    assert [each.title for each in asked[1:]] == list(suite.TITLES)
    assert "tests/kernel_lab/test_contestants.py" in marked
    assert "tests/needle/ops/test_ops.py" not in marked


def test_a_step_that_compiles_needs_the_second_bundle(tmp_path, monkeypatch, capfd):
    compiles = step("compiles", tmp_path, "def test_it(): pass", compiles=True)
    assert run(compiles)[0] == 0
    monkeypatch.setattr(suite, "find_spec", lambda name: None)
    code, told = run(compiles)
    assert code == 1 and told == [
        "compiles: not run: make gpu-bundle ARGS=--compiler brings a compiler"
    ]


def test_what_a_command_started_ends_with_it(tmp_path):
    """A program under compute-sanitizer is a child of it, and would go on."""
    inner = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    inner += f"open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(8);"
    inner += f"open({str(tmp_path / 'ended')!r}, 'w').close()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    assert suite.run_for([sys.executable, "-c", outer], 8.0) is None
    time.sleep(5.5)
    assert (tmp_path / "begun").exists() and not (tmp_path / "ended").exists()
