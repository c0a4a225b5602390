"""The record store behind meta_schedule serves no record if any part of its key differs."""

import json
import logging
import sys
import types

import numpy as np
import pytest

from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import Schedule, make_target, ms, relax, te, tvm
from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import database, keys, rows
from needle_tvm.tune.records.database import RecordDatabase
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.rows import GATED, MEASURED, Record, Workload
from needle_tvm.tune.records.store import Store
from tests.needle_tvm.tune.records.committing import TARGET, commit, measured, scaled


def test_what_is_committed_comes_back(store, tuning, target):
    module = scaled(8)
    assert not tuning.has_workload(module)
    workload = commit(tuning, module, target, 3e-3, 1e-3, 1e10, 2e-3)
    assert tuning.has_workload(module) and not tuning.has_workload(scaled(9))
    top = tuning.get_top_k(workload, 2)
    assert [float(record.run_secs[0]) for record in top] == [1e-3, 2e-3]
    expected = measured(workload, target, 1e-3, 3)
    assert json.dumps(top[0].as_json()) == json.dumps(expected.as_json())
    assert len(tuning) == len(tuning.get_all_tuning_records()) == 3  # one did not run
    best = tuning.query(module, target, kind="record")
    assert json.dumps(best.as_json()) == json.dumps(expected.as_json())
    schedule = tuning.query(module, target, kind="schedule")
    assert len(schedule.get_loops(schedule.get_sblock("B"))) == 3
    scheduled = tuning.query(module, target, kind="ir_module")
    assert tvm_names.structural_equal(scheduled, schedule.mod)
    with Store(store.path) as again:
        assert len(RecordDatabase(again, Key.of(target), [MEASURED])) == 3


def test_names_of_variables_are_no_part_of_a_workload(store, tuning, target):
    commit(tuning, scaled(8, "A"), target, 1e-3)
    commit(tuning, scaled(8, "Z"), target, 2e-3)
    assert len(store.all(Workload)) == 1
    assert len(tuning.get_top_k(ms.database.Workload(scaled(8, "Q")), 9)) == 2


def test_merged_stores_may_hold_a_workload_under_several_names(tmp_path, target):
    for name, seconds in (("A", 1e-3), ("Z", 2e-3)):
        with Store(tmp_path / name) as store:
            commit(RecordDatabase(store, Key.of(target)), scaled(8, name), target, seconds)
    with Store(tmp_path / "A") as one, Store(tmp_path / "Z") as other:
        one.merge(other)
        assert len(one.all(Workload)) == 2
        database = RecordDatabase(one, Key.of(target), [MEASURED])
        top = database.get_top_k(ms.database.Workload(scaled(8, "Q")), 9)
        assert [float(record.run_secs[0]) for record in top] == [1e-3, 2e-3]


def test_only_gated_records_are_compiled_with(store, tuning, target):
    module = scaled(8)
    commit(tuning, module, target, 1e-3, 2e-3)
    served = RecordDatabase(store, tuning.key)
    assert len(served) == 0 and served.query(module, target) is None
    (_, (slower, _)) = tuning.best(module, 2)
    store.decide([slower], GATED)
    assert float(served.query(module, target, kind="record").run_secs[0]) == 2e-3
    with served, target:
        scheduled = relax.transform.MetaScheduleApplyDatabase()(module)
    assert scheduled["main"].attrs["tirx.is_scheduled"]
    with RecordDatabase(store, Key.of(make_target({**TARGET, "num-cores": 3}))), target:
        assert (
            "tirx.is_scheduled"
            not in relax.transform.MetaScheduleApplyDatabase()(module)["main"].attrs
        )


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
    of_first = make_target(first.fields["target"])
    database = RecordDatabase(store, first, [MEASURED])
    workload = commit(database, module, of_first, 1e-3)
    assert len(database) == 1
    other = RecordDatabase(store, second, [MEASURED])
    assert len(other) == 0 and not other.has_workload(module)
    assert list(other.get_top_k(workload, 9)) == []
    assert other.query(module, make_target(second.fields["target"])) is None


def test_a_config_of_the_pass_context_is_part_of_the_key(target):
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        configured = Key.of(target)
    assert configured != Key.of(target)
    with tvm.transform.PassContext(disabled_pass=["FuseOps"]):
        assert Key.of(target) not in (configured, Key(configured.text.replace("FuseOps", "")))


def test_equal_hashes_of_different_modules_are_a_miss(tuning, target, monkeypatch):
    monkeypatch.setattr(tvm_names, "structural_hash", lambda module: "1")
    one, other = scaled(8), scaled(8, factor=3.0)
    first = commit(tuning, one, target, 1e-3)
    assert not tuning.has_workload(other)
    assert list(tuning.get_top_k(ms.database.Workload(other), 9)) == []
    assert tuning.query(other, target) is None
    second = commit(tuning, other, target, 2e-3)
    for workload, seconds in ((first, 1e-3), (second, 2e-3)):
        (record,) = tuning.get_top_k(workload, 9)
        assert float(record.run_secs[0]) == seconds
        assert tvm_names.structural_equal(record.workload.mod, workload.mod)


def test_another_target_asked_for_or_committed_is_refused(store, tuning, target):
    module, other = scaled(8), make_target({**TARGET, "num-cores": 5})
    workload = commit(tuning, module, target, 1e-3)
    for kind in ("record", "schedule", "ir_module"):
        assert tuning.query(module, target, kind=kind) is not None
        assert tuning.query(module, other, kind=kind) is None
    with pytest.raises(RecordsError, match="nothing was written"):
        tuning.commit_tuning_record(measured(workload, other, 1e-3))
    assert len(store.all(Record)) == 1


def test_a_commit_that_fails_stops_the_search_by_name(store, tuning, target):
    workload = commit(tuning, scaled(8), target)
    store.close()
    with pytest.raises(RecordsError, match="was closed"):
        tuning.commit_tuning_record(measured(workload, target, 1e-3))


def test_a_workload_pruned_meanwhile_is_written_again(store, tuning, target):
    workload = commit(tuning, scaled(8), target)
    store.remove([])
    assert not store.all(Workload)
    tuning.commit_tuning_record(measured(workload, target, 1e-3))
    assert len(tuning.get_top_k(workload, 9)) == 1


@tvm.ir.utils.derived_object
class NoBuilder(ms.builder.PyBuilder):
    def build(self, inputs):
        return [ms.builder.BuilderResult("library", None) for _ in inputs]


@tvm.ir.utils.derived_object
class Ran(ms.runner.PyRunnerFuture):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def done(self):
        return True

    def result(self):
        return ms.runner.RunnerResult([self.seconds], None)


@tvm.ir.utils.derived_object
class NoRunner(ms.runner.PyRunner):
    def run(self, inputs):
        return [Ran(1e-3 * (i + 1)) for i in range(len(inputs))]


def tune(database, module, target, folder, trials, **options):
    try:
        return ms.tune_tir(
            module,
            target,
            str(folder),
            trials,
            num_trials_per_iter=trials,
            database=database,
            num_tuning_cores=1,
            cost_model="random",
            strategy="replay-trace",
            seed=1,
            **options,
        )
    finally:
        # TVM's loggers do not propagate, so pytest adds unnamed handlers to them, on which setting
        # the loggers up again fails.
        logger = logging.getLogger("tvm.s_tir.meta_schedule")
        logger.propagate = True
        for handler in [*logger.handlers]:
            logger.removeHandler(handler)
            handler.close()


def product(n):
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


@pytest.fixture
def tuned_into(tmp_path, capfd, monkeypatch):
    """Tune a module into a database by meta_schedule's own loop; nothing is built or run."""
    # Every TuneContext imports all tensor intrinsics, which takes 10 s; these rules use none.
    name = "tvm.s_tir.tensor_intrin"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    rules = dict.fromkeys(("sch_rules", "postprocs", "mutator_probs"), "llvm")
    parts = {
        "space": ms.space_generator.PostOrderApply(**rules),
        "builder": NoBuilder(),
        "runner": NoRunner(),
        "measure_callbacks": [ms.measure_callback.AddToDatabase()],
    }
    return lambda database, module, target: tune(
        database, module, target, tmp_path / "work", 4, **parts
    )


def test_meta_schedule_tunes_into_it(store, tuning, target, tuned_into):
    module = product(16)
    tuned_into(tuning, module, target)
    assert len(tuning) == len(store.all(Record)) == 4
    (workload,) = store.all(Workload)
    assert len(store.best([workload], 9, [MEASURED])) == 4
    for record in tuning.get_all_tuning_records():
        schedule = Schedule(module)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)


def test_a_tuned_record_compiles_and_runs(store, tuned_into):
    target = make_target({**TARGET, "mcpu": tvm_names.host_cpu()})
    tuning = RecordDatabase(store, Key.of(target), (MEASURED, GATED))
    module = product(32)
    tuned_into(tuning, module, target)
    names = [name for name, _ in tuning.best(module, 9)]
    assert names
    store.decide(names, GATED)
    with RecordDatabase(store, tuning.key), target:
        scheduled = relax.transform.MetaScheduleApplyDatabase()(module)
    assert scheduled["main"].attrs["tirx.is_scheduled"]
    run = tvm.tirx.build(scheduled, target=target)["main"]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    arrays = [tvm.runtime.tensor(array) for array in (a, b, np.zeros_like(a))]
    run(*arrays)
    np.testing.assert_allclose(arrays[2].numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_keys_are_canonical(target):
    assert Key.of(target) == Key.of(make_target(dict(reversed(TARGET.items()))))
    text = Key.of(target).text
    assert rows.canonical(json.loads(text)) == text
    assert set(json.loads(text)) == {"target", "features", "versions", "passes"}


def test_the_limit_counts_what_is_asked_for(monkeypatch, tuning):
    """Of the fastest records, choices of knobs are left out before the rest are counted."""
    fastest = [("w", types.SimpleNamespace(trace=trace)) for trace in ("knobs", "one", "two")]
    monkeypatch.setattr(database, "is_noted", lambda trace: trace == "knobs")
    monkeypatch.setattr(tuning.store, "best", lambda names, limit, states: fastest[:limit])
    for schedules, wanted in ((True, ["one"]), (False, ["knobs"])):
        found = tuning._fastest(["w"], 1, [MEASURED], schedules)
        assert [record.trace for _, record in found] == wanted
