"""Tuning finds what is faster, keeps only what is right, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import needle_tvm
from needle.trace import trace
from needle_tvm import build
from needle_tvm._tvm import Schedule, tvm
from needle_tvm.errors import StageError
from needle_tvm.schedule import cpu
from needle_tvm.target import resolve
from needle_tvm.tune import session

from .conftest import make_mlp, tensor


@pytest.fixture(scope="module")
def spec():
    return resolve("cpu", 2)


@pytest.fixture(scope="module")
def task(spec):
    """(name, unscheduled module, rule-scheduled module) of a small layer."""
    x = tensor(np.zeros((4, 32), np.float32))
    module = build.lower(trace(make_mlp(32, 48), x), spec.to_tvm(), "tuned")
    ((name, (plain, calls)),) = session._tasks(module).items()
    assert calls == 1
    rule = tvm.IRModule({"main": cpu.schedule_function(plain["main"], spec.to_tvm())})
    return name, plain, rule


def judge(spec, task, candidate):
    _, plain, rule = task
    return session._judge(
        {
            "target": {**spec.fields, "mcpu": str(spec.to_tvm().attrs["mcpu"])},
            "plain": tvm.ir.save_json(plain),
            "rule": tvm.ir.save_json(rule),
            "candidate": tvm.ir.save_json(candidate),
            "seed": 0,
        },
        {},
    )


def changed(module, change):
    """The module with `change` applied to the epilogue block's stored value."""
    text = module.script()
    assert change[0] in text
    source = text.replace(*change)
    return tvm.script.from_source(source)


@pytest.mark.slow
def test_a_short_search_end_to_end(rng):
    model = make_mlp(32, 48, 16)
    x = tensor(rng.standard_normal((4, 32)).astype(np.float32))
    lines = []
    executable = needle_tvm.compile(model, x, trials=4, progress=lines.append)
    np.testing.assert_allclose(executable(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)
    notes = executable.manifest["tuning"]
    assert sum(note["trials"] for note in notes) >= 4
    assert {note["chosen"] for note in notes} <= {"rule", "search"}
    assert any("trial 4 of 4" in line for line in lines)
    assert needle_tvm.compile(model, x, trials=4).from_cache


def test_the_rule_itself_passes_the_gate(spec, task):
    verdict = judge(spec, task, task[2])
    assert 0 <= verdict["difference"] <= verdict["tolerance"] < 1e-3
    assert verdict["speedup"] > 0


@pytest.mark.parametrize(
    "change",
    [
        ("T.max(T.float32(0.0)", "T.max(T.float32(0.01)"),  # another epilogue
        ("* lv", "* T.float32(1.001) * lv"),  # another product
    ],
    ids=["epilogue", "product"],
)
def test_a_wrong_candidate_is_rejected(spec, task, change):
    verdict = judge(spec, task, changed(task[1], change))
    assert verdict["difference"] > verdict["tolerance"]
    assert verdict["speedup"] is None


def test_a_candidate_that_drops_nan_is_rejected(spec, task):
    """max(x, 0) is 0 for NaN where max(0, x) is NaN."""
    text = task[1].script()
    flipped = re.sub(r"T\.max\(T\.float32\(0\.0\), (.*)\)", r"T.max(\1, T.float32(0.0))", text)
    assert flipped != text
    verdict = judge(spec, task, tvm.script.from_source(flipped))
    assert verdict["difference"] == float("inf") and verdict["speedup"] is None


def test_a_candidate_that_crashes_is_named(spec, task):
    out_of_bounds = changed(task[1], ("x[v_block", "x[T.int64(1000000000000) + v_block"))
    verdict = judge(spec, task, out_of_bounds)
    assert "SIGSEGV" in verdict["rejected"]


def test_a_candidate_that_hangs_is_named(spec, task, monkeypatch):
    monkeypatch.setattr(session, "_JUDGE_SECONDS", 4.0)
    text = task[1].script()
    slow = text.replace("v_k]", "v_k % T.int64(32)]").replace("v_k,", "v_k % T.int64(32),")
    slow = re.sub(r"T\.int64\(32\)\)(:\s+with T\.sblock\(.tiles)", r"T.int64(1000000000))\1", slow)
    slow = slow.replace("v_j, v_k % T.int64(32) = ", "v_j, v_k = ")
    assert slow != text
    start = time.monotonic()
    verdict = judge(spec, task, tvm.script.from_source(slow))
    assert "no answer" in verdict["rejected"]
    assert time.monotonic() - start < 12


def test_what_is_right_and_faster_is_put_in(spec, task, monkeypatch):
    """The session takes a verdict's word: faster replaces the rule, anything else does not."""
    name, _, rule = task
    x = tensor(np.zeros((4, 32), np.float32))
    candidate = tvm.ir.save_json(rule)
    answer = {"difference": 0.0, "tolerance": 1e-5, "speedup": 2.0}
    monkeypatch.setattr(session, "_search", lambda *a: ({name: [candidate]}, {name: 1}))
    for speedup, chosen in ((2.0, "search"), (1.0, "rule"), (None, "rule")):
        module = build.lower(trace(make_mlp(32, 48), x), spec.to_tvm(), "tuned")
        verdict = {**answer, "speedup": speedup}
        monkeypatch.setattr(session, "_judge", lambda *a, v=verdict: dict(v))
        module, notes = session.tune(module, spec, trials=1, seed=0, progress=None)
        assert [note["chosen"] for note in notes] == [chosen]
        scheduled = "tirx.is_scheduled" in module[name].attrs
        assert scheduled == (chosen == "search")


@pytest.mark.parametrize("trials", [-1, 1.5, True, "3"])
def test_bad_trials_are_refused(trials):
    with pytest.raises(StageError, match="trials="):
        needle_tvm.compile(make_mlp(4, 4), tensor(np.zeros((1, 4), np.float32)), trials=trials)


def test_trials_belong_to_the_tuned_stage():
    x = tensor(np.zeros((1, 4), np.float32))
    with pytest.raises(StageError, match="only stage 'tuned'"):
        needle_tvm.compile(make_mlp(4, 4), x, stage="fused", trials=3)
    with pytest.raises(StageError, match="'bogus': must be one of"):
        needle_tvm.compile(make_mlp(4, 4), x, stage="bogus")


EVALUATION = Path(__file__).parents[2] / "apps" / "tvm_eval.py"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_search_leaves_nothing_behind(tmp_path, how):
    environment = {
        **os.environ,
        "NEEDLE_CACHE_DIR": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
    }
    command = [
        sys.executable,
        str(EVALUATION),
        "-m",
        "mlp",
        "--stages",
        "tuned",
        "--trials",
        "1000",
    ]
    evaluation = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    children: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 120
        while len(children) < 3 and time.monotonic() < deadline:  # the search and its workers
            assert evaluation.poll() is None
            time.sleep(0.2)
            children = psutil.Process(evaluation.pid).children(recursive=True)
        assert len(children) >= 3, "the search builds and runs in processes of its own"
        evaluation.send_signal(how)
        code = evaluation.wait(timeout=30)
    finally:
        evaluation.kill()
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    # A worker killed while it imports TVM, which a busy machine draws out, ends when that is done:
    # it then finds its pipe closed.
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, f"orphans: {alive}"
    assert not list((tmp_path / "cache").rglob(".*")), "a half-written artifact"
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert not (tmp_path / "out").exists()


def test_every_variant_of_the_rule_fits(task):
    """Every variant of the rule is a valid schedule of the task."""
    for knobs in cpu.DENSE_VARIANTS:
        sch = Schedule(task[1])
        cpu.dense(sch, cpu.annotated(sch, cpu.DENSE), 2, knobs)
        assert "tiles_update" in sch.mod.script()
