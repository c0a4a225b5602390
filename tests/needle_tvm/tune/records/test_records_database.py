"""The record store behind meta_schedule serves no record if any part of its key differs."""

import base64
import contextlib
import functools
import json
import logging
import os
import struct
import subprocess
import sys
import types

import numpy as np
import pytest

from needle_tvm import __main__ as program
from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import Schedule, make_target, ms, relax, te, tvm
from needle_tvm.errors import RecordsError
from needle_tvm.process.child import die_with_parent
from needle_tvm.tune.records import exchange, keys, rows
from needle_tvm.tune.records.database import RecordDatabase
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.rows import GATED, MEASURED, KeyRow, Record, Workload
from needle_tvm.tune.records.store import Store

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}


def scaled(n, name="A", factor=2.0):
    """A module that scales an (n, n) array; its argument is called `name`."""
    array = te.placeholder((n, n), name=name)
    result = te.compute(
        (n, n), lambda i, j: array[i, j] * tvm_names.tirx.const(factor, "float32"), name="B"
    )
    return tvm.IRModule({"main": te.create_prim_func([array, result])})


def measured(workload, target, seconds, factor=4):
    """A record of a schedule that splits the inner loop by `factor`."""
    schedule = Schedule(workload.mod)
    _, inner = schedule.get_loops(schedule.get_sblock("B"))
    schedule.split(inner, [None, factor])
    arguments = ms.arg_info.ArgInfo.from_prim_func(workload.mod["main"])
    return ms.database.TuningRecord(schedule.trace, workload, [seconds], target, arguments)


@pytest.fixture(scope="module")
def target():
    return make_target(TARGET)


@pytest.fixture
def tuning(store, target):
    return RecordDatabase(store, Key.of(target), (MEASURED, GATED))


def commit(database, module, target, *seconds):
    workload = database.commit_workload(module)
    for factor, one in enumerate(seconds, 2):
        database.commit_tuning_record(measured(workload, target, one, factor))
    return workload


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


def test_meta_schedule_tunes_into_it(store, tuning, target, tmp_path, capfd, monkeypatch):
    # Every TuneContext imports all tensor intrinsics, which takes 10 s; this target has none.
    name = "tvm.s_tir.tensor_intrin"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = product(16)
    callbacks = [ms.measure_callback.AddToDatabase()]
    parts = {"builder": NoBuilder(), "runner": NoRunner(), "measure_callbacks": callbacks}
    tune(tuning, module, target, tmp_path / "work", 4, **parts)
    assert len(tuning) == len(store.all(Record)) == 4
    (workload,) = store.all(Workload)
    assert len(store.best([workload], 9, [MEASURED])) == 4
    for record in tuning.get_all_tuning_records():
        schedule = Schedule(module)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)


def _build(module, target, _):
    """Compile a candidate. TVM's build function would first import all tensor intrinsics: 10 s."""
    return tvm.tirx.build(module, target=target)


@pytest.mark.slow
def test_a_tuned_record_compiles_and_runs(store, tmp_path, capfd):
    target = make_target({**TARGET, "mcpu": tvm_names.host_cpu()})
    tuning = RecordDatabase(store, Key.of(target), (MEASURED, GATED))
    module = product(32)
    tune(
        tuning,
        module,
        target,
        tmp_path / "work",
        2,
        builder=ms.builder.LocalBuilder(
            max_workers=1,
            f_build=_build,
            initializer=functools.partial(die_with_parent, os.getpid()),
        ),
        runner=ms.runner.LocalRunner(
            evaluator_config=ms.runner.EvaluatorConfig(
                number=1, repeat=1, min_repeat_ms=1, enable_cpu_cache_flush=False
            )
        ),
    )
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


# TVM's JSON databases, and the command line


@pytest.fixture
def database_files(tmp_path, target):
    """A JSON database that TVM wrote: two workloads of two records each."""
    folder = tmp_path / "json"
    folder.mkdir()
    database = ms.database.JSONDatabase(work_dir=str(folder))
    for n in (8, 9):
        commit(database, scaled(n), target, 1e-3 * n, 2e-3 * n)
    return folder


def records_cli(capsys, *arguments):
    """(exit code, stdout, stderr) of `python -m needle_tvm records ...`."""
    code = None
    with contextlib.suppress(SystemExit):
        code = program.main(["records", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def as_text(database):
    return sorted(
        json.dumps([record.workload.as_json()[0], record.as_json()])
        for record in database.get_all_tuning_records()
    )


def test_import_and_export_give_back_what_tvm_wrote(store, target, database_files, tmp_path):
    files = [database_files / name for name in (exchange.WORKLOADS, exchange.RECORDS)]
    done = exchange.import_json(store, *files)
    assert (done.records, done.added, done.bad) == (4, 4, [])
    assert set(map(store.state, store.all(Record))) == {MEASURED}  # served only after a gate
    tuning = RecordDatabase(store, Key.of(target), [MEASURED])
    assert as_text(tuning) == as_text(ms.database.JSONDatabase(work_dir=str(database_files)))
    (key,) = store.all(KeyRow)
    assert exchange.export_json(store, tmp_path / "out", key) == 4
    exported = ms.database.JSONDatabase(work_dir=str(tmp_path / "out"))
    assert as_text(exported) == as_text(tuning)
    files = [tmp_path / "out" / name for name in (exchange.WORKLOADS, exchange.RECORDS)]
    done = exchange.import_json(store, *files)
    assert (done.records, done.added, done.bad) == (4, 0, [])
    with pytest.raises(RecordsError, match="exists; it was not touched"):
        exchange.export_json(store, tmp_path / "out", key)


def encode(text):
    return base64.b64encode(struct.pack("<Q", len(text)) + text).decode()


def test_bad_lines_are_left_out_and_named(store, database_files, target):
    workloads, records = (database_files / n for n in (exchange.WORKLOADS, exchange.RECORDS))
    good_workloads = workloads.read_text().splitlines()
    good = records.read_text().splitlines()
    first = json.loads(good[0])
    crash = b'{"root_index": 0, "nodes": [{"type": "ir.IRModule", "data": {}}]}'

    def changed(index, value, at=None):
        part = json.loads(good[0])
        (part[1] if at is None else part[1][at])[index] = value
        return json.dumps(part)

    bad_workloads = {
        3: ('["1", "AAAA"]', "cannot be decoded"),
        4: ("", "is blank"),
        5: (json.dumps(["1", json.loads(good_workloads[0])[1]]), None),
        6: (json.dumps(["1", encode(crash)]), None),
        7: (good_workloads[0][:200], "is no JSON"),
    }
    bad_records = {
        5: ("", "is blank"),
        6: ("null", "is no tuning record"),
        7: (good[0][: len(good[0]) // 2], "is no JSON"),
        8: ("\x00\x01\ufffd", "is no JSON"),
        9: (json.dumps([0, [[], [], {}, []]]), ""),
        10: (json.dumps([99, first[1]]), "line 100, cannot be used"),
        11: (json.dumps([2, first[1]]), "line 3, cannot be used"),
        12: (json.dumps([4, first[1]]), "hash is not"),
        13: (json.dumps([5, first[1]]), ""),  # may crash TVM
        14: (json.dumps([1, first[1]]), "arguments are not"),
        15: (changed(2, {"kind": "nope"}), ""),
        16: (changed(1, ["fast"]), ""),
        17: (changed(0, [[["Nope", [], [], []]], []]), "Nope"),
        18: ("[" * 100_000, "is no JSON"),
    }
    lines = [*good_workloads, *(text for text, _ in bad_workloads.values())]
    workloads.write_text("\n".join(lines) + "\n")
    lines = [*good, *(text for text, _ in bad_records.values()), good[0]]
    records.write_text("\n".join(lines))  # the last line has no newline
    done = exchange.import_json(store, workloads, records)
    assert (done.records, done.added) == (5, 4)
    named = {(file, line): why for file, line, why in done.bad}
    expected = {(exchange.WORKLOADS, n): why for n, (_, why) in bad_workloads.items() if why}
    expected |= {(exchange.RECORDS, n): why for n, (_, why) in bad_records.items()}
    assert set(named) == set(expected)
    for place, why in expected.items():
        assert why in named[place] and named[place] and "\n" not in named[place]
    tuning = RecordDatabase(store, Key.of(target), [MEASURED])
    assert len(tuning.get_all_tuning_records()) == 4


def test_the_command_line(capsys, database_files, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    with (database_files / exchange.RECORDS).open("a") as file:
        file.write("garbage\n")
    code, out, err = records_cli(capsys, "import", database_files, "--store", one)
    assert code == 0 and "4 new of 4 records, 1 bad line\n" in out
    assert err == ("needle_tvm: warning: database_tuning_record.json:5: is no JSON; left out\n")
    code, out, _ = records_cli(capsys, "list", "--store", one, "--json")
    listed = json.loads(out)
    assert [entry["records"][MEASURED] for entry in listed["workloads"]] == [2, 2]
    assert {entry["arguments"] for entry in listed["workloads"]} == {
        f"float32({n}, {n}) float32({n}, {n})" for n in (8, 9)
    }
    code, out, _ = records_cli(capsys, "list", "--store", one)
    assert code == 0 and "2 measured" in out and "llvm x86-64-v3 2" in out

    workload = listed["workloads"][0]["workload"]
    _, out, _ = records_cli(capsys, "show", workload[:10], "--store", one, "--json")
    record = json.loads(out)["records"][0]["record"]
    code, out, _ = records_cli(capsys, "show", record, "--store", one, "--json")
    assert code == 0 and json.loads(out)["state"] == MEASURED and json.loads(out)["trace"]
    assert records_cli(capsys, "show", record[:12], "--store", one)[1].count("\n") > 5

    _, out, _ = records_cli(capsys, "merge", one, "--store", two, "--json")
    assert json.loads(out)["new"]["records"] == 4
    _, out, _ = records_cli(capsys, "merge", one, "--store", two)
    assert "0 new records" in out
    _, out, _ = records_cli(capsys, "prune", "--best", 1, "--store", two, "--dry-run")
    assert "2 records would be forgotten" in out
    _, out, _ = records_cli(capsys, "prune", "--best", 1, "--store", two, "--json")
    assert json.loads(out)["removed"]["records"] == 2
    _, out, _ = records_cli(capsys, "prune", "--older-than", "tvm=0.27", "--store", two)
    assert "0 records forgotten" in out
    _, out, _ = records_cli(capsys, "prune", "--older-than", "tvm=1.0", "--store", two)
    assert "2 records forgotten" in out
    code, out, _ = records_cli(capsys, "export", tmp_path / "out", "--store", one)
    assert code == 0 and "4 records" in out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["list", "--store", "{here}/none"], 1, "there is no record store"),
        (["show", "zz", "--store", "{store}"], 2, "at least 4 hex digits"),
        (["show", "00000000", "--store", "{store}"], 2, "no record or workload begins so"),
        (["prune", "--store", "{store}"], 2, "say what to forget"),
        (["merge", "{here}/none", "--store", "{store}"], 1, "there is no record store"),
        (["import", "{here}/none", "--store", "{store}"], 2, "no such file; a JSON database"),
        (["export", "{here}/out", "--store", "{store}"], 1, "there are no records in it"),
        (["export", "{here}/out", "--store", "{here}/none"], 1, "there is no record store"),
        (["list", "--store", "{here}/file"], 1, "not a record store"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, arguments, code, text):
    Store(tmp_path / "store").close()
    (tmp_path / "file").write_text("mine")
    filled = [part.format(here=tmp_path, store=tmp_path / "store") for part in arguments]
    found, out, err = records_cli(capsys, *filled)
    assert (found, out) == (code, "")
    assert text in err and err.count("\n") == 1 and err.startswith("needle_tvm: error: ")


@pytest.mark.parametrize(
    "arguments", [[], ["frob"], ["prune", "--best", "-1"], ["prune", "--older-than", "x"]]
)
def test_a_bad_argument_is_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        program.main(["records", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_line_needs_no_tvm_to_list(tmp_path):
    Store(tmp_path / "store").close()
    code = (
        "import sys\n"
        "from needle_tvm.__main__ import main\n"
        f"assert main(['records', 'list', '--store', {str(tmp_path / 'store')!r}]) == 0\n"
        "assert not {'tvm', 'needle'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_damage_is_told_in_one_line_and_the_rest_is_listed(capsys, tmp_path, store, tuning, target):
    commit(tuning, scaled(8), target, 1e-3, 2e-3)
    store.close()
    file = store.path / "records.sqlite3"
    data = bytearray(file.read_bytes())
    data[:4096] = bytes(4096)
    file.write_bytes(data)
    code, out, err = records_cli(capsys, "list", "--store", store.path)
    assert code == 0 and "2 measured" in out
    assert err.count("\n") == 1 and "2 intact records were recovered" in err
    (aside,) = tmp_path.glob("records.damaged-*")
    assert (aside / file.name).read_bytes() == data


def test_keys_are_canonical(target):
    assert Key.of(target) == Key.of(make_target(dict(reversed(TARGET.items()))))
    text = Key.of(target).text
    assert rows.canonical(json.loads(text)) == text
    assert set(json.loads(text)) == {"target", "features", "versions", "passes"}
