"""The models of tvm_eval.py compile at every rung for GPUs that this machine need not have."""

import numpy as np
import pytest

import needle_tvm
from apps import ladder, models
from apps.contestants import build_model
from needle import Tensor
from needle_runtime.target import gpu
from needle_runtime.target.precision import PRECISIONS
from needle_tvm.stages import STAGES
from needle_tvm.target import nvcc

pytest.importorskip("tvm", reason="needs the [tvm] extra")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with"),
]


@pytest.mark.parametrize("name", sorted(models.EVALUATED))
@pytest.mark.parametrize(
    ("rung", "arch"),
    [
        ("scheduled", "sm_90"),
        *(pytest.param("scheduled", arch, marks=pytest.mark.long) for arch in ("sm_75", "sm_80")),
        *(
            pytest.param(rung, "sm_90", marks=pytest.mark.long)
            for rung in ("noopt", "fused", "packed")
        ),
    ],
)
def test_every_kernel_fits_its_registers(name, rung, arch, cache_dir, monkeypatch):
    (rung,) = [each for each in ladder.rungs("cuda", searches=False) if each.name == rung]
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(cache_dir))
    model, inputs = build_model(models.find(name).factory)
    tensors = [Tensor(np.asarray(x), requires_grad=False) for x in inputs]
    found = needle_tvm.compile(
        model.eval(), *tensors, target=f"cuda:{arch}", stage=rung.stage, disable=rung.disable
    )
    assert found.manifest["target"]["arch"] == arch and found.manifest["stage"] == rung.stage
    for kernel in found.manifest["kernels"]:
        assert 0 < kernel["registers"] <= 255 and kernel["shared"] <= 48 << 10, kernel
        assert kernel["spill_stores"] == kernel["spill_loads"] == 0, kernel


@pytest.mark.parametrize(
    ("name", "stage", "arch", "dtype"),
    [
        ("mlp", "tuned", "sm_75", "float16"),
        ("mlp", "tuned", "sm_80", "tf32"),
        *(
            pytest.param(
                *(name, stage, arch, dtype),
                # One architecture and stage in CI.
                marks=[] if (stage, arch) == ("tuned", "sm_90") else pytest.mark.long,
            )
            for name in sorted(models.EVALUATED)
            for stage in STAGES[1:]
            for arch in ("sm_80", "sm_90")
            for dtype in PRECISIONS[1:]
        ),
    ],
)
def test_kernels_of_narrow_products_fit_their_registers(
    name, stage, arch, dtype, cache_dir, monkeypatch
):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(cache_dir))
    model, inputs = build_model(models.find(name).factory)
    tensors = [Tensor(np.asarray(x), requires_grad=False) for x in inputs]
    found = needle_tvm.compile(
        model.eval(), *tensors, target=f"cuda:{arch}", stage=stage, dtype=dtype
    )
    assert found.manifest["precision"] == dtype
    for kernel in found.manifest["kernels"]:
        assert 0 < kernel["registers"] <= 255 and kernel["shared"] <= 48 << 10, kernel
        assert kernel["spill_stores"] == kernel["spill_loads"] == 0, kernel


@pytest.mark.skipif(bool(gpu.gpus()), reason="there is a GPU, which would run it")
def test_without_a_gpu_the_evaluation_says_so(run_app, tmp_path):
    done = run_app("tvm_eval.py", "-m", "mlp", "-d", "cuda", "--out", tmp_path)
    assert done.returncode == 2 and not list(tmp_path.iterdir())
    line = done.stderr.strip().splitlines()[-1]
    assert line.endswith("target 'cuda': no CUDA device was found on this machine")
