"""The code of a contest's processes, run in this process."""

import numpy as np
import pytest

try:
    import torch
except ImportError:
    torch = None

from kernel_lab import contestants, peers, registry
from kernel_lab.workload import describe
from needle_runtime.artifact.tolerance import compare
from needle_runtime.target import host
from needle_runtime.target.features import Processor

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

SIZES = {
    "vector_add": ({"N": 30},),
    "conv1d": (
        {"M": 40, "N": 6},
        {"M": 40, "N": 6, "mode": "same"},
        {"M": 9, "N": 5, "mode": "same"},
    ),
    "depthwise": (
        {"B": 2, "C": 3, "H": 6, "W": 7, "K": 3},
        {"B": 1, "C": 2, "H": 6, "W": 7, "K": 4},
    ),
    "separable": ({"B": 2, "C": 3, "H": 6, "W": 7, "K": 3, "O": 2},),
    "gemm": ({"M": 5, "N": 6, "K": 7},),
    "gelu_matmul": ({"M": 5, "N": 6, "K": 7},),
    "int8_gemm": ({"M": 5, "N": 6, "K": 7},),
    "softmax": ({"M": 5, "N": 7},),
    "layer_norm": ({"M": 5, "N": 7},),
    "attention": ({"H": 2, "M": 5, "N": 6, "D": 7},),
}
CASES = [
    (workload, size, peer)
    for workload in registry.WORKLOADS.values()
    for size in SIZES[workload.name]
    for peer in peers.of(workload, "cpu")
]


@pytest.fixture(autouse=True)
def torch_as_found():
    """Restore PyTorch's settings, which a peer changes because it expects its own process."""
    if torch is None:
        yield
        return
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    tf32 = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.set_num_threads(threads)
    torch.set_grad_enabled(gradients)


def saved(workload, size, folder):
    path = str(folder / "inputs.npz")
    inputs = workload.inputs(size)
    np.savez(path, **{f"input_{number}": array for number, array in enumerate(inputs)})
    return path, inputs


@pytest.mark.peer
@pytest.mark.parametrize(
    ("workload", "given", "peer"),
    CASES,
    ids=[f"{w.name}-{peer.name}-{describe(size)}" for w, size, peer in CASES],
)
def test_a_peer_computes_the_workload(workload, given, peer, tmp_path):
    for module in peer.modules:
        pytest.importorskip(module)
    size = workload.size("cpu", given)
    path, inputs = saved(workload, size, tmp_path)
    made = peers.contestant(peer, workload, path, size, 1)
    call, outputs = getattr(contestants, made.factory.partition(":")[2])(**made.kwargs)
    call()
    expected = workload.reference(size, inputs)
    (result,) = outputs()
    assert result.dtype == workload.result_dtype or result.dtype == np.float64
    assert compare(expected, result, workload.tolerance(size), same_dtype=False).right


@pytest.mark.peer
@pytest.mark.parametrize("name", ["gemm", "gelu_matmul"])
def test_pytorch_may_round_only_where_the_peer_says_so(name, tmp_path):
    matmul = pytest.importorskip("torch").backends.cuda.matmul
    workload = registry.workload(name)
    size = workload.size("cuda", {"M": 5, "N": 6, "K": 7})
    path, _ = saved(workload, size, tmp_path)
    found = {peer.name: peer for peer in peers.of(workload, "cuda")}
    on_gpu = {peer.name: peer.entry().precision for peer in found.values() if peer.device == "cuda"}
    assert on_gpu == {"PyTorch": "float32", "PyTorch, TF32": "tf32"}
    on_cpu = [name for name, peer in found.items() if peer.device == "cpu"]
    assert "PyTorch, CPU" in on_cpu and all(name.endswith(", CPU") for name in on_cpu)
    for peer in (found[name] for name in on_gpu):
        made = peers.contestant(peer, workload, path, size, 1)
        contestants.torch_peer(**{**made.kwargs, "device": "cpu"})
        assert matmul.allow_tf32 == (peer.precision == "tf32")
    assert all(peer.precision == "float32" for peer in peers.of(workload, "cpu"))


@pytest.mark.peer
def test_pytorch_takes_operands_of_another_dtype(tmp_path):
    pytest.importorskip("torch")
    workload = registry.workload("gemm")
    size = workload.size("cuda", {"M": 5, "N": 6, "K": 7})
    path, (a, b) = saved(workload, size, tmp_path)
    _, outputs = contestants.torch_peer("gemm", path, 1, precision="bfloat16")
    (found,) = outputs()
    assert found.dtype == np.float32
    assert 1e-4 < np.abs(found - a @ b).max() < 0.1 * np.abs(a @ b).max()


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted({name for name, _ in registry.LADDERS}))
def test_a_gpu_ladder_is_timed_on_a_gpu(name):
    from kernel_lab.run import Request, run

    result = run(Request(name, device="cuda", rounds=1, peers=True))
    for entry in (*result.rungs, *result.peers):
        assert entry.refused or entry.seconds.median > 0
        assert entry.refused or entry.launch_seconds.median > 0


@pytest.mark.parametrize("flags", [{"avx2"}, {"avx2", "avx512f"}])
def test_openblas_is_told_only_of_vectors_there_are(monkeypatch, flags):
    """On a processor without AVX-512, OPENBLAS_CORETYPE=SKYLAKEX would end it with SIGILL."""
    monkeypatch.setattr(host, "processor", lambda: Processor("a processor", frozenset(flags)))
    found = {peer.name: peer.env for peer in peers.of(registry.WORKLOADS["gemm"], "cpu")}
    assert ("NumPy, tuned" in found) == ("avx512f" in flags)
    assert found["NumPy"] == {}
