"""GPU rungs without a GPU: run thread by thread in the interpreter, and compiled by nvcc."""

import shutil

import numpy as np
import pytest

from kernel_lab import build, ir_views, registry
from kernel_lab.errors import LabUsageError
from kernel_lab.trace import trace
from kernel_lab.workload import Case, describe

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

SIZES = {
    "vector_add": ({"N": 1024}, {"N": 1000}),
    "conv1d": ({"M": 300, "N": 5}, {"M": 256, "N": 32, "mode": "same"}, {"M": 65, "N": 8}),
    "depthwise": (
        {"B": 1, "C": 2, "H": 8, "W": 32, "K": 3},
        {"B": 1, "C": 1, "H": 5, "W": 9, "K": 4},
    ),
    "separable": (
        {"B": 1, "C": 2, "H": 8, "W": 16, "K": 3, "O": 4},
        {"B": 2, "C": 3, "H": 5, "W": 9, "K": 3, "O": 5},
    ),
    "gemm": (
        {"M": 64, "N": 64, "K": 16},
        {"M": 64, "N": 128, "K": 64},
        {"M": 33, "N": 18, "K": 11},
    ),
    "gelu_matmul": ({"M": 64, "N": 64, "K": 16}, {"M": 33, "N": 18, "K": 11}),
}
GPU = [ladder for (_, device), ladder in registry.LADDERS.items() if device == "cuda"]
RUNGS = [(ladder, rung) for ladder in GPU for rung in ladder.rungs]
IDS = [f"{ladder.workload.name}-{rung.name}" for ladder, rung in RUNGS]


@pytest.mark.parametrize(("ladder", "rung"), RUNGS, ids=IDS)
def test_a_gpu_rung_is_right_where_it_claims_and_refuses_by_name_where_not(ladder, rung):
    workload = ladder.workload
    claimed = 0
    for given in SIZES[workload.name]:
        size = workload.size("cuda", given)
        if rung.claims(size) is not None:
            with pytest.raises(LabUsageError, match=rung.name):
                rung.module(Case(size))
            continue
        claimed += 1
        inputs = workload.inputs(size)
        found = trace(rung.module(Case(size)), inputs, limit=4_000_000)
        expected = workload.reference(size, inputs)
        result = list(found.arrays.values())[len(inputs)].reshape(expected.shape)
        difference = np.abs(result - expected).max() / np.abs(expected).max()
        assert difference <= workload.tolerance(size, rung.precision), describe(size)
    assert claimed, f"{rung.name} claims none of the sizes"


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")


def _compile(ladder, rung, arch):
    size = ladder.workload.size("cuda")
    code = ir_views.gpu_code(rung.module(Case(size)), arch)
    assert ".entry" in code.ptx


@needs_nvcc
@pytest.mark.parametrize("ladder", GPU, ids=lambda ladder: ladder.workload.name)
def test_the_last_rung_compiles(ladder):
    _compile(ladder, ladder.rungs[-1], build.CUDA_ARCHITECTURES[0])


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", build.CUDA_ARCHITECTURES)
@pytest.mark.parametrize(("ladder", "rung"), RUNGS, ids=IDS)
def test_every_rung_compiles_at_the_documents_sizes(ladder, rung, arch):
    _compile(ladder, rung, arch)


def test_no_nvcc_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabUsageError, match="no nvcc"):
        build.require_nvcc()
