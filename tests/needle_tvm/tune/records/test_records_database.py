"""The record store serves no trial if any part of its key differs."""

import json

import pytest

from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import Schedule, make_target, tvm
from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import facts, keys
from needle_tvm.tune.records.database import Database, trace_text
from needle_tvm.tune.records.facts import Kernel, Trial
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.tune.records.committing import SESSION, TARGET, commit, measured, scaled


def times(found):
    return [float(record.run_secs[0]) for _, record in found]


def test_what_is_committed_comes_back(store, database, target):
    module = scaled(8)
    assert not database.names(module)
    names = commit(database, module, target, 3e-3, 1e-3, None, 2e-3)
    assert database.names(module) and not database.names(scaled(9))
    top = database.best(module, 2)
    assert times(top) == [1e-3, 2e-3] and [name for name, _ in top] == [names[1], names[3]]
    expected = measured(module, target, 1e-3, 3)
    assert json.dumps(top[0][1].as_json()) == json.dumps(expected.as_json())
    schedule = Schedule(module)
    top[0][1].trace.apply_to_schedule(schedule, remove_postproc=False)
    assert len(schedule.get_loops(schedule.get_sblock("B"))) == 3
    known = database.known(module)
    assert known[trace_text(expected.trace)] == 1e-3
    assert known[trace_text(measured(module, target, None, 4).trace)] is None
    assert store.spent(SESSION) == (4, 2.0)
    with Store(store.path) as again:
        assert len(Database(again, Key.of(target)).best(module, 9)) == 3


def test_a_candidate_that_did_not_run_is_rejected_or_refused(store, database, target):
    record = measured(scaled(8), target, None)
    with pytest.raises(ValueError, match="must be rejected"):
        database.commit(record, rejected="", session=SESSION, spent=0.0)
    assert not store.all(Trial)


def test_names_of_variables_are_no_part_of_a_kernel(store, database, target):
    commit(database, scaled(8, "A"), target, 1e-3)
    commit(database, scaled(8, "Z"), target, 2e-3)
    assert len(store.all(Kernel)) == 1
    assert times(database.best(scaled(8, "Q"), 9)) == [1e-3, 2e-3]


def test_merged_stores_may_hold_a_kernel_under_several_names(tmp_path, target):
    for name, seconds in (("A", 1e-3), ("Z", 2e-3)):
        with Store(tmp_path / name) as store:
            commit(Database(store, Key.of(target)), scaled(8, name), target, seconds)
    with Store(tmp_path / "A") as one, Store(tmp_path / "Z") as other:
        one.merge(other)
        assert len(one.all(Kernel)) == 2
        assert times(Database(one, Key.of(target)).best(scaled(8, "Q"), 9)) == [1e-3, 2e-3]


FIELDS = [
    "num-cores",
    "mcpu",
    "mattr",
    "features",
    "tvm",
    "tvm_ffi",
    "llvm",
    "passes",
    "gpu",
    "cuda",
]


def other_keys(monkeypatch, kind):
    """(a key, copies of it with one field changed)."""
    fields = {"kind": "cuda", "arch": "sm_90"} if kind in ("gpu", "cuda") else TARGET
    first = Key.of(make_target(fields))
    if kind == "features":
        monkeypatch.setattr(tvm_names, "cpu_features", lambda target: ["avx2"])
    elif kind in ("tvm", "tvm_ffi", "llvm", "cuda"):
        installed = keys.installed_versions(fields["kind"])
        assert kind in installed
        changed = {**installed, kind: "another"}
        monkeypatch.setattr(keys, "installed_versions", lambda _: changed)
    elif kind == "passes":
        with tvm.transform.PassContext(opt_level=1):
            return first, Key.of(make_target(fields))
    elif kind == "gpu":
        fields = {**fields, "arch": "sm_80"}
    else:
        values = {"num-cores": 3, "mcpu": "x86-64-v4", "mattr": ["+avx512f"]}
        fields = {**fields, kind: values[kind]}
    return first, Key.of(make_target(fields))


@pytest.mark.parametrize("field", FIELDS)
def test_any_key_field_that_differs_is_a_miss(store, monkeypatch, field):
    first, second = other_keys(monkeypatch, field)
    assert first != second
    module = scaled(8)
    commit(Database(store, first), module, make_target(first.fields["target"]), 1e-3)
    assert len(Database(store, first).best(module, 9)) == 1
    other = Database(store, second)
    assert not other.names(module) and not other.best(module, 9) and not other.known(module)


def test_a_config_of_the_pass_context_is_part_of_the_key(target):
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        configured = Key.of(target)
    assert configured != Key.of(target)
    with tvm.transform.PassContext(disabled_pass=["FuseOps"]):
        assert Key.of(target) not in (configured, Key(configured.text.replace("FuseOps", "")))


def test_equal_hashes_of_different_modules_are_a_miss(database, target, monkeypatch):
    monkeypatch.setattr(tvm_names, "structural_hash", lambda module: "1")
    one, other = scaled(8), scaled(8, factor=3.0)
    commit(database, one, target, 1e-3)
    assert not database.names(other) and not database.best(other, 9)
    commit(database, other, target, 2e-3)
    for module, seconds in ((one, 1e-3), (other, 2e-3)):
        ((_, record),) = database.best(module, 9)
        assert float(record.run_secs[0]) == seconds
        assert tvm_names.structural_equal(record.workload.mod, module)


def test_a_record_of_another_target_is_refused(store, database, target):
    other = make_target({**TARGET, "num-cores": 5})
    with pytest.raises(RecordsError, match="nothing was written"):
        commit(database, scaled(8), other, 1e-3)
    assert not store.all(Trial)


def test_a_commit_that_fails_is_named(store, database, target):
    store.close()
    with pytest.raises(RecordsError, match="was closed"):
        commit(database, scaled(8), target, 1e-3)


def test_keys_are_canonical(target):
    assert Key.of(target) == Key.of(make_target(dict(reversed(TARGET.items()))))
    text = Key.of(target).text
    assert facts.canonical(json.loads(text)) == text
    assert set(json.loads(text)) == {"target", "features", "versions", "passes"}
