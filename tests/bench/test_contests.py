"""A contest's decisions: which peer is the fastest, what a call adds, when it is run again."""

import argparse

import numpy as np
import pytest

from bench import contests, tables
from needle_runtime.process import timing

OURS = "needle tuned"


def options(**others):
    given = {"rounds": 3, "block_seconds": 0.01, "device": "cpu", "strict": True, "timeout": 60.0}
    given["alone"] = ()
    return argparse.Namespace(**{**given, **others})


def ratio(median, lower=None, upper=None):
    return {"median": median, "lower": lower or median, "upper": upper or median}


def case(**ratios):
    """A case of one contestant of ours, as called and as code, and peers with these ratios."""
    code = {"A, code": ratio(0.5), "B, code": ratio(0.4)}
    found = {OURS: {**ratios, OURS + ", code": ratio(0.8), **code}, OURS + ", code": code}
    names = dict.fromkeys(name for each in found.values() for name in each)
    entries = [{"name": name, "median": 1e-6} for name in names]
    calls = {OURS: {"median": 2e-6, "lower": -1e-6, "upper": 3e-6}}
    made = {"case": "x", "rounds": 3, "contestants": entries, "ratios": found, "calls": calls}
    return made | contests.fastest_peer(made)


def test_code_is_no_peer_as_called():
    assert case(A=ratio(1.5), B=ratio(1.2))["fastest"] == "B"
    assert contests.base(case(A=ratio(1.5))) == OURS
    assert "fastest" not in case()


def test_a_summary_has_calls_first_and_code_second():
    headings, row = tables.summary([case(A=ratio(1.5), B=ratio(1.2, 1.1, 1.3))])
    cells = dict(zip(headings, row, strict=True))
    assert cells["rounds"] == "3"
    assert cells["fastest peer"] == "B"
    assert cells[f"its time / {OURS}"] == "1.20 (1.10-1.30)"
    assert cells[f"fastest code / {OURS}, code"] == "0.40 (0.40-0.40)"


def test_what_calls_add_has_a_sign():
    added = tables.added([case(A=ratio(1.5)), {"case": "y", "calls": {}}])
    assert added == [["case", OURS], ["x", "2.00 (-1.00 to 3.00)"], ["y", ""]]


@pytest.mark.parametrize(
    ("lower", "upper", "decided"),
    [(0.9, 1.1, False), (1.0, 1.1, True), (0.8, 1.0, True), (1.01, 1.1, True), (0.8, 0.9, True)],
)
def test_quartiles_on_both_sides_of_1_are_run_again(monkeypatch, lower, upper, decided):
    found = case(A=ratio((lower + upper) / 2, lower, upper), B=ratio(3.0, 0.5, 4.0))
    assert contests.is_decided(found) == decided
    seen = []

    def run(name, entries, how, exact):
        seen.append(how.rounds)
        return {**found, "rounds": how.rounds}

    monkeypatch.setattr(contests, "run", run)
    how = options()
    last = contests.run_decided("x", [], how)
    assert seen == ([3] if decided else [3, 12])
    assert last["rounds"] == seen[-1] and how.rounds == 3


def test_a_contest_without_peers_is_decided():
    assert contests.is_decided(case())


def constant():
    """A factory."""
    return lambda: None, lambda: [np.ones(4, np.float32)]


@pytest.mark.slow
def test_a_call_is_compared_with_its_code_round_by_round():
    names = [OURS, OURS + contests.RUNTIME, OURS + contests.CODE, "A", "A, code", "B"]
    entries = [timing.Contestant(name, f"{__file__}:constant") for name in names]
    found = contests.run("x", entries, options())
    assert found["rounds"] == 3
    assert list(found["calls"]) == [OURS, OURS + contests.RUNTIME, "A"]
    blocks = {entry["name"]: np.array(entry["blocks"]) for entry in found["contestants"]}
    for name, spread in found["calls"].items():
        expected = np.percentile(blocks[name] - blocks[contests.code_of(name)], [25, 50, 75])
        have = [spread[key] for key in ("lower", "median", "upper")]
        np.testing.assert_allclose(have, expected)
