"""A search finds faster schedules, keeps only right ones, keeps to its budget and loses nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import psutil
import pytest

import needle as ndl
import needle_tvm
from needle.trace import trace
from needle_runtime.errors import UsageError
from needle_tvm._tvm.names import tvm
from needle_tvm.errors import StageError, TuningError
from needle_tvm.frontend import lowering
from needle_tvm.kernels import cpu
from needle_tvm.kernels.dense import cpu as products
from needle_tvm.target.spec import resolve
from needle_tvm.tune import session, whole_model
from needle_tvm.tune.options import Options
from needle_tvm.tune.records.facts import Trial
from needle_tvm.tune.records.store import FILE, Store
from needle_tvm.tune.status import Status
from tests import ROOT
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def spec():
    return resolve("cpu", 2)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))


def lowered(spec, *sizes, batch=4):
    x = tensor(np.zeros((batch, sizes[0]), np.float32))
    return lowering.lower(trace(make_mlp(*sizes), x), spec.to_tvm(), "tuned")


@pytest.fixture(scope="module")
def task(spec):
    """(name, unscheduled module) of a small layer."""
    ((name, (plain, calls)),) = session.find_tasks(lowered(spec, 32, 48)).items()
    assert calls == 1
    return name, plain


def tune(spec, *sizes, progress=None, **options):
    return session.tune(lowered(spec, *sizes), spec, Options(**options), progress)


def trials_in_store():
    with Store() as store:
        return list(store.all(Trial).values())


def check_verdicts(count):
    """Each of so many trials has a verdict, and those that are right are usable."""
    with Store() as store:
        trials = store.all(Trial)
        assert len(trials) == count
        for name, trial in trials.items():
            assert bool(store.rejected(name)) == (trial.seconds is None)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """(the folder of its store, model, input, executable, what was said) of a whole search."""
    folder = tmp_path_factory.mktemp("searched")
    model = make_mlp(32, 48)
    x = tensor(np.random.default_rng(7).standard_normal((4, 32)).astype(np.float32))
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEEDLE_CACHE_DIR", str(folder))
        executable = needle_tvm.compile(model, x, threads=2, trials=4, progress=said.append)
    return folder, model, x, executable, said


@pytest.fixture
def found(searched, tmp_path):
    """The trials of `searched` are in this test's store."""
    shutil.copytree(searched[0], tmp_path / "cache")


@pytest.mark.slow
def test_a_search_end_to_end(searched, found):
    """It spends its budget and records every trial; the result is right, and cached."""
    _, model, x, executable, said = searched
    np.testing.assert_allclose(executable(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)
    notes = executable.manifest["tuning"]
    assert sum(note["trials"] for note in notes) == 4
    assert {note["chosen"] for note in notes} <= {"rule", "search"}
    assert all(note["gate"]["reference"] == "float64" for note in notes)
    assert all(note["reason"] and note["candidates"][0]["source"] == "rule" for note in notes)
    if any(note["chosen"] == "search" for note in notes):
        assert executable.manifest["whole_model"]["kept"] == "tuned"
    statuses = [each for each in said if isinstance(each, Status)]
    assert any("4 of 4 trials" in str(status) for status in statuses)
    assert statuses[-1].trials == 4 and "comparing" in str(statuses[-1])
    assert len(trials_in_store()) == 4
    check_verdicts(4)
    assert needle_tvm.compile(model, x, threads=2, trials=4).from_cache


@pytest.mark.slow
def test_what_was_spent_is_not_spent_again(searched, found, in_this_process):
    """Its findings are recorded, so building again needs no more trials."""
    _, model, x, executable, _ = searched
    again = needle_tvm.compile(model, x, threads=2, trials=4, recompile=True)
    assert not again.from_cache
    assert len(trials_in_store()) == 4
    told, notes = again.manifest["tuning"], executable.manifest["tuning"]
    assert [note["trials"] for note in told] == [note["trials"] for note in notes]
    assert [note["rejected"] for note in told] == [note["rejected"] for note in notes]


@pytest.mark.slow
def test_another_model_uses_what_was_found_for_the_same_kernel(
    spec, searched, found, in_this_process
):
    """The second model shares its 32 -> 48 layer with the first, so it uses the same records."""
    (first,) = searched[3].manifest["tuning"]
    with Store() as store:
        before = {n: t.seconds for n, t in store.all(Trial).items() if t.seconds is not None}
    _, notes = tune(spec, 32, 48, 80, trials=1)
    shared = next(note for note in notes if note["task"] == first["task"])
    assert shared["trials"] <= 1
    with Store() as store:
        assert store.all(Trial)[shared["record"]].seconds <= min(before.values())
        assert shared["record"] in before or shared["trials"] == 1
        sessions = {trial.session for trial in store.all(Trial).values()}
        assert [store.spent(each)[0] for each in sorted(sessions)] in ([4, 1], [1, 4])


@pytest.mark.slow
def test_what_was_lost_with_a_damaged_store_is_searched_again(spec, found, in_this_process):
    """The search also reports the damage."""
    with Store() as store:
        file = store.path / FILE
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*lines[:-3], b"x" + lines[-3], *lines[-2:]]))
    said = []
    tune(spec, 32, 48, trials=4, progress=said.append)
    assert any("1 damaged line not used" in str(line) for line in said)
    with Store(report=said.append) as store:
        trials = store.all(Trial)
        (name,) = {trial.session for trial in trials.values()}
        assert store.spent(name)[0] == 4


def test_a_place_where_no_store_can_be_made_is_named(spec, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", "/proc/needle")
    with pytest.raises(TuningError, match=r"/proc/needle.*cannot be opened"):
        tune(spec, 32, 48, trials=1)


@pytest.mark.slow
def test_a_time_budget_ends_the_search(spec, in_this_process):
    start = time.monotonic()
    _, notes = tune(spec, 32, 48, minutes=0.05)
    assert sum(note["trials"] for note in notes) >= 1
    assert time.monotonic() - start < 3 + 60, "it ends soon after its three seconds"
    with Store() as store:
        (name,) = {trial.session for trial in store.all(Trial).values()}
        trials, seconds = store.spent(name)
    assert trials >= 1 and seconds < 3 + 20  # the last candidate is finished
    said = []
    tune(spec, 32, 48, minutes=seconds / 60, progress=said.append)
    assert any("spent already" in str(line) for line in said)
    assert len(trials_in_store()) == trials


def test_what_is_right_and_faster_is_put_in(spec, monkeypatch):
    """The session trusts the search: only what it chose replaces the rule's schedule."""
    module = lowered(spec, 32, 48)
    ((name, (plain, _)),) = session.find_tasks(module).items()
    rule = cpu.schedule_function(plain["main"], spec.to_tvm())
    candidate = tvm.ir.save_json(tvm.IRModule({"main": rule}))
    for chosen in ("search", "rule"):
        answer = {name: {"task": name, "chosen": chosen, "candidate": candidate}}
        monkeypatch.setattr(session, "search", lambda *a, x=answer, **k: {**x})
        module, notes = session.tune(lowered(spec, 32, 48), spec, Options(1))
        assert [note["chosen"] for note in notes] == [chosen]
        assert ("tirx.is_scheduled" in module[name].attrs) == (chosen == "search")
        assert "candidate" not in notes[0]


@pytest.mark.parametrize("kept", ["tuned", "rules"])
def test_what_makes_the_whole_model_slower_goes(spec, monkeypatch, kept):
    """The search's choices are also timed in the whole model, with complete artifacts."""
    model = make_mlp(32, 48)
    compared = []

    def found(tasks, rules, *args, **options):
        ((name, rule),) = rules.items()
        candidate = tvm.ir.save_json(rule)
        return {name: {"task": name, "chosen": "search", "candidate": candidate, "reason": ""}}

    def compare(*args):
        compared.append(real(*args))
        assert compared[0]["rules_seconds"] > 0 and compared[0]["tuned_seconds"] > 0
        return {**compared[0], "kept": kept}

    real = whole_model.compare
    monkeypatch.setattr(session, "search", found)
    monkeypatch.setattr(whole_model, "compare", compare)
    x = tensor(np.ones((4, 32), np.float32))
    executable = needle_tvm.compile(model, x, trials=1, recompile=True)
    np.testing.assert_allclose(executable(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)
    assert len(compared) == 1 and compared[0]["kept"] in ("tuned", "rules")
    (note,) = executable.manifest["tuning"]
    assert note["chosen"] == ("search" if kept == "tuned" else "rule")
    assert ("slower" in note["reason"]) == (kept == "rules")


def command_of(process: psutil.Process) -> list[str]:
    """A process's command line; empty if it has ended meanwhile or is a zombie."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@pytest.mark.slow
def test_a_search_whose_process_dies_goes_on(spec, tmp_path):
    """The process is killed after some trials, and the session starts another for the rest."""
    killed = []

    def kill(said):
        if isinstance(said, Status) and said.trials >= 2 and not killed:
            (tuner,) = [
                child
                for child in psutil.Process().children()
                if any("needle_runtime.process.child" in part for part in command_of(child))
            ]
            killed.append(tuner.pid)
            tuner.kill()

    _, notes = tune(spec, 32, 48, trials=4, progress=kill)
    assert killed
    assert notes[0]["chosen"] in ("rule", "search")
    assert 4 <= len(trials_in_store()) <= 5  # one may have been written but not yet reported


def test_a_search_that_cannot_work_says_why(spec, tmp_path, monkeypatch):
    place = tmp_path / "occupied"
    (place / "records").mkdir(parents=True)
    (place / "records" / "notes.txt").write_text("mine")
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(place))
    with pytest.raises(TuningError, match="records"):
        tune(spec, 32, 48, trials=1)
    assert (place / "records" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("trials", [-1, 1.5, True, "3"])
def test_bad_trials_are_refused(trials):
    with pytest.raises(StageError, match="trials="):
        needle_tvm.compile(make_mlp(4, 4), tensor(np.zeros((1, 4), np.float32)), trials=trials)


@pytest.mark.parametrize("budget", [{"trials": 1}, {"minutes": 1}])
def test_a_budget_for_open_sizes_is_refused_by_name(budget):
    model, x = make_mlp(4, 4), tensor(np.zeros((1, 4), np.float32))
    dims = {0: {0: ndl.Dim("n", max=4)}}
    with pytest.raises(UsageError, match="dims: kernels for many sizes are not searched"):
        needle_tvm.compile(model, x, dims=dims, **budget)
    with pytest.raises(UsageError, match="not searched"):
        needle_tvm.jit(dims={"x": {0: dims[0][0]}}, **budget)(lambda x: x + 1)


def test_kernels_of_open_sizes_are_no_tasks(spec):
    x = tensor(np.zeros((4, 32), np.float32))
    graph = trace(make_mlp(32, 48), x, dims={0: {0: ndl.Dim("n", max=64)}})
    assert not session.find_tasks(lowering.lower(graph, spec.to_tvm(), "tuned"))


def test_trials_belong_to_the_tuned_stage():
    x = tensor(np.zeros((1, 4), np.float32))
    with pytest.raises(StageError, match="only stage 'tuned'"):
        needle_tvm.compile(make_mlp(4, 4), x, stage="fused", trials=3)
    with pytest.raises(StageError, match="'bogus': must be one of"):
        needle_tvm.compile(make_mlp(4, 4), x, stage="bogus")


EVALUATION = ROOT / "apps" / "tvm_eval.py"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["starting", "measuring"])
def test_an_interrupted_search_leaves_nothing_behind(tmp_path, how, moment):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = {
        **os.environ,
        "NEEDLE_CACHE_DIR": str(tmp_path / "cache"),
        "TMPDIR": str(scratch),
    }
    options = ["-m", "mlp", "--stages", "tuned", "--trials", "1000", "--out", str(tmp_path / "out")]
    evaluation = subprocess.Popen(
        [sys.executable, str(EVALUATION), *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    children: list[psutil.Process] = []

    def there():
        if moment == "starting":  # the search's process and the templates of its workers
            return len(children) >= 3
        return any((tmp_path / "cache").rglob(FILE)) and _recorded(tmp_path / "cache")

    try:
        deadline = time.monotonic() + 180
        while not there() and time.monotonic() < deadline:
            assert evaluation.poll() is None
            time.sleep(0.1)
            children = psutil.Process(evaluation.pid).children(recursive=True)
        assert there()
        evaluation.send_signal(how)
        code = evaluation.wait(timeout=PATIENCE)
    finally:
        evaluation.kill()
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive, f"orphans: {alive}"
    assert until(lambda: not list(scratch.iterdir())), "temporary files"
    assert not list((tmp_path / "cache").rglob(".*")), "a half-written artifact"
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert not (tmp_path / "out").exists()


def _recorded(cache):
    with Store(cache / "records") as store:
        return len(store.all(Trial)) > 0


def test_every_variant_of_the_rule_fits(task, spec):
    variants = list(cpu.variants(task[1]["main"], spec.to_tvm()))
    assert len(variants) == len(products.DENSE_VARIANTS)
    for sch in variants:
        assert "tiles_update" in sch.mod.script()


@pytest.mark.slow
def test_sessions_are_told_apart_by_what_they_tune(spec, found, in_this_process):
    """Each seed and set of tasks has its own budget. A larger one spends the difference. Another
    seed draws from the same space, but no trial is spent on a recorded candidate."""
    tune(spec, 32, 48, trials=6)
    tune(spec, 32, 48, trials=3, seed=1)
    tune(spec, 32, 64, trials=2)
    by_session = Counter(trial.session for trial in trials_in_store())
    assert sorted(by_session.values()) == [2, 3, 6]
    with Store() as store:
        traces = [(trial.kernel, trial.trace) for trial in store.all(Trial).values()]
    assert len(traces) == len(set(traces))
