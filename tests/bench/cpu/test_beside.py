"""The section of eager and compiled code in one process; the figures are not checked."""

import argparse

import numpy as np
import pytest

from bench import cases
from bench.cpu import beside
from needle_runtime.process import child


def test_a_call_calls_each_in_turn(monkeypatch):
    seen = []

    def factory(name):
        return lambda: (lambda: seen.append(name), lambda: [name])

    monkeypatch.setattr(beside, "load_function", factory)
    call, outputs = beside.in_turn([{"factory": name, "kwargs": {}} for name in "ab"])
    call()
    call()
    assert seen == list("abab") and outputs() == ["b"]
    assert child.load_function is not beside.load_function


@pytest.mark.slow
def test_both_in_turn_are_compared_with_both_alone(tmp_path, monkeypatch):
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(cases.MODELS, "small", cases.mlp_model(20, 30, 10, batches=(3,)))
    options = argparse.Namespace(rounds=2, block_seconds=0.01, threads=1, device="cpu")
    options.strict, options.timeout, options.alone = True, 60.0, ()
    found = beside.run_case(cases.Case("small", 3), options)
    blocks = {entry["name"]: np.array(entry["blocks"]) for entry in found["contestants"]}
    alone = sum(blocks[name] for name in beside.ALONE)
    expected = np.median(blocks[beside.IN_TURN] / alone)
    np.testing.assert_allclose(found["in_turn"]["median"], expected)
    headings, row = beside.table([found])
    assert len(headings) == len(row) and row[0] == "small, batch 3"
