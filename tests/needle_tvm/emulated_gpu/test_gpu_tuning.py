"""Searches for GPUs: candidates, their compilation, and whole searches on the emulated GPU."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import needle_tvm
from needle.ops._te import maximum_over
from needle.trace import trace
from needle_runtime.errors import TargetError
from needle_runtime.target import gpu
from needle_tvm._tvm.names import TE_NAMESPACE, Schedule, ms, structural_equal, te, tirx, topi, tvm
from needle_tvm.errors import TuningError
from needle_tvm.frontend import lowering
from needle_tvm.kernels import gpu as rules
from needle_tvm.kernels import gpu_knobs, knob_candidates
from needle_tvm.target import nvcc
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import nodes_in
from needle_tvm.tune import library, session, space
from needle_tvm.tune.options import Options
from needle_tvm.tune.records.database import Database, trace_text
from needle_tvm.tune.records.keys import Key
from needle_tvm.tune.sources import Choices, Evolution
from tests import ROOT
from tests.needle_tvm import emulated_gpu
from tests.needle_tvm.conftest import make_mlp, tensor

HERE = Path(emulated_gpu.__file__).parent

SPEC = resolve("cuda:sm_90")
TARGET = SPEC.to_tvm()

needs_nvcc = pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
no_gpu = pytest.mark.skipif(bool(gpu.gpus()), reason="there is a GPU to measure on")


def dense(rows=8, terms=128, columns=64, dtype="float32"):
    """A module of one layer with float32 sums."""
    x = te.placeholder((rows, terms), dtype, "x")
    w = te.placeholder((terms, columns), dtype, "w")
    r = te.reduce_axis((0, terms), "r")
    product = lambda i, j: x[i, r].astype("float32") * w[r, j].astype("float32")  # noqa: E731
    y = te.compute((rows, columns), lambda i, j: te.sum(product(i, j), axis=r), "y")
    return tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.relu(y)])})


def choices(module):
    return list(gpu_knobs.choices(module["main"], TARGET))


def note(schedule):
    return json.loads(schedule.get(schedule.get_sblock("root")).annotations[knob_candidates.NOTE])


def test_choices_are_of_every_rule_that_fits_and_the_first_is_of_another():
    found = choices(dense())
    assert {note(each)[0] for each in found} == {"rules", "tiled", "narrow", "dlight"}
    first = {note(each)[0] for each in found[:4]}
    assert first >= {"tiled", "narrow", "dlight"}, "they take turns: a small budget tries all"
    texts = [str(gpu_knobs.realised(each.mod, TARGET).script()) for each in found]
    incumbent = tvm.IRModule({"main": rules.schedule_function(dense()["main"], TARGET)})
    assert len(set(texts)) == len(texts) and str(incumbent.script()) not in texts
    assert all("threadIdx.x" in text and knob_candidates.NOTE not in text for text in texts)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_choices_of_halves_are_tiles_of_tensor_cores_too(dtype):
    found = choices(dense(64, 64, 64, dtype))
    tiles = [each for each in found if note(each)[0] == "tensor_core"]
    assert len(tiles) > 4 and "tensor_core" in {note(each)[0] for each in found[:4]}
    for each in tiles:
        assert "tvm_mma_sync" in str(gpu_knobs.realised(each.mod, TARGET).script())


def test_a_choice_comes_back_from_its_record(store):
    """Its trace is enough to apply it, and TVM's own search does not breed from it."""
    module = dense()
    chosen = choices(module)[1]
    database = Database(store, Key.of(TARGET))
    workload = ms.database.Workload(module)
    arguments = ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
    for applied, seconds in ((chosen.trace, 1e-6), (Schedule(module).trace, 1e-3)):
        record = ms.database.TuningRecord(applied, workload, [seconds], TARGET, arguments)
        database.commit(record, rejected="", session="s", spent=0.0)
    records = [record for _, record in database.best(module, 9)]
    best, other = records
    assert knob_candidates.is_noted(trace_text(best.trace))
    again = Schedule(module)
    best.trace.apply_to_schedule(again, remove_postproc=False)
    assert structural_equal(
        gpu_knobs.realised(again.mod, TARGET), gpu_knobs.realised(chosen.mod, TARGET)
    )
    candidate = ms.MeasureCandidate(Schedule(module), arguments)
    evolution = evolution_of(module, 1, [(record, candidate) for record in records])
    evolution.propose()
    bred = evolution._database.get_all_tuning_records()
    assert [trace_text(record.trace) for record in bred] == [trace_text(other.trace)]


@pytest.mark.parametrize("change", ["knobs", "revision", "rule"])
def test_a_choice_that_is_none_any_more_is_refused(change):
    rule, revision, knobs = next(note(c) for c in choices(dense()) if note(c)[0] == "narrow")
    changed = {
        "knobs": [rule, revision, {**knobs, "columns": 7}],
        "revision": [rule, revision + 1, knobs],
        "rule": ["broad", revision, knobs],
    }[change]
    schedule = Schedule(dense())
    text = json.dumps(changed, sort_keys=True)
    schedule.annotate(schedule.get_sblock("root"), knob_candidates.NOTE, text)
    with pytest.raises(ValueError, match="no rule has such knobs"):
        gpu_knobs.realised(schedule.mod, TARGET)


def test_what_nan_must_get_through_is_shared_out_by_none_of_dlights_rules():
    x = te.placeholder((64, 512), "float32", "x")
    y = maximum_over(TE_NAMESPACE, x, (1,), False)
    module = rules.prepared(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    found = list(gpu_knobs.choices(module["main"], TARGET))
    assert {note(each)[2] for each in found if note(each)[0] == "dlight"} <= {"Fallback"}


def test_prepared_functions_have_comparisons_for_maxima():
    """CUDA's max drops NaN and is replaced, except in reductions, where TVM must recognise it."""
    module = rules.prepared(dense())
    assert not nodes_in(module["main"], tirx.Max) and nodes_in(module["main"], tirx.Select)
    x = te.placeholder((64, 512), "float32", "x")
    largest = te.create_prim_func([x, topi.max(x, 1)])
    assert nodes_in(rules.prepared(tvm.IRModule({"main": largest}))["main"], tirx.Max)


def evolution_of(module, count, known=()):
    """TVM's evolutionary search for a module."""
    return Evolution(
        lambda: space.context(module, TARGET, "task", 0, 2),
        lambda: known,
        ms.cost_model.RandomModel(),
        count,
    )


def candidates(module, count):
    """Some candidates of TVM's search, from a small population."""
    with patch.multiple(space, _POPULATION=2 * count, _UNMEASURED=count, _GENERATIONS=1):
        return [each.sch.mod for each in evolution_of(module, count).propose()]


def test_without_xgboost_candidates_are_bred_at_random(monkeypatch):
    monkeypatch.setattr(space, "find_spec", lambda name: None)
    assert not space.has_cost_model()
    assert isinstance(space.cost_model(2), ms.cost_model.RandomModel)


@needs_nvcc
def test_candidates_of_both_sources_compile_to_machine_code(tmp_path):
    module = dense()
    chosen = Choices(module, TARGET, 1).propose()[0].sch.mod
    for number, each in enumerate([gpu_knobs.realised(chosen, TARGET), *candidates(module, 1)]):
        path = tmp_path / f"{number}.so"
        (kernel,) = library.write(each, TARGET, path)
        assert 0 < kernel.registers <= 255 and kernel.shared <= 48 << 10
        assert b"\x7fELF" in path.read_bytes()[1:] and b"__global__" not in path.read_bytes()


@needs_nvcc
@pytest.mark.slow
def test_candidates_of_halves_are_for_tensor_cores_and_compile(tmp_path):
    module = dense(64, 64, 64, "float16")
    found = candidates(module, 4)
    on_tensor_cores = [each for each in found if "tvm_mma_sync" in str(each.script())]
    assert on_tensor_cores
    (kernel,) = library.write(on_tensor_cores[0], TARGET, tmp_path / "0.so")
    assert 0 < kernel.registers <= 255


@pytest.mark.parametrize(
    ("arch", "dtype", "expected"),
    [
        ("sm_90", "float16", "cuda-tensorcore"),
        ("sm_90", "float32", "cuda"),
        ("sm_90", "bfloat16", "cuda"),  # TVM's space has no intrinsics of these
    ],
)
def test_tensor_cores_are_searched_where_halves_are_multiplied(arch, dtype, expected):
    target = resolve(f"cuda:{arch}").to_tvm()
    assert space._on_gpu(dense(dtype=dtype), target) == expected


@no_gpu
def test_a_search_without_a_gpu_is_refused_in_one_line():
    x = np.zeros((2, 64), np.float32)
    with pytest.raises(TargetError, match=r"cuda \(sm_90\): cannot measure here: no CUDA device"):
        needle_tvm.compile(make_mlp(64, 64), x, target="cuda:sm_90", trials=1)


def test_other_machines_do_not_measure_for_gpus(monkeypatch):
    monkeypatch.setattr(gpu, "gpus", lambda: (emulated_gpu.GPU,))
    module = lowering.lower(_graph(), TARGET, "tuned")
    options = Options(1, cluster="tcp://localhost:8786")
    with pytest.raises(TuningError, match="only measured on this machine"):
        session.tune(module, SPEC, options)
    monkeypatch.setattr(gpu, "gpus", lambda: (replace(emulated_gpu.GPU, major=8),))
    with pytest.raises(TargetError, match=r"this machine has emulated \(sm_80\)"):
        session.tune(module, SPEC, Options(1))
    with pytest.raises(TargetError, match="this machine has 1 CUDA devices"):
        session.tune(module, replace(SPEC, index=1), Options(1))


def _graph():
    return trace(make_mlp(64, 64), tensor(np.zeros((2, 64), np.float32)))


def check(seconds, *what):
    """Run some of the search checks in a process whose children have an emulated GPU too."""
    if emulated_gpu.compiler() is None:
        pytest.skip("no C++ compiler to compile the emulated GPU with")
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "no:xdist", *(f"{HERE / 'search_checks.py'}::{each}" for each in what)],
        cwd=ROOT,
        env={**os.environ, **emulated_gpu.environment()},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}"


@pytest.mark.slow
def test_searches():
    check(
        900,
        "test_a_search_end_to_end",
        "test_what_writes_out_of_bounds_is_survived",
        "test_a_search_that_may_spill_nothing_tells_what_does_not_fit",
    )


@pytest.mark.long
def test_a_search_among_tiles_of_tensor_cores():
    check(1800, "test_a_search_among_tiles_of_tensor_cores")
