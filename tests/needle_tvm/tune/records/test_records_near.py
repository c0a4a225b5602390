"""Records of near shapes: the right ones, in order, and applicable to the wanted shape."""

import itertools
import json
import math
import re
import sys
import types

import numpy as np
import pytest

from needle_tvm import __main__ as program
from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import Schedule, make_target, ms, te, tvm
from needle_tvm.errors import RecordsError
from needle_tvm.tune.records import near as near_module
from needle_tvm.tune.records.database import RecordDatabase, trace_text
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.records.near import distance, near, seeds, skeleton
from needle_tvm.tune.records.rows import GATED, MEASURED, REJECTED, SOURCES, Record

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
SESSION = "5e" * 32


def product(n, m, k, *, dtype="float32", scale=None, first="A", name="C", offset=0):
    """A module that multiplies an (n, k) array called `first` by a (k, m) one, in block `name`."""
    a, b = te.placeholder((n, k), dtype, name=first), te.placeholder((k, m), dtype, name="B")
    r = te.reduce_axis((0, k), "k")

    def term(i, j):
        term = a[i, r] * b[r, j]
        return term if scale is None else term * tvm_names.tirx.const(scale, dtype)

    c = te.compute((n, m), lambda i, j: te.sum(term(i, j), axis=r), name=name)
    if offset:
        c = te.compute((n - offset, m), lambda i, j: c[i + offset, j], name="D")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def tiled(mod, rows, columns):
    """A schedule of a matmul with tiles of `rows` and `columns`."""
    schedule = Schedule(mod)
    i, j, _ = schedule.get_loops(schedule.get_sblock("C"))
    for loop, tile in ((i, rows), (j, columns)):
        extent = int(schedule.get(loop).extent)
        decision = [extent // tile, tile]
        schedule.split(loop, schedule.sample_perfect_tile(loop, 2, 64, decision))
    return schedule


@pytest.fixture(scope="module")
def target():
    return make_target(TARGET)


@pytest.fixture
def tuning(store, target):
    return RecordDatabase(store, Key.of(target), (MEASURED, GATED), seeds=seeds)


def commit(database, target, mod, schedule, seconds, state=GATED, session=SESSION):
    """Commit a trial and return its record's name. `seconds` is None if it did not run."""
    run_secs = None if seconds is None else [seconds]
    record = ms.database.TuningRecord(
        schedule.trace, ms.database.Workload(mod), run_secs, target, None
    )
    return database.commit_trial(
        record, state=state, detail="said so", session=session, seconds=2, source="search"
    )


def tiles(trace):
    """The decisions of a trace's sample_perfect_tile."""
    return [[int(n) for n in decision] for decision in trace.decisions.values()]


SAME = [
    ({}, {"first": "lv7"}, "a buffer's name"),
    ({}, {"n": 1}, "an extent of one"),
    ({}, {"n": 128, "m": 128, "k": 128}, "equal extents"),
    ({"scale": 0.5}, {"scale": 0.5, "n": 7}, "an equal constant"),
    ({"offset": 1}, {"offset": 2}, "an offset"),
]
OTHERS = [
    ({}, {"dtype": "float64"}, "a type"),
    ({}, {"name": "D"}, "a block's name"),
    ({}, {"scale": 2.0}, "an operation"),
    ({"scale": 2.0}, {"scale": 0.5}, "a constant"),
    ({"scale": 1.0}, {"scale": 1e20}, "a constant with an exponent"),
    ({}, {"offset": 1}, "a second block"),
]


def made(options):
    return product(**{"n": 16, "m": 24, "k": 32, **options})


@pytest.mark.parametrize(("one", "other", "_"), SAME)
def test_a_skeleton_has_no_extents_and_no_names_of_variables(one, other, _):
    first, second = skeleton(made(one)), skeleton(made(other))
    assert first.digest == second.digest
    assert len(first.extents) == len(second.extents) and min(second.extents) > 0
    assert distance(first, second) == distance(second, first) < math.inf


@pytest.mark.parametrize(("one", "other", "_"), OTHERS)
def test_another_function_has_another_skeleton(one, other, _):
    first, second = skeleton(made(one)), skeleton(made(other))
    assert distance(first, second) == distance(second, first) == math.inf


def test_the_distance_is_that_of_the_extents():
    shapes = [(16, 24, 32), (16, 24, 64), (32, 24, 64), (512, 512, 512)]
    of = [skeleton(product(*shape)) for shape in shapes]
    assert [distance(of[0], other) for other in of] == sorted(distance(of[0], one) for one in of)
    assert distance(of[0], of[0]) == 0
    for one, middle, other in itertools.permutations(of, 3):
        assert distance(one, other) <= distance(one, middle) + distance(middle, other) + 1e-9
    # An extent that changes from 32 to 64 counts at each of its places, and nothing else does.
    times = distance(of[0], of[1]) / math.log(2)
    assert times == pytest.approx(sum(extent == 32 for extent in of[0].extents))


def test_a_trial_is_written_and_known(store, tuning, target):
    mod = product(16, 24, 32)
    good, bad = tiled(mod, 4, 8), tiled(mod, 2, 8)
    assert tuning.known(mod) == {}
    name = commit(tuning, target, mod, good, 1e-3)
    crashed = commit(tuning, target, mod, bad, None, REJECTED)
    assert store.spent(SESSION) == (2, 4.0)
    assert tuning.known(mod) == {
        trace_text(good.trace): (GATED, 1e-3),
        trace_text(bad.trace): (REJECTED, None),
    }
    assert [found for found, _ in tuning.best(mod, 9)] == [name]
    assert (store.state(name), store.state(crashed)) == (GATED, REJECTED)
    assert store.row(Record, crashed).run_secs == "null"
    assert tuning.known(product(16, 24, 33)) == {}
    # A module that differs only in names of variables is the same workload.
    assert tuning.known(product(16, 24, 32, first="lv3")) == tuning.known(mod)


def test_a_trial_that_makes_no_sense_is_refused(store, tuning, target):
    mod = product(16, 24, 32)
    schedule = tiled(mod, 4, 8)
    for state, seconds, said in (
        ("good", 1.0, "state 'good': must be one of measured, gated, rejected"),
        (GATED, None, "state 'gated': a candidate that did not run"),
        (MEASURED, 1e10, "state 'measured': a candidate that did not run"),
    ):
        with pytest.raises(ValueError, match=said):
            commit(tuning, target, mod, schedule, seconds, state)
    with pytest.raises(ValueError, match="session 'x'"):
        commit(tuning, target, mod, schedule, 1.0, session="x")
    with pytest.raises(RecordsError, match="nothing was written"):
        commit(tuning, make_target({**TARGET, "num-cores": 5}), mod, schedule, 1.0)
    assert not store.all(Record) and len(SOURCES) == 3


def test_near_records_are_gated_of_the_key_and_in_order(store, tuning, target):
    for n, tile in ((64, 16), (128, 32), (1024, 64)):
        commit(tuning, target, product(n, 64, 64), tiled(product(n, 64, 64), tile, 8), 1e-3 * n)
    slower = product(64, 64, 64)
    commit(tuning, target, slower, tiled(slower, 8, 8), 1.0)
    commit(tuning, target, slower, tiled(slower, 2, 8), 1e-9, MEASURED)
    commit(tuning, target, slower, tiled(slower, 1, 8), None, REJECTED)
    other = product(64, 64, 64, dtype="float64")
    commit(tuning, target, other, tiled(other, 1, 8), 1e-9)
    wanted = product(96, 64, 64)
    found = near(tuning, wanted, 9)
    apart = [at for at, _ in found]
    assert apart == sorted(apart) and 0 < apart[0] and apart[-1] < math.inf
    nearest = [[3, 32], [6, 16], [12, 8]]  # from 128 rows, then from 64, fastest first
    assert [tiles(record.trace)[0] for _, record in found[:3]] == nearest
    assert len(found) == 4 and len(near(tuning, wanted, 2)) == 2 and near(tuning, wanted, 0) == []
    for _, record in found:
        assert record.run_secs is None  # nobody has run it on this shape
        assert tvm_names.structural_equal(record.workload.mod, wanted)
        assert record.args_info[0].as_json() == ["TENSOR", "float32", [96, 64]]
    another_key = RecordDatabase(store, Key.of(make_target({**TARGET, "num-cores": 3})))
    assert near(another_key, wanted, 9) == []


def test_a_near_record_is_a_right_schedule_of_the_other_shape(tuning, tmp_path):
    host = make_target({**TARGET, "mcpu": tvm_names.host_cpu()})
    database = RecordDatabase(tuning.store, Key.of(host))
    known = product(64, 48, 32)
    commit(database, host, known, tiled(known, 16, 8), 1e-3)
    rng = np.random.default_rng(0)
    for n, m, k in ((96, 40, 32), (7, 5, 3), (1, 64, 64)):
        mod = product(n, m, k)
        ((_, record),) = near(database, mod, 9)
        for decision, extent in zip(tiles(record.trace), (n, m), strict=True):
            assert math.prod(decision) == extent
        schedule = Schedule(mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        assert len(schedule.get_loops(schedule.get_sblock("C"))) == 5
        run = tvm.tirx.build(schedule.mod, target=host)["main"]
        a, b = (rng.standard_normal(s).astype("float32") for s in ((n, k), (k, m)))
        arrays = [tvm.runtime.tensor(array) for array in (a, b, np.zeros((n, m), "float32"))]
        run(*arrays)
        np.testing.assert_allclose(arrays[2].numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_a_trace_that_does_not_apply_is_left_out(tuning, target):
    known = product(64, 64, 64)
    schedule = tiled(known, 16, 8)
    commit(tuning, target, known, schedule, 1e-3)
    strict = Schedule(known)
    loop = strict.get_loops(strict.get_sblock("C"))[0]
    strict.split(loop, [4, 16])
    commit(tuning, target, known, strict, 1e-4)
    assert len(near(tuning, product(50, 64, 64), 9)) == 2
    ((_, record),) = near(tuning, product(128, 64, 64), 9)  # the fixed split 4 x 16 does not fit
    assert len(tiles(record.trace)) == 2


def test_a_search_begins_with_its_own_records_and_then_near_ones(store, tuning, target):
    known, mod = product(64, 64, 64), product(96, 64, 64)
    commit(tuning, target, known, tiled(known, 16, 8), 1e-3)
    workload = tuning.commit_workload(mod)
    (seed,) = tuning.get_top_k(workload, 5)
    assert seed.run_secs is None
    commit(tuning, target, mod, tiled(mod, 2, 2), 5.0, MEASURED)
    commit(tuning, target, mod, tiled(mod, 4, 2), 4.0, MEASURED)
    found = tuning.get_top_k(workload, 5)
    assert [record.run_secs and float(record.run_secs[0]) for record in found] == [4.0, 5.0, None]
    assert len(tuning.get_top_k(workload, 2)) == 2
    # A seed is not a record of this workload, so nothing is compiled with it.
    plain = RecordDatabase(store, tuning.key, (MEASURED, GATED))
    assert len(list(plain.get_top_k(workload, 5))) == 2
    assert len(tuning) == 3
    assert RecordDatabase(store, tuning.key, seeds=seeds).query(mod, target) is None


def test_an_evolutionary_search_starts_from_near_records(tuning, target, monkeypatch):
    name = "tvm.s_tir.tensor_intrin"  # 10 s of imports that this target has no use for
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    known, mod = product(64, 64, 64), product(96, 64, 64)
    commit(tuning, target, known, tiled(known, 16, 8), 1e-3)
    tuning.commit_workload(mod)
    context = ms.TuneContext(
        mod,
        target=target,
        # Nothing is sampled, so all proposals of the search come from the database.
        space_generator=ms.space_generator.ScheduleFn(
            lambda schedule: None, sch_rules=[], postprocs=[], mutator_probs={}
        ),
        search_strategy=ms.search_strategy.EvolutionarySearch(
            population_size=4, init_measured_ratio=1.0, init_min_unmeasured=0, genetic_num_iters=0
        ),
        task_name="main",
        rand_state=1,
        num_threads=1,
    )
    context.pre_tuning(4, 4, context.generate_design_space(), tuning, ms.cost_model.RandomModel())
    candidates = context.generate_measure_candidates()
    ((_, record),) = near(tuning, mod, 9)
    assert tiles(record.trace) == [[6, 16], [8, 8]]  # for 96 rows; for 64 it was [4, 16]
    assert tiles(record.trace) in [tiles(candidate.sch.trace) for candidate in candidates]


def test_skeletons_are_looked_at_once(store, tuning, target, monkeypatch):
    for n in (16, 32, 64):
        commit(tuning, target, product(n, 64, 64), tiled(product(n, 64, 64), n, 8), 1e-3)
    calls = []
    script = tvm_names.script
    monkeypatch.setattr(tvm_names, "script", lambda mod: calls.append(mod) or script(mod))
    monkeypatch.setattr(near_module, "_known", {})
    assert len(near(tuning, product(128, 64, 64), 9)) == 3 and len(calls) == 4
    again = RecordDatabase(store, tuning.key)
    assert len(near(again, product(128, 64, 64), 9)) == 3 and len(calls) == 5


def test_every_integer_of_a_script_is_an_extent_or_a_zero():
    mod = product(16, 24, 32, scale=1e-30, offset=3)
    text = re.sub(r"#.*|\"[^\"]*\"|T\.float32\([^)]*\)", "", tvm_names.script(mod))
    integers = [int(n) for n in re.findall(r"(?<!\w)\d+", text)]
    assert {16, 24, 32, 3, 13} <= set(integers)
    assert list(skeleton(mod).extents) == [n for n in integers if n]


def test_the_command_line_shows_sessions(store, tuning, target, capsys):
    mod = product(16, 24, 32)
    commit(tuning, target, mod, tiled(mod, 4, 8), 1e-3)
    failed = commit(tuning, target, mod, tiled(mod, 2, 8), None, REJECTED)
    options = ["--store", str(store.path)]
    assert program.main(["records", "list", *options]) == 0
    out = capsys.readouterr().out
    assert f"session {SESSION[:12]}: 2 trials, 4.0 s" in out and ": 1 workload\n" in out
    assert program.main(["records", "list", "--json", *options]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["sessions"] == {SESSION: {"trials": 2, "seconds": 4.0}}
    assert program.main(["records", "show", failed, "--json", *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["trials"] == [{"session": SESSION, "source": "search", "spent_seconds": 2.0}]
    assert shown["verdicts"][0]["detail"] == "said so" and shown["seconds"] is None
    assert program.main(["records", "show", failed, *options]) == 0
    assert f"{SESSION}  search" in capsys.readouterr().out
