"""The section of eager and compiled code in one process; the figures are not checked."""

import argparse

import numpy as np
import pytest

from bench import cases
from bench.cpu import beside


def counting(seen, name):
    """A call that records its name."""
    return (lambda: seen.append(name)), None


def test_a_block_calls_its_kinds_in_turn_and_each_twice(monkeypatch):
    seen = []
    monkeypatch.setattr(beside, "load_function", lambda name: lambda **_: counting(seen, name))
    setup = {kind: {"factory": kind, "kwargs": {}} for kind in beside.KINDS}
    answers = beside.serve(setup, iter([{"kinds": list(beside.KINDS), "seconds": 1e-5}]))
    assert next(answers) == {}
    assert seen == list(beside.KINDS)  # once each before anything is timed
    seen.clear()
    times = next(answers)["seconds"]
    assert list(times) == list(beside.KINDS)
    assert all(len(each) == len(beside.IN_TURN) and min(each) > 0 for each in times.values())
    twice = [kind for kind in beside.KINDS for _ in beside.IN_TURN]
    assert seen == twice * (len(seen) // 4)


@pytest.mark.slow
def test_each_kind_is_compared_with_itself_alone(tmp_path, monkeypatch):
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(cases.MODELS, "small", cases.mlp_model(20, 30, 10, batches=(3,)))
    options = argparse.Namespace(rounds=2, block_seconds=0.01, threads=1)
    found = beside.run_case(cases.Case("small", 3), options)
    keys = {(each["kind"], each["setting"]): each for each in found["kinds"]}
    assert len(keys) == len(found["kinds"]) == 8
    for (kind, setting), each in keys.items():
        alone = keys[kind, beside.ALONE]["seconds"]
        expected = np.median(np.array(each["seconds"]) / np.array(alone))
        np.testing.assert_allclose(each["ratio"]["median"], expected)
        assert len(each["seconds"]) == options.rounds, setting
    assert len(beside.table([found])) == 9
