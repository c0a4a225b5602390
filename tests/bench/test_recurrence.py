"""`bench.recurrence` in small: contests without failures, tables."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
FEW = ["--rounds", "1", "--block-seconds", "0.01"]


def report(folder, file, *arguments):
    from bench import recurrence

    assert recurrence.main([*arguments, "--out", str(folder)]) == 0
    return json.loads((folder / f"{file}.json").read_text())


def contestants(found):
    """The names in a report of one case, none of which failed."""
    (case,) = found["cases"]
    assert not case["failed"]
    return [entry["name"] for entry in case["contestants"]]


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.parametrize("mode", ["forward", "gradient"])
def test_a_layer_beside_others(tmp_path, mode):
    found = report(tmp_path, "recurrence", f"GRU 16-4-32-64-1, {mode}", *FEW)
    assert {"needle compiled", "needle eager", "PyTorch eager"} <= set(contestants(found))
    assert not found["cases"][0]["fastest"].startswith("needle")


@pytest.mark.slow
@pytest.mark.peer
def test_a_cell_of_a_users(tmp_path):
    found = report(tmp_path, "recurrence-own", "--own", "gated_linear_attention, gradient", *FEW)
    assert len(contestants(found)) >= 2


@pytest.mark.slow
def test_an_op_beside_the_same_as_a_scan(tmp_path):
    from bench import operations

    assert operations.main(["linear_scan of lines 64-64", *FEW, "--out", str(tmp_path)]) == 0
    names = contestants(json.loads((tmp_path / "operations.json").read_text()))
    assert names == ["needle compiled", "needle eager", "needle, scan"]


def test_the_table_has_the_fastest_other():
    from bench import recurrence

    def spread(value):
        return {"median": value, "lower": value, "upper": value}

    times = {"needle compiled": 1e-3, "B": 9e-3, "A": 3e-3}
    ratios = {name: spread(time / 1e-3) for name, time in times.items()}
    ours = {"needle compiled": {k: v for k, v in ratios.items() if k != "needle compiled"}}
    entries = [{"name": name, "median": time} for name, time in times.items()]
    case = {"case": "x", "contestants": entries, "ratios": ours, "fastest": "A"}
    headings, row = recurrence.summary([case])
    cells = dict(zip(headings, row, strict=True))
    assert cells["B / ours"] == "9.00 (9.00-9.00)"
    assert (cells["fastest other"], cells["its time / ours"]) == ("A", "3.00 (3.00-3.00)")
