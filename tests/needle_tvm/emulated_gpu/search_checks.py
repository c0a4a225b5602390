"""Searches on the emulated GPU. test_gpu_tuning.py runs these with `emulated_gpu.environment`."""

from collections import Counter

import numpy as np
import pytest

import needle_tvm
from needle.trace import trace
from needle_runtime.process.threads import thread_environment
from needle_tvm._tvm.names import tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import gpu
from needle_tvm.kernels.knob_candidates import is_noted
from needle_tvm.target.spec import resolve
from needle_tvm.tune import bench, search, session, space
from needle_tvm.tune.records.facts import Trial
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.emulated_gpu import faulty


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))


def trials():
    with Store() as store:
        return list(store.all(Trial).values())


def test_a_search_end_to_end():
    """Both sources propose, all trials are recorded, results are right, and a search resumes."""
    rng = np.random.default_rng(0)
    model = make_mlp(128, 32)
    x = tensor(rng.standard_normal((8, 128)).astype(np.float32))
    executable = needle_tvm.compile(model, x, target="cuda", trials=4)
    found = trials()
    assert len(found) == 4
    assert {is_noted(trial.trace) for trial in found} == {True, False}
    (note,) = executable.manifest["tuning"]
    assert note["trials"] == 4 and note["gate"]["reference"] == "float64"
    assert note["rule_seconds"] > 0 and note["best_seconds"] > 0
    assert note["candidates"][0]["source"] == "rule" and len(note["candidates"]) > 1
    assert "wrong" not in note["rejected"] and "crash" not in note["rejected"]
    if note["chosen"] == "search":
        assert executable.manifest["whole_model"]["kept"] == "tuned"
    expected = model(x).numpy()
    np.testing.assert_allclose(executable(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    # A larger budget continues from there and chooses among all records.
    larger = needle_tvm.compile(model, x, target="cuda", trials=5)
    np.testing.assert_allclose(larger(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    found = trials()
    assert len(found) == 5 and len({trial.session for trial in found}) == 1
    assert len({trial.trace for trial in found}) == 5, "nothing is measured twice"
    (told,) = larger.manifest["tuning"]
    assert told["trials"] == 5 and told["best_seconds"] <= note["best_seconds"]


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
def test_a_search_among_tiles_of_tensor_cores(dtype):
    """Candidates with narrow operands pass the gate, and the model is right with the chosen one."""
    rng = np.random.default_rng(0)
    model = make_mlp(64, 64)
    x = tensor(rng.standard_normal((16, 64)).astype(np.float32))
    executable = needle_tvm.compile(model, x, target="cuda", dtype=dtype, trials=8)
    tensor_core = [each for each in trials() if "tensor_core" in each.trace]
    assert tensor_core and executable.manifest["precision"] == dtype
    note = max(executable.manifest["tuning"], key=lambda note: note["trials"])
    assert not {"wrong", "crash"} & set(note["rejected"]), note
    expected = model(x).numpy()
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(
        executable(x).numpy(), expected, atol=8 * unit * np.abs(expected).max()
    )


def setup_of(folder, trials):
    """A search's setup for one small layer; see search.search."""
    spec = resolve("cuda")
    x = tensor(np.zeros((8, 128), np.float32))
    module = lowering.lower(trace(make_mlp(128, 32), x), spec.to_tvm(), "tuned")
    ((name, (plain, calls)),) = session.find_tasks(gpu.prepared(module)).items()
    rule = tvm.IRModule({"main": gpu.schedule_function(plain["main"], spec.to_tvm())})
    texts = {"plain": tvm.ir.save_json(plain), "written": tvm.ir.save_json(plain)}
    return {
        "target": spec.resolved(),
        "device": ["cuda", 0],
        "threads": 2,
        "tasks": {name: {**texts, "rule": tvm.ir.save_json(rule), "calls": calls}},
        "trials": trials,
        "seconds": None,
        "seed": 0,
        "store": str(folder / "records"),
        "environment": thread_environment(2),
        "cluster": None,
    }


@pytest.fixture
def own_choices_alone(monkeypatch):
    """Use only the candidates of our rules, in their order."""

    def refuse(*arguments):
        raise RuntimeError("not asked for here")

    monkeypatch.setattr(space, "context", refuse)


def test_what_writes_out_of_bounds_is_survived(tmp_path, monkeypatch, own_choices_alone):
    monkeypatch.setattr(bench, "_SERVICE", "tests.needle_tvm.emulated_gpu.faulty:serve")
    *_, last = search.search(setup_of(tmp_path, 4), iter(()))
    (result,) = last["results"].values()
    assert result["trials"] == 4
    expected = Counter(kind for kind, _ in faulty.FAULTS.values())
    with Store(tmp_path / "records") as store:
        details = [trial.rejected for trial in store.all(Trial).values() if trial.rejected]
    assert Counter(result["rejected"]) == expected, details
    assert len(details) == len(faulty.FAULTS)
    assert any("behind an output was written" in detail for detail in details), details


def test_a_search_that_may_spill_nothing_tells_what_does_not_fit(
    tmp_path, monkeypatch, own_choices_alone
):
    """Every kernel is reported to spill a byte, so only the rule's is run."""
    monkeypatch.setattr(search, "_SPILLS", 0)
    monkeypatch.setattr(bench, "_SERVICE", "tests.needle_tvm.emulated_gpu.spilling:serve")
    *_, last = search.search(setup_of(tmp_path, 2), iter(()))
    (result,) = last["results"].values()
    assert result["rejected"] == {"unfit": 2} and result["rule_seconds"] > 0
    with Store(tmp_path / "records") as store:
        details = [trial.rejected for trial in store.all(Trial).values()]
    assert all("2 bytes are spilled, of at most 0" in detail for detail in details), details
