"""`bench.training_steps` in small: contestants compute the same, contests, tables, memory."""

import argparse
import importlib.util
import json

import numpy as np
import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")
pytest.importorskip("sklearn")

from apps.contestants import check_agreement
from bench import contests, training_calls, training_steps
from bench.training_models import MODELS
from needle_runtime.process import child, timing

EAGER, OURS, TORCH = contests.EAGER, training_steps.OURS, training_steps.TORCH
FEW = ["--rounds", "1", "--block-seconds", "0.01"]


def options(*names):
    return argparse.Namespace(threads=1, contestants=names)


def check_losses(name, contestant, folder, outputs_of):
    """The first losses of a contestant are those of float64."""
    (entry,), exact, tolerance = training_steps.entries_of(name, options(contestant), folder)
    check_agreement({"float64": exact, contestant: outputs_of(entry)}, {contestant: tolerance})
    (losses,) = exact
    assert len(losses) == training_calls.COMPARED
    assert abs(losses[1] / losses[0] - 1) > 1e-4  # an update shows


@pytest.mark.parametrize("name", MODELS)
def test_eager_steps_are_those_of_pytorch(name, tmp_path):
    pytest.importorskip("torch")

    def here(entry):
        _, outputs = child.load_function(entry.factory)(**entry.kwargs)
        return outputs()

    check_losses(name, TORCH, tmp_path, here)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.parametrize("name", MODELS)
def test_steps_in_jax_are_the_same(name, tmp_path):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed")  # not imported: it warns of forks from then on

    def in_a_process(entry):
        return timing.collect_outputs([entry])[entry.name]

    check_losses(name, training_steps.JAX, tmp_path, in_a_process)


def report(folder, file, *arguments):
    assert training_steps.main([*arguments, "--out", str(folder)]) == 0
    return json.loads((folder / f"{file}.json").read_text())


@pytest.mark.slow
@pytest.mark.peer
def test_a_contest(tmp_path):
    pytest.importorskip("torch")
    (case,) = report(tmp_path, "training_steps", "vae", *FEW)["cases"]
    assert not case["failed"]
    entries = {entry["name"]: entry for entry in case["contestants"]}
    assert {EAGER, OURS, TORCH, training_steps.COMPILE} <= set(entries)
    assert all(entry["error"] < 1e-4 for entry in entries.values())
    # A cache of its own: the step was compiled.
    assert entries[OURS]["first"] > 100 * entries[OURS]["median"]


@pytest.mark.slow
def test_what_computes_other_losses_is_left_out(tmp_path, monkeypatch):
    def wrong(name, how, folder):
        entries, exact, tolerance = entries_of(name, how, folder)
        return entries, [exact[0] * 1.001], tolerance

    entries_of = training_steps.entries_of
    monkeypatch.setattr(training_steps, "entries_of", wrong)
    (case,) = report(*(tmp_path, "training_steps", "vae", "--contestants", EAGER, *FEW))["cases"]
    assert not case["contestants"]
    assert "and the model in float64 give different results" in case["failed"][EAGER]


@pytest.mark.slow
def test_memory_of_a_step(tmp_path):
    names = [EAGER, OURS]
    found = report(tmp_path, "training_memory", "vae", "--memory", "--contestants", *names)
    (case,) = found["memory"]
    parameters = 4 * 99_000  # whose gradients a step needs
    assert all(parameters < case["bytes"][name] < 10 * parameters for name in names)


def test_the_table_has_the_fastest_peer_and_first_calls():
    def spread(value):
        return {"median": value, "lower": value, "upper": value}

    times = {EAGER: 3e-3, OURS: 1e-3, TORCH: 2e-3}
    entries = [{"name": name, "median": time, "first": 4.0} for name, time in times.items()]
    ratios = {OURS: {name: spread(time / 1e-3) for name, time in times.items() if name != OURS}}
    case = {"case": "vae", "contestants": entries, "ratios": ratios, "fastest": TORCH}
    headings, row = training_steps.table([case])
    cells = dict(zip(headings, row, strict=True))
    assert (cells["fastest peer"], cells[f"its time / {OURS}"]) == (TORCH, "2.00 (2.00-2.00)")
    assert cells[f"first call of {OURS}"] == "4.00 s" and cells[training_steps.JAX] == ""


def test_the_table_of_memory_has_ours_over_pytorchs():
    sizes = [{OURS: 2_000_000, TORCH: 4_000_000}, {TORCH: 1_000_000}]
    found = [{"case": "x", "bytes": each} for each in sizes]
    assert training_steps.memory_table(found) == [
        ["MB", OURS, TORCH, f"{OURS} / {TORCH}"],
        ["x", "2.00", "4.00", "0.50"],
        ["x", "", "1.00", ""],
    ]


def test_the_rate_of_the_timed_steps_is_another():
    rates, rate = [], training_calls.RATE

    def slow_down():
        nonlocal rate
        rate = training_calls.TIMED_RATE

    call, outputs = training_calls.calls(
        lambda x: rates.append(rate) or x, [[1.0], [2.0], [3.0]], slow_down
    )
    call()
    (losses,) = outputs()
    call()
    np.testing.assert_array_equal(losses, [1, 2, 3, 1, 2])
    assert rates == [training_calls.RATE] * 5 + [training_calls.TIMED_RATE]
