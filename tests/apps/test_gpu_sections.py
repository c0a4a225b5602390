"""The sections of `make gpu-bench`, with this processor in the place of a GPU, and small."""

import json

import pytest

pytest.importorskip("tvm", reason="the benchmarks need the [tvm] extra")

import kernel_lab.run
from bench import cases
from bench.gpu import sections
from kernel_lab import build, field, registry
from kernel_lab.ladders import vector_add_cpu
from kernel_lab.run import Request
from kernel_lab.rung import Ladder

pytestmark = pytest.mark.slow


@pytest.fixture
def options():
    return sections.conditions(rounds=2, rehearse=True)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(cases.MODELS, "mlp", cases.mlp(20, 30, 10, batches=(8,)))


def names(case):
    return [one["name"] for one in case["contestants"]]


def test_a_model_is_compiled_at_every_stage_and_timed_beside_pytorch(options):
    found = sections.model(options, "mlp", 8, "float32")
    (case,) = found["cases"]
    ours = [f"needle {stage}" for stage in ("eager", "noopt", "fused", "tuned")]
    assert case["case"] == "mlp, batch 4" and names(case)[:4] == ours == list(case["ratios"])
    assert all(facts["compile"] > 0 for facts in found["compiled"].values())
    assert list(found["failed"]) == [sections.EITHER]  # a processor has no cuBLAS
    assert all(one["error"] < 1e-5 for one in case["contestants"])
    json.dumps(found, allow_nan=False)


@pytest.mark.peer
def test_a_model_in_another_precision_is_a_case_of_its_own(options):
    pytest.importorskip("torch")
    (case,) = sections.model(options, "mlp", 8, "bfloat16")["cases"]
    assert case["case"] == "mlp, batch 4, bfloat16"
    assert names(case) == ["needle tuned", "PyTorch eager"]
    assert all(1e-4 < one["error"] < 0.1 for one in case["contestants"])


def test_a_matmul_is_compiled_and_timed_beside_the_labs_peers(options):
    (case,) = sections.product(options, 4096, "float32")["cases"]
    assert case["case"] == "gemm 32"
    assert names(case)[:3] == ["needle eager", "needle, own kernel", "NumPy"]
    assert "needle, chosen" in case["failed"]
    assert all(one["error"] < 1e-6 for one in case["contestants"])
    (case,) = sections.product(options, 4096, "bfloat16")["cases"]
    assert names(case)[0] == "needle, own kernel"
    assert all(1e-4 < one["error"] < 0.1 for one in case["contestants"])


def test_a_search_is_timed_beside_what_our_rules_give(options):
    found = sections.search(options, "mlp", 8, 0.5)
    (case,) = found["cases"]
    assert names(case) == ["needle tuned", "needle tuned, searched"] and not found["failed"]
    ((title, rows),) = found["tables"]
    assert title == "mlp, batch 4: search of 4 trials" and len(rows) == 2


@pytest.mark.slow
def test_a_training_step_is_compared_and_timed(options):
    (case,) = sections.training(options, "conv", 8)["cases"]
    assert case["case"] == "conv, batch 4: step with sgd" and names(case)[0] == "needle eager"


@pytest.mark.long
@pytest.mark.peer
def test_torch_compile_is_among_the_peers(monkeypatch, tmp_path, options):
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    options.rehearse = False
    (case,) = sections.model(options, "mlp", 8, "float32")["cases"]
    assert {"torch.compile, not frozen", "torch.compile"} <= set(names(case))


def test_a_gpu_ladder_with_a_processor_in_its_place(monkeypatch, options):
    """Everything but the GPU: compiled, checked, timed with its launches, put into a table."""
    pretended = Ladder(vector_add_cpu.ladder.workload, "cuda")
    pretended.rungs += vector_add_cpu.ladder.rungs[:2]
    target, run = build.make_target("cpu"), kernel_lab.run.run
    monkeypatch.setitem(registry.LADDERS, ("vector_add", "cuda"), pretended)
    monkeypatch.setattr(build, "why_no_gpu", lambda: None)
    monkeypatch.setattr(build, "gpu_architecture", lambda: "sm_90")
    monkeypatch.setattr(build, "make_target", lambda device, arch=None: target)
    monkeypatch.setattr(field, "PLACE", "cpu")
    monkeypatch.setattr(
        kernel_lab.run, "run", lambda request: run(Request(**vars(request) | {"size": {"N": 4096}}))
    )
    options.device = "cuda"
    found = sections.ladder(options, "vector_add", None)
    for entry in (*found["lab"]["rungs"], *found["lab"]["peers"]):
        assert len(entry["blocks"]) == 2 and entry["error"] <= entry["tolerance"]
        assert entry["launch_seconds"]["median"] > 0
    ((title, rows),) = found["tables"]
    assert title.startswith("vector_add: ") and "N=4096" in title
    assert [row[0] for row in rows[1:3]] == [rung.name for rung in pretended.rungs]
    assert set(found["failed"]) == set(found["lab"]["peers_missing"])
    json.dumps(found, allow_nan=False)


def test_at_a_large_size_the_upper_rungs_alone_are_run(monkeypatch, options):
    asked = []

    def run(request):
        asked.append(request)
        raise KeyError

    monkeypatch.setattr(kernel_lab.run, "run", run)
    options.device, options.rehearse = "cuda", False
    with pytest.raises(KeyError):
        sections.ladder(options, "gemm", 4096)
    (request,) = asked
    assert request.size == {"M": 4096, "N": 4096, "K": 4096} and request.keep_going
    assert request.rungs[0] == "register_tile" and "naive" not in request.rungs
    failed = {r.name for r in registry.ladder("gemm", "cuda").rungs if r.kind == "failed"}
    assert failed and not failed & set(request.rungs)
