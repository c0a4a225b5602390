"""The contests of `make gpu-bench`, small and on this processor instead of a GPU."""

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm", reason="the benchmarks need the [tvm] extra")

from benchmarks import cases, products
from benchmarks.gpu import compiling, contest, gemm, models, search, training
from benchmarks.gpu.settings import Settings
from needle_tvm.process.timing import Contestant, TimingError


@pytest.fixture
def settings():
    return Settings(time.time() + 300, rounds=2, device="cpu", block_seconds=0.01)


@pytest.fixture
def caches(monkeypatch, tmp_path):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(compiling.INDUCTOR, str(tmp_path / "inductor"))


def entry(name, size=4, precision="float32", function="numpy_product", **options):
    one = Contestant(name, f"benchmarks.products:{function}", {"size": size})
    return contest.Entry(one, precision, **options)


def exact(size=4):
    a, b = (x.astype(np.float64) for x in products.operands(size))
    return [a @ b]


def test_what_fails_or_is_wrong_is_left_out_by_name(settings):
    entries = [
        entry("needle", ours=True),
        entry("good"),
        entry("broken", function="nosuch"),
        entry("other", size=5),
    ]
    found = contest.run(entries, exact(), settings)
    assert [one["name"] for one in found["contestants"]] == ["needle", "good"]
    for one in found["contestants"]:
        assert len(one["blocks"]) == 2 and 0 <= one["error"] < one["tolerance"] == 1e-4
        assert one["ours"] == (one["name"] == "needle") and one["precision"] == "float32"
    assert "no function 'nosuch'" in found["failed"]["broken"]
    assert found["failed"]["other"].startswith("wrong: its error is no number")


def test_a_tolerance_is_that_of_the_precision(settings):
    """Compare a matmul of rounded operands with one of exact operands."""
    halves = [x.astype(np.float16).astype(np.float64) for x in products.operands(4)]
    rounded = [halves[0] @ halves[1]]
    found = contest.run([entry("exact"), entry("half", precision="tf32")], rounded, settings)
    assert [one["name"] for one in found["contestants"]] == ["half"]
    assert "1.0e-04 is allowed" in found["failed"]["exact"]


def test_where_nothing_can_be_timed_the_contest_fails(settings):
    with pytest.raises(TimingError, match="broken"):
        contest.run([entry("broken", function="nosuch")], exact(), settings)


# Preparing torch.compile, with a factory that records each of its calls


def noting(folder, name, fails=False):
    if fails:
        raise RuntimeError("no such GPU")
    calls = Path(folder, name)

    def call():
        with calls.open("a") as file:
            file.write("x")

    return call, lambda: []


def test_peers_are_tuned_in_turn_and_once(caches, tmp_path):
    pytest.importorskip("torch")

    def peer(name, **options):
        return Contestant(
            name, f"{__file__}:noting", {"folder": str(tmp_path), "name": name, **options}
        )

    peers = [peer("a"), peer("b", fails=True), peer("c")]
    failed = compiling.tune_peers(peers, time.time() + 100)
    assert list(failed) == ["b"] and "no such GPU" in failed["b"]
    assert {name: len((tmp_path / name).read_text()) for name in "ac"} == {"a": 3, "c": 3}
    assert compiling.tune_peers([peers[0]], 0.0) == {}  # it is tuned already
    failed = compiling.tune_peers([peer("d")], time.time() - 1)
    assert failed == {"d": "torch.compile was not done in time"}


def test_a_model_is_compiled_at_every_stage_and_timed_beside_pytorch(monkeypatch, caches, settings):
    monkeypatch.setitem(cases.MODELS, "mlp", cases.mlp(20, 30, 10, batches=(8,)))
    found = models.measure("mlp", 8, settings)
    names = [one["name"] for one in found["contestants"]]
    stages = ["needle eager", "needle noopt", "needle fused", "needle tuned"]
    assert names[:4] == stages
    assert set(found["compiled"]) >= set(stages[1:])
    assert found["model"] == "mlp" and found["batch"] == settings.batch(8)
    for peer in ("PyTorch eager", "PyTorch eager, bfloat16"):
        assert peer in names or "torch" in found["failed"]["PyTorch eager"]
    for name in ("needle tuned, tf32", "needle tuned, bfloat16", "needle tuned or cuBLAS"):
        assert name in names or name in found["failed"]
    assert [one["ours"] for one in found["contestants"][:4]] == [True] * 4


def test_products_of_own_and_of_chosen_kernels_stand_apart(caches, settings):
    found = gemm.measure(4096, settings)
    names = {one["name"]: one for one in found["contestants"]}
    assert {"needle eager", "needle, own kernel", "needle, own kernel, bfloat16"} <= set(names)
    assert found["size"] == 32 and found["operations"] == 2 * 32**3
    assert "needle, chosen" in {*names, *found["failed"]}
    assert names["needle, own kernel, bfloat16"]["error"] > 1e-4 > names["needle eager"]["error"]
    assert ("PyTorch" in names) == ("PyTorch" not in found["failed"])


def test_a_search_is_timed_beside_what_our_rules_give(monkeypatch, caches, settings):
    monkeypatch.setitem(cases.MODELS, "mlp", cases.mlp(20, 30, 10, batches=(8,)))
    found = search.measure(settings)
    (one,) = found["models"]
    assert [each["name"] for each in one["contestants"]] == ["needle tuned", search.SEARCHED]
    assert one["budget"] == {"trials": 4} and one["compiled"][search.SEARCHED]["seconds"] > 0
    assert not found["failed"]


def test_a_search_without_time_is_told(caches):
    short = Settings(time.time() + 30)  # of a GPU: nothing is begun
    assert set(search.measure(short)["failed"]) == {"mlp", "conv", "transformer"}


@pytest.mark.slow
def test_a_training_step_is_compared_with_float64_and_timed(settings):
    found = training.measure(8, settings)
    names = [one["name"] for one in found["contestants"]]
    assert names[0] == "needle eager" and found["batch"] == 4
    if "PyTorch eager" not in found["failed"]:
        assert names[1:] == ["PyTorch eager", "PyTorch eager, channels last"]
        assert all(one["error"] < 1e-4 for one in found["contestants"])


@pytest.mark.slow
def test_torch_compile_is_tuned_before_the_contest(monkeypatch, caches, settings):
    """Tune both forms of torch.compile on a small model; the contest uses the result."""
    pytest.importorskip("torch")
    monkeypatch.setitem(cases.MODELS, "mlp", cases.mlp(20, 30, 10, batches=(8,)))
    monkeypatch.setattr(Settings, "rehearsal", property(lambda self: False))
    monkeypatch.setattr(models, "PRECISIONS", ("float32",))
    found = models.measure("mlp", 8, settings)
    names = [one["name"] for one in found["contestants"]]
    assert {"torch.compile, not frozen", "torch.compile"} <= set(names)
