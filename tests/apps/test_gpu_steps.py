"""`make gpu-test` without a GPU: its steps, their time limits and their counts."""

import os
import sys
import time

import pytest

from benchmarks.gpu import host, steps, turns


def test_reports_of_pytest_are_counted():
    report = '<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2">{}</testsuite>'
    report += "</testsuites>"
    assert steps.count_tests(report.format("")) == {"passed": 3, "failed": 2, "skipped": 2}
    late = f'<testcase><skipped message="{steps.REASON}"/></testcase>'
    assert steps.count_tests(report.format(late)) == {
        "passed": 3,
        "failed": 2,
        "skipped": 1,
        "left out": 1,
    }


def step(title, tmp_path, body, share=1, environment=None, **options):
    path = tmp_path / f"test_{title}.py"
    path.write_text(body)
    arguments = (str(path), "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", os.devnull)
    return steps.Step(title, arguments, share, environment=environment or {}, **options)


def test_steps_are_run_in_their_time_and_told(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(steps, "_LEAST_SECONDS", 3.0)
    reads = "import os\ndef test_it(): assert os.environ['A'] == 'b'"
    sleeps = "import time\ndef test_it(): time.sleep(60)"
    found = [
        step("right", tmp_path, reads, environment={"A": "b"}),
        step("wrong", tmp_path, "def test_it(): assert False"),
        step("slow", tmp_path, sleeps),
        step("late", tmp_path, reads),
    ]
    times = iter([0.0, 0.0, 95.0, 98.0])
    code, told = steps.run_all(found, ["-q"], 100.0, clock=lambda: next(times))
    assert code == 1
    assert told[0] == "right: passed (1 passed, 0 failed, 0 skipped)"
    assert told[1] == "wrong: failed (exit 1) (0 passed, 1 failed, 0 skipped)"
    assert told[2].startswith("slow: not done within 4 s") and told[3].startswith("late: not run")
    assert steps.run_all(found[:1], [], 100.0, clock=lambda: 0.0)[0] == 0


def test_what_no_time_is_left_for_is_left_out_and_what_was_found_is_kept(tmp_path, capfd):
    body = f"import os\ndef test_one(): os.environ[{steps.UNTIL!r}] = '1'\ndef test_two(): pass"
    for title, sample, code in (("whole", False, 1), ("sample", True, 0)):
        each = step(title, tmp_path, body, sample=sample)
        found, (told,) = steps.run_all([each], [], 100.0, clock=lambda: 0.0)
        assert told == f"{title}: passed (1 passed, 0 failed, 0 skipped, 1 left out)"
        assert found == code


def test_a_sample_that_is_killed_is_cut_short(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(steps, "_LEAST_SECONDS", 1.0)
    sleeps = step("long", tmp_path, "import time\ndef test_it(): time.sleep(60)", sample=True)
    code, (told,) = steps.run_all([sleeps], [], 3.0, clock=lambda: 0.0)
    assert code == 1 and told == "long: cut short"  # nothing ran


def test_nothing_that_ran_is_a_failure(tmp_path):
    skips = "import pytest\n@pytest.mark.skip\ndef test_it(): pass"
    code, told = steps.run_all([step("skips", tmp_path, skips)], [], 100.0, clock=lambda: 0.0)
    assert code == 1 and told == ["skips: passed (0 passed, 0 failed, 1 skipped)"]


def test_several_processes_test_at_once(tmp_path, capfd):
    pytest.importorskip("xdist")
    body = "import os\ndef test_it(): assert os.environ['PYTEST_XDIST_WORKER']"
    found = [step("parallel", tmp_path, body, parallel=True)]
    assert steps.run_all(found, [], 100.0, clock=lambda: 0.0)[0] == 0


def test_every_step_names_what_is_there(monkeypatch):
    monkeypatch.setattr(steps.shutil, "which", lambda name: f"/bin/{name}")
    found = steps.steps(["tests/lab/test_gpu_ladders.py"])
    assert len({each.title for each in found}) == 6
    for each in found:
        paths = [word for word in each.arguments if word.startswith("tests/")]
        assert paths and all((host.ROOT / path).exists() for path in paths)
        assert each.sample == bool(each.before) and not (each.parallel and each.before)


def test_what_a_command_started_ends_with_it(tmp_path):
    """A program under compute-sanitizer is its child and would otherwise go on."""
    inner = f"import time; open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(3);"
    inner += f"open({str(tmp_path / 'ended')!r}, 'w').close()"
    outer = "import subprocess, sys; sys.stderr.write('here\\n'); sys.stderr.flush();"
    outer += f"subprocess.run([sys.executable, '-c', {inner!r}])"
    command = [sys.executable, "-c", outer]
    found = turns.run_for(command, 2.0, cwd=tmp_path, stderr=turns.subprocess.PIPE)
    assert found == (None, "here\n")
    time.sleep(2.5)
    assert (tmp_path / "begun").exists() and not (tmp_path / "ended").exists()


def test_parts_share_the_time_and_what_is_left_goes_on():
    now, seen, skipped = [0.0], [], {}
    takes = {"a": 10.0, "b": 300.0, "c": 30.0, "d": 1.0}

    def run(name, seconds):
        seen.append((name, round(seconds)))
        now[0] += min(takes[name], seconds)

    shares = {"a": 2, "b": 1, "c": 1, "d": 1}
    turns.in_turn(shares, 100.0, 20.0, run, skipped.__setitem__, clock=lambda: now[0])
    assert seen == [("a", 60), ("b", 45), ("c", 34)]
    assert list(skipped) == ["d"] and skipped["d"].startswith("15 s were left")


def test_a_build_that_fails_is_one_line(monkeypatch, tmp_path):
    cmake = tmp_path / "cmake"
    cmake.write_text("#!/bin/sh\necho -- fine; echo 'x.cc:1: error: no such thing' >&2; exit 1\n")
    cmake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert steps.build("sm_90") == "x.cc:1: error: no such thing"
    cmake.unlink()
    assert steps.build("sm_90").startswith("cmake: ")
