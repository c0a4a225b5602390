"""The section of calls; the figures are not checked."""

import argparse

import pytest

from bench import contests
from bench.cpu import calls

pytestmark = pytest.mark.slow


def test_every_way_to_call_is_compared_with_the_code(tmp_path, monkeypatch):
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    options = argparse.Namespace(
        rounds=1, block_seconds=0.01, threads=1, device="cpu", strict=True, timeout=60.0, alone=()
    )
    found = calls.run_case(2, options)
    ours = {name for name in found["calls"] if contests.is_ours(name)}
    assert ours == {"needle tuned", "needle tuned, arrays", "needle tuned, runtime"}
    headings, row = calls.table([found])
    cells = dict(zip(headings, row, strict=True))
    assert cells["case"] == "2 inputs, batch 1"
    for way in ("exe(Tensor)", "exe(array)", "program(array)"):
        assert " to " in cells[f"{way} - code, µs"]
    assert bool(cells["ONNX Runtime's call"]) == ("ONNX Runtime" in found["calls"])
