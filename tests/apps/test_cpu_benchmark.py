"""The parts of the inference benchmark; the figures are not checked."""

import json

import pytest

from bench import cases, charts
from bench.cpu import __main__ as cpu
from bench.cpu import ablation, costs, kernels
from kernel_lab.limits import Limits
from needle_runtime.process.child import ChildError
from needle_runtime.process.timing import Contestant

pytestmark = pytest.mark.slow

LIMITS = Limits(2, 100.0, {1 << 18: 50.0, 1 << 26: 10.0})
RATIO = {"median": 2.0, "lower": 1.5, "upper": 2.5}
REPORT = {
    "machine": {"processor": "a processor", "threads": 2},
    "date": "2026-11-21T00:00:00",
    "rounds": 2,
    "block_seconds": 0.2,
}


def test_the_time_of_looking_is_taken_off():
    def row(name, calls, seconds):
        return {"name": name, "calls": calls, "seconds": seconds, "share": 0.0}

    rows = [row("a", 1, 5.0), row("b", 2, 8.0), row("vm.builtin.alloc", 1, 1.0)]
    found = kernels.corrected({"rows": rows, "plain_seconds": 10.0})
    assert [(one["name"], one["seconds"]) for one in found] == [("b", 6.0), ("a", 4.0)]
    assert [one["share"] for one in found] == [0.6, 0.4]
    found = kernels.corrected({"rows": rows[:1], "plain_seconds": 10.0})  # nothing to subtract
    assert found[0]["seconds"] == 5.0


@pytest.fixture
def small(tmp_path, monkeypatch):
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(cases.MODELS, "small", cases.mlp_model(20, 30, 10, batches=(3,)))
    return cases.Case("small", 3)


QUICK = ["--models", "small", "--peers", "--rounds", "1", "--block-seconds", "0.01"]


def test_kernels_and_costs_of_a_model(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "measure_limits", lambda threads: LIMITS)
    code = cpu.main([*QUICK, "--out", str(tmp_path / "out")])
    assert code == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "out" / "cpu.json").read_text())
    (case,) = result["cases"]
    products = [row for row in case["profile"]["kernels"] if "dense" in row["name"]]
    least = 2 * 3 * (20 * 30 + 30 * 10)  # bias and ReLU count, too
    assert least <= sum(row["operations"] for row in products) < 1.5 * least
    assert all(row["roofline"] is None or row["roofline"] > 0 for row in products)
    assert all(0 <= row["beyond"] <= row["seconds"] for row in case["profile"]["kernels"])
    assert 0 <= case["profile"]["roofline"] <= 1  # 0 if looking took all the time
    assert 0 < case["costs"]["check"] < case["costs"]["compile"]
    (process,) = case["costs"]["processes"].values()
    assert process["first"] > 0 and 10e6 < process["bytes"] < 10e9
    page, printed = (tmp_path / "out" / "cpu.md").read_text(), capsys.readouterr().out
    for text in ("100 GFLOP/s", "in a fresh process", products[0]["name"], "small, batch 3"):
        assert text in page and text in printed
    assert (tmp_path / "out" / "cpu.png").read_bytes().startswith(b"\x89PNG")


def test_an_ablation_tells_what_could_not_be_timed(small, tmp_path, monkeypatch, capsys):
    names = ("fold_scale", "schedule", "nonsense")
    monkeypatch.setattr(ablation.pipeline, "switches", lambda stage: names)
    code = cpu.main([*QUICK, "--ablation", "--out", str(tmp_path / "out")])
    assert code == 0, capsys.readouterr().err
    (case,) = json.loads((tmp_path / "out" / "ablation.json").read_text())["cases"]
    assert list(case["ratios"]["needle tuned"]) == ["without schedule"]
    assert case["untimed"]["fold_scale"] == ablation.UNCHANGED
    assert "'nonsense'" in case["untimed"]["nonsense"]
    page = (tmp_path / "out" / "ablation.md").read_text()
    assert "| nonsense | fails |" in page and "fold_scale" not in page


def test_rows_of_the_ablation(monkeypatch):
    monkeypatch.setattr(ablation.pipeline, "switches", lambda stage: ("a", "b", "c"))
    results = [
        {"case": "x", "ratios": {"without a": RATIO}, "untimed": {"b": ablation.UNCHANGED}},
        {"case": "y", "ratios": {}, "untimed": {n: ablation.UNCHANGED for n in "ab"}},
    ]
    for result in results:
        result["ratios"] = {cases.TUNED: result["ratios"]}
        result["untimed"]["c"] = "c: no"
    expected = [["without", "x", "y"], ["a", "2.00 (1.50-2.50)", "="], ["c", "fails", "fails"]]
    assert ablation.table(results) == expected


def test_rows_of_the_roofline_and_of_costs():
    kernel = {"name": "k", "calls": 2, "seconds": 1e-6, "share": 0.5, "operations": 2000}
    kernel |= {"bytes": 500, "roofline": 0.25, "bound": "traffic", "beyond": 75e-8}
    bare = {**kernel, "name": "copy", "operations": None, "roofline": None}
    bare |= {"seconds": 8e-7, "beyond": 8e-7}
    profile = {"seconds": 2e-6, "roofline": 0.125, "kernels": [kernel, bare]}
    case = {"case": "x", "profile": profile}
    case["costs"] = {"compile": 2.0, "check": 0.5, "processes": {"A": {"first": 0.5, "bytes": 3e6}}}
    _, whole, first, second = kernels.table([case])
    assert whole == ["x", "all", "", "2.00 µs", "", "", "", "12%", "", "1.75 µs"]
    assert first == ["", "k", "2", "1.00 µs", "50%", "2.0", "0.5", "25%", "traffic", "750 ns"]
    assert second[:3] == ["", "copy", "2"] and (second[5], second[7]) == ("", "")
    _, _, first, second = kernels.table([case], by="beyond")
    assert (first[1], second[1]) == ("copy", "k")
    assert kernels.limits_line(LIMITS.to_json()).endswith("GB/s: 50 in 256 kB, 10 in 64 MB")
    other = {**case, "case": "y", "costs": {"compile": 1.0, "check": 0.25, "processes": {}}}
    assert costs.table([case, other])[1:] == [
        ["x", "2.00 s", "500 ms", "500 ms", "3 MB"],
        ["y", "1.00 s", "250 ms", "", ""],
    ]


def test_a_contestant_that_fails_at_its_start_is_named():
    with pytest.raises(ChildError, match="the broken one"):
        costs.cold_start(Contestant("the broken one", "bench.memory:no_such"), 1)


def test_a_chart_of_cases_with_different_peers(tmp_path):
    found = [
        {"case": "x", "fastest": "A", "ratios": {"needle tuned": {"A": RATIO, "B": RATIO}}},
        {"case": "y", "ratios": {"needle tuned": {}}},
    ]
    charts.draw_ratios({**REPORT, "cases": found}, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    charts.draw_ratios({**REPORT, "cases": [{"case": "z", "ratios": {}}]}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_models_at_their_batches_or_those_asked_for():
    assert [(c.model, c.batch) for c in cases.chosen(["mlp", "bert"], None, False)] == [
        ("mlp", 8),
        ("bert", 1),
    ]
    assert [c.batch for c in cases.chosen(["bert"], [2, 3], False)] == [2, 3]
    assert cases.chosen(None, None, False) == list(cases.DEFAULT)
    whole = cases.chosen(["mlp"], None, True)
    assert {c.model for c in whole} == {name for name, m in cases.MODELS.items() if m.batches}
    assert len({c.name for c in whole}) == len(whole)
