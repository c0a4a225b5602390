"""Every peer's outputs equal those of needle's eager model, on small models."""

import argparse

import numpy as np
import pytest

import apps.contestants
import apps.peers
from benchmarks import cases, contests
from needle_tvm.process import timing

OURS = "needle eager"

SMALL = {
    "mlp": ("mlp:build", {"sizes": [20, 30, 10], "classes": 4}),
    "conv": ("resnet:build", {}),
    "transformer": ("transformer:build", {}),
    "language": ("language:lstm", {}),
    "lstm": ("recurrent:build", {"length": 5, "size": 16}),
    "bert": (
        "bert:build",
        {"length": 7, "size": 24, "heads": 3, "hidden": 40, "layers": 2},
    ),
    "resnet18": ("resnet18:build", {"image": 32, "width": 8, "classes": 10}),
    "mobilenet": ("mobilenet:build", {"image": 14, "width": 8, "classes": 7}),
}


def prepare(monkeypatch, folder, name):
    """A small subject."""
    factory, options = SMALL[name]
    monkeypatch.setitem(cases.MODELS, name, cases.Model(name, factory, (3,), options))
    return cases.Subject.of(cases.Case(name, 3), folder)


def test_every_model_of_the_benchmark_has_a_twin():
    assert set(SMALL) == set(apps.peers.TWINS)
    assert {model.peer for model in cases.MODELS.values()} <= set(apps.peers.TWINS)


def check(subject, keys):
    """Compare the peers' outputs with the eager model's and with those in float64."""
    peers = [apps.peers.PEERS[key] for key in keys]
    expected = [
        peer.name
        for peer in peers
        if not peer.missing
        and subject.case.model not in peer.without
        and (subject.inputs[0].ndim == 4 or not peer.images)
    ]
    entries = subject.peers(keys, threads=2)
    assert [entry.name for entry in entries] == expected
    if not entries:
        pytest.skip("no peer is installed")
    found = timing.collect_outputs([subject.eager(2), *entries], timeout=900)
    apps.contestants.check_agreement(found)
    exact = subject.exact()
    for name, outputs in found.items():
        assert contests.worst_error(exact, outputs) < 1e-5, name


@pytest.mark.peer
@pytest.mark.parametrize("name", SMALL)
def test_peers_compute_what_we_do(monkeypatch, tmp_path, name):
    check(prepare(monkeypatch, tmp_path, name), apps.peers.QUICK)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.parametrize("name", SMALL)
def test_slow_peers_compute_what_we_do(monkeypatch, tmp_path, name):
    slow = [key for key, peer in apps.peers.PEERS.items() if peer.slow]
    check(prepare(monkeypatch, tmp_path, name), slow)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet", "bert", "lstm"])
def test_models_compile_to_what_they_are(monkeypatch, tmp_path, name):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    subject = prepare(monkeypatch, tmp_path, name)
    entries = [subject.eager(2), subject.compiled(cases.TUNED, subject.compile(2), 2)]
    found = timing.collect_outputs(entries)
    apps.contestants.check_agreement(found)
    assert contests.worst_error(subject.exact(), found[cases.TUNED]) < 1e-5


def test_what_is_missing_is_told_by_name(monkeypatch):
    peers = apps.peers
    absent = peers.Peer(
        "Nobody's", "apps.onnx_peers:none", ("no_such_module",), programs=("no-such",)
    )
    monkeypatch.setitem(peers.PEERS, "nobody", absent)
    missing = peers.missing("mlp", ["nobody"])["Nobody's"]
    assert missing[-2:] == ["no_such_module", "no-such"]
    assert peers.missing("my own", ["nobody"]) == {}
    assert peers.contestants("my own", None, 2, names=["torch"]) == []


def test_an_error_is_relative_to_the_outputs_largest():
    exact = [np.array([1.0, -4.0]), np.array([2.0])]
    assert contests.worst_error(exact, [np.float32([1, -4]), np.float32([2.5])]) == 0.25
    assert contests.worst_error(exact, [np.float32([1, np.nan]), np.float32([2])]) is None
    with pytest.raises(ValueError):
        contests.worst_error(exact, [np.float32([1, 2])])


def test_the_fastest_peer_is_none_of_ours():
    def ratios(**medians):
        return {name: {"median": median} for name, median in medians.items()}

    found = {"needle eager": ratios(A=1, B=2), "needle tuned": ratios(A=3, B=2, **{OURS: 1})}
    assert contests.fastest_peer({"ratios": found}) == {"fastest": "B"}
    assert contests.fastest_peer({"ratios": {"needle tuned": ratios(**{OURS: 1})}}) == {}


def test_a_peer_that_fails_is_left_out_and_ours_is_not():
    def entry(name, function):
        return timing.Contestant(name, f"benchmarks.products:{function}", {"size": 4})

    options = argparse.Namespace(rounds=1, block_seconds=0.01)
    entries = [entry(OURS, "numpy_product"), entry("good", "numpy_product"), entry("bad", "no")]
    found = contests.run("case", entries, options)
    assert [one["name"] for one in found["contestants"]] == [OURS, "good"]
    assert list(found["failed"]) == ["bad"] and "no function 'no'" in found["failed"]["bad"]
    with pytest.raises(timing.TimingError, match=OURS):
        contests.run("case", [entry(OURS, "no"), entries[1]], options)
