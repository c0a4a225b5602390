"""Every peer's outputs equal those of needle's eager model, on small models."""

import argparse
from dataclasses import replace

import numpy as np
import pytest

import apps.contestants
import apps.peers
from apps import models
from apps.contestants import CODE
from bench import cases, contests
from needle_runtime.process import timing

pytestmark = pytest.mark.slow

OURS = "needle eager"

SMALL = {
    "mlp": ("mlp", {"sizes": [20, 30, 10], "classes": 4}),
    "conv": ("conv", {}),
    "transformer": ("transformer", {}),
    "language": ("lstm-128", {}),
    "lstm": ("lstm", {"length": 5, "size": 16}),
    "bert": (
        "bert",
        {"length": 7, "size": 24, "heads": 3, "hidden": 40, "layers": 2},
    ),
    "resnet18": ("resnet18", {"image": 32, "width": 8, "classes": 10}),
    "mobilenet": ("mobilenet", {"image": 14, "width": 8, "classes": 7}),
    "convnet": ("convnet", {"channels": [3, 8, 5], "image": 9, "strides": [2, 1]}),
    "tiny": ("tiny", {"count": 2}),
    "matmul": ("matmul", {"columns": 5, "terms": 7}),
    "attention": ("attention", {"heads": 2, "length": 5, "size": 4}),
}


def prepare(monkeypatch, folder, name):
    """A small subject."""
    kind, options = SMALL[name]
    small = replace(models.MODELS.get(kind, models.tiny_model(2)), batches=(3,), options=options)
    monkeypatch.setitem(cases.MODELS, name, small)
    return cases.Case(name, 3).subject(folder)


def test_every_model_of_the_benchmark_has_a_twin():
    twins = {models.MODELS.get(kind, models.tiny_model(2)).twin for kind, _ in SMALL.values()}
    assert {model.twin for model in models.MODELS.values()} <= twins


def check(subject, keys):
    """Compare the peers' outputs, as called and as code, with the eager model's and with those in
    float64, for every set of inputs."""
    peers = [apps.peers.PEERS[key] for key in keys]
    expected = [
        peer.name
        for peer in peers
        if not peer.missing
        and subject.kind.twin not in peer.without
        and (subject.inputs[0].ndim == 4 or not peer.images)
    ]
    entries = subject.peers(keys, threads=2, code=True)
    expected += [peer.name + CODE for peer in peers if peer.binds and peer.name in expected]
    assert [entry.name for entry in entries] == expected
    if not entries:
        pytest.skip("no peer is installed")
    found = timing.collect_outputs([subject.eager(2), *entries], timeout=900)
    apps.contestants.check_agreement(found)
    exact = subject.exact()
    for name, outputs in found.items():
        assert contests.worst_error(exact, outputs) < 1e-5, name


# Of each kind one in CI, each in a process for each peer; slow peers compile for half a minute.
IN_CI = ("mlp", "convnet", "lstm", "bert", "matmul")
IN_CI_SLOW = ("mlp", "lstm")


def small(in_ci):
    return [pytest.param(name, marks=[] if name in in_ci else pytest.mark.long) for name in SMALL]


@pytest.mark.peer
@pytest.mark.parametrize("name", small(IN_CI))
def test_peers_compute_what_we_do(monkeypatch, tmp_path, name):
    check(prepare(monkeypatch, tmp_path, name), apps.peers.QUICK)


@pytest.mark.peer
@pytest.mark.parametrize("name", small(IN_CI_SLOW))
def test_slow_peers_compute_what_we_do(monkeypatch, tmp_path, name):
    slow = [key for key, peer in apps.peers.PEERS.items() if peer.slow]
    check(prepare(monkeypatch, tmp_path, name), slow)


@pytest.mark.parametrize("name", ["resnet18", "lstm"])
def test_models_compile_to_what_they_are(monkeypatch, tmp_path, name):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    pytest.importorskip("tvm", reason="needs the [tvm] extra")
    subject = prepare(monkeypatch, tmp_path, name)
    entries = [subject.eager(2), subject.compiled(cases.TUNED, subject.compile(2), 2)]
    found = timing.collect_outputs(entries)
    apps.contestants.check_agreement(found)
    assert contests.worst_error(subject.exact(), found[cases.TUNED]) < 1e-5


def test_what_is_missing_is_told_by_name(monkeypatch, tmp_path):
    peers = apps.peers
    absent = peers.Peer(
        "Nobody's", "apps.onnx_peers:none", ("no_such_module",), programs=("no-such",)
    )
    monkeypatch.setitem(peers.PEERS, "nobody", absent)
    missing = peers.missing(["nobody"], models.find("mlp"))["Nobody's"]
    assert missing[-2:] == ["no_such_module", "no-such"]
    own = models.Model("my_own.py:make")
    assert peers.missing(["nobody"], own) == {}
    files = peers.Files(tmp_path, "no weights", "no inputs")
    assert peers.contestants(own, files, 2, names=["torch"]) == []


def test_an_error_is_relative_to_the_outputs_largest():
    exact = [np.array([1.0, -4.0]), np.array([2.0])]
    assert contests.worst_error(exact, [np.float32([1, -4]), np.float32([2.5])]) == 0.25
    assert contests.worst_error(exact, [np.float32([1, np.nan]), np.float32([2])]) is None
    assert contests.worst_error(exact, [np.float32([1, 2])]) is None


def test_the_fastest_peer_is_none_of_ours():
    def ratios(**medians):
        return {name: {"median": median} for name, median in medians.items()}

    found = {"needle eager": ratios(A=1, B=2), "needle tuned": ratios(A=3, B=2, **{OURS: 1})}
    assert contests.fastest_peer({"ratios": found}) == {"fastest": "B"}
    assert contests.fastest_peer({"ratios": {"needle tuned": ratios(**{OURS: 1})}}) == {}


def constant(value, dtype="float32"):
    """A factory."""
    return lambda: None, lambda: [np.full(4, value, dtype)]


def entry(name, value=1.0, function="constant"):
    return timing.Contestant(name, f"{__file__}:{function}", {"value": value})


def options(**others):
    given = {"rounds": 2, "block_seconds": 0.01, "device": "cpu", "strict": True, "timeout": 60.0}
    given["alone"] = ()
    return argparse.Namespace(**{**given, **others})


def test_a_peer_that_fails_is_left_out_and_ours_is_not():
    entries = [entry(OURS), entry("good"), entry("bad", function="no")]
    found = contests.run("case", entries, options())
    assert [one["name"] for one in found["contestants"]] == [OURS, "good"]
    assert found["fastest"] == "good"
    assert list(found["failed"]) == ["bad"] and "no function 'no'" in found["failed"]["bad"]
    with pytest.raises(timing.TimingError, match=OURS):
        contests.run("case", [entry(OURS, function="no"), entries[1]], options())


def test_a_wrong_result_ends_a_strict_contest_and_is_left_out_of_another():
    entries = [entry(OURS), entry("right"), entry("wrong", 1.5), entry("needle bad", function="no")]
    with pytest.raises(apps.contestants.Disagreement, match=r"wrong and .* give different results"):
        contests.run("case", entries[:3], options())
    exact = [np.ones(4)]
    found = contests.run("case", entries, options(strict=False), exact)
    assert [one["name"] for one in found["contestants"]] == [OURS, "right"]
    assert [one["error"] for one in found["contestants"]] == [0.0, 0.0]
    assert list(found["ratios"]) == [OURS] and list(found["ratios"][OURS]) == ["right"]
    assert set(found["failed"]) == {"wrong", "needle bad"}
    broken = [*entries[3:], entry("bad", function="no")]
    with pytest.raises(timing.TimingError, match=r"no contestant is left: needle bad: .*; bad: "):
        contests.run("case", broken, options(strict=False))


@pytest.mark.parametrize(
    ("device", "precision", "value", "right"),
    [
        ("cpu", "float32", 1 + 2e-4, False),
        ("cpu", "tf32", 1 + 1e-2, True),
        ("cpu", "bfloat16", 1 + 1e-1, True),
        ("cpu", "bfloat16", 1.2, False),
        ("cuda", "float32", 1 + 1.5e-4, True),
        ("cuda", "float32", 1 + 3e-4, False),
    ],
)
def test_a_result_may_be_as_far_off_as_its_precision_allows(device, precision, value, right):
    how = options(strict=False, rounds=1, device=device)
    found = contests.run("case", [entry(OURS, value)], how, [np.ones(4)], precision)
    assert (found["failed"] == {}) == right
    assert len(found["contestants"]) == right
