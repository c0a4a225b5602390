"""Preparing, building and measuring in worker processes, as in a tuning session."""

import re

import numpy as np
import pytest

from needle_runtime.process.threads import thread_environment
from needle_tvm._tvm.names import tvm
from needle_tvm.tune.measure.workers import CRASH, ERROR, TIMEOUT, Limits, Workers
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.tune.gate.gating import ONCE, TARGET, functions, ruled

LIMITS = Limits(seconds=120, memory=4 << 30)


def service(name, processes=1):
    function = f"needle_tvm.tune.measure.steps:{name}"
    environment = thread_environment(2)
    return Workers(name, function, processes=processes, limits=LIMITS, environment=environment)


@pytest.fixture(scope="module")
def task():
    (module,) = functions(make_mlp(32, 48), tensor(np.zeros((4, 32), np.float32))).values()
    return module


@pytest.fixture(scope="module")
def services():
    """The services of a tuning session, whose processes all tests here share."""
    with (
        service("prepare") as prepare,
        service("build", processes=2) as build,
        service("measure") as measure,
    ):
        yield prepare, build, measure


def outcome_of(candidate, task, services, folder, seconds=20):
    """The outcome of measuring a candidate in worker processes."""
    prepare, build, measure = services
    request = {"target": TARGET, "module": tvm.ir.save_json(task)}
    gate, library = str(folder / "gate"), str(folder / "x.so")
    prepared = prepare.call({**request, "folder": gate, "seed": 3})
    assert prepared.ok and prepared.value["reference"] == "float64", prepared
    built = build.call({**request, "module": tvm.ir.save_json(candidate), "path": library})
    assert built.ok and built.value["bytes"] > 1000, built
    limits = Limits(seconds=seconds, memory=4 << 30)
    return measure.call({"path": library, "gate": gate, **ONCE}, limits)


def test_a_candidate_that_is_right(task, services, tmp_path):
    outcome = outcome_of(ruled(task), task, services, tmp_path)
    assert outcome.ok and len(outcome.value["run_secs"]) == 1, outcome


def test_a_wrong_one_has_an_infinite_difference(task, services, tmp_path):
    """The pipe can carry infinity."""
    text = task.script().replace("T.max(T.float32(0.0)", 'T.max(T.float32("inf")')
    outcome = outcome_of(tvm.script.from_source(text), task, services, tmp_path)
    assert outcome.ok and outcome.value["difference"] == float("inf"), outcome
    assert "expected" in outcome.value["wrong"]


def test_one_that_reads_far_outside_crashes_alone(task, services, tmp_path):
    text, count = re.subn(r"\bx\[(?=v_)", "x[T.int64(1000000000000) + ", task.script())
    assert count
    outcome = outcome_of(tvm.script.from_source(text), task, services, tmp_path)
    assert outcome.kind == CRASH and "SIGSEGV" in outcome.detail, outcome


@pytest.mark.slow
def test_one_that_hangs_is_stopped(task, services, tmp_path):
    """Its sum repeats the same 32 terms for hours."""
    text = task.script()
    hangs = text.replace("v_k]", "v_k % T.int64(32)]").replace("v_k,", "v_k % T.int64(32),")
    hangs = re.sub(r"T\.int64\(32\)\)(:\s+with T\.sblock\(.tiles)", r"T.int64(10**12))\1", hangs)
    hangs = hangs.replace("v_j, v_k % T.int64(32) = ", "v_j, v_k = ")
    assert hangs != text
    outcome = outcome_of(tvm.script.from_source(hangs), task, services, tmp_path, seconds=5)
    assert outcome.kind == TIMEOUT, outcome


def test_a_request_that_cannot_be_met_is_an_error(services, tmp_path):
    outcome = services[-1].call({"path": "x.so", "gate": str(tmp_path), **ONCE})
    assert outcome.kind == ERROR and "gate.json" in outcome.detail, outcome
