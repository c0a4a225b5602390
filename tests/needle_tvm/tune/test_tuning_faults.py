"""The search continues whatever candidates do: faulty ones are rejected by name, none is chosen."""

import time
from collections import Counter
from itertools import zip_longest

import numpy as np
import psutil
import pytest

from needle.trace import trace
from needle_runtime.process.threads import thread_environment
from needle_tvm._tvm.names import tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.target.spec import resolve
from needle_tvm.tune import bench, search, session, space
from needle_tvm.tune.options import Options
from needle_tvm.tune.records.facts import Trial
from needle_tvm.tune.records.store import Store
from needle_tvm.tune.status import Status
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.tune.faulty_measure import LAST, PLANTED
from tests.needle_tvm.tune.measure.machines import Machines

KINDS = Counter(kind for _, _, kind in PLANTED.values())
RUN_SECONDS = 5.0


def task():
    """(TVM's target description, {name: its task}) of a small layer."""
    spec = resolve("cpu", 2)
    x = tensor(np.zeros((4, 32), np.float32))
    module = lowering.lower(trace(make_mlp(32, 48), x), spec.to_tvm(), "tuned")
    ((name, (plain, calls)),) = session.find_tasks(module).items()
    rule = tvm.IRModule({"main": cpu.schedule_function(plain["main"], spec.to_tvm())})
    texts = {
        "plain": tvm.ir.save_json(plain),
        "written": tvm.ir.save_json(plain),
        "rule": tvm.ir.save_json(rule),
        "calls": calls,
    }
    return {**spec.fields, "mcpu": str(spec.to_tvm().attrs["mcpu"])}, {name: texts}


def setup_of(folder, trials):
    """A search's setup; see search.search."""
    target, tasks = task()
    return {
        "target": target,
        "device": ["cpu", 0],
        "threads": 2,
        "tasks": tasks,
        "trials": trials,
        "seconds": None,
        "seed": 0,
        "store": str(folder / "records"),
        "environment": {**thread_environment(2), LAST: str(trials)},
        "cluster": None,
    }


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, pytest.param(20, marks=pytest.mark.long)])
def test_every_kind_of_fault_is_survived_and_named(tmp_path, monkeypatch, each):
    trials = 2 * len(PLANTED) * each
    for name, value in (
        ("_SERVICE", "tests.needle_tvm.tune.faulty_measure:serve"),
        ("_SECONDS", {"llvm": bench.Seconds(60.0, RUN_SECONDS, RUN_SECONDS)}),
        ("_memory", lambda: 800 << 20),
    ):
        monkeypatch.setattr(bench, name, value)
    setup = setup_of(tmp_path, trials)
    before = set(psutil.Process().children(recursive=True))
    *_, last = search.search(setup, iter(()))
    (result,) = last["results"].values()
    assert result["trials"] == trials, "the whole budget was spent"
    expected = Counter({kind: each * count for kind, count in KINDS.items()})
    assert Counter(result["rejected"]) == expected
    with Store(tmp_path / "records") as store:
        found = store.all(Trial).values()
        assert len(found) == trials
        reasons = [trial.rejected for trial in found if trial.rejected]
        assert Counter(reason.split(":")[0] for reason in reasons) == expected
        assert all(bool(trial.rejected) == (trial.seconds is None) for trial in found)
    time.sleep(0.1)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_kernel_that_tvm_cannot_search_keeps_its_rule(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("no rule for this block\nand a long story")

    monkeypatch.setattr(space, "context", refuse)
    *_, last = search.search(setup_of(tmp_path, trials=4), iter(()))
    (result,) = last["results"].values()
    assert result["ended"].startswith("RuntimeError: no rule for this block")
    assert result["chosen"] == "rule" and result["trials"] == 0


@pytest.mark.slow
def test_two_searches_at_once_spend_one_budget(tmp_path, in_this_process):
    """They take turns after every trial; each may be in one when the budget is spent."""
    searches = [search.search(setup_of(tmp_path, trials=6), iter(())) for _ in range(2)]
    for answers in zip_longest(*searches):
        found = [each["results"] for each in answers if each and "results" in each]
        assert all(note["trials"] < 6 for notes in found for note in notes.values())
    with Store(tmp_path / "records") as store:
        assert 6 <= len(store.all(Trial)) <= 7


@pytest.mark.slow
def test_tuning_on_two_workers_outlives_one_of_them(tmp_path):
    """One is killed midway; the budget is still spent, all records are gated, results are right."""
    pytest.importorskip("distributed")
    killed = []

    def kill(said):
        if isinstance(said, Status) and said.trials >= 4 and not killed:
            killed.append(said.trials)
            first.kill()

    target, tasks = task()
    plain = {name: (tvm.ir.load_json(each["plain"]), 1) for name, each in tasks.items()}
    rules = {name: tvm.ir.load_json(each["rule"]) for name, each in tasks.items()}
    with Machines(tmp_path) as machines:
        first, _ = machines.worker(), machines.worker()
        options = Options(12, cluster=machines.address)
        (note,) = session.search(
            plain, rules, target, options, store=tmp_path / "records", progress=kill
        ).values()
    assert killed
    assert note["trials"] == 12
    assert note["best_seconds"] is not None and note["candidate"] is not None
    with Store(tmp_path / "records") as store:
        reasons = [trial.rejected for trial in store.all(Trial).values()]
        assert reasons == [""] * 12, "no candidate's fault"
