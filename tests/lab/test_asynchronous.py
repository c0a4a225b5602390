"""Kernels with asynchronous instructions: emulated, compiled for sm_90a, and on a GPU."""

import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest

from kernel_lab import build, contestants, ir_views, registry
from kernel_lab.ladders import gemm_half_cuda
from kernel_lab.ladders.gemm_ffma import STEP
from kernel_lab.workload import Case, describe
from needle_tvm.target import nvcc
from tests.lab import asynchronous

wgmma = pytest.importorskip("kernel_lab.wgmma", reason="the lab needs the [tvm] extra")

emulated = pytest.mark.skipif(
    asynchronous.compiler() is None, reason="no C++ compiler to compile the emulation with"
)
DTYPES = {"gemm_f16": np.float16, "gemm_bf16": ml_dtypes.bfloat16}
KERNELS = [
    rung.name for rung in registry.ladder("gemm_bf16", "cuda").rungs if rung.kind == "kernel"
]


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch):
    """A persistent grid of four blocks, so that small products give them several tiles each."""
    monkeypatch.setattr(gemm_half_cuda, "BLOCKS", 4)


def emulate(name, rung, size, seed=0, change=lambda source: source):
    """A kernel's result and the exact one."""
    workload, dtype = registry.workload(name), DTYPES[name]
    module = registry.ladder(name, "cuda")[rung].module(Case(size))
    inputs = workload.inputs(size, seed)
    result = np.full(workload.shapes(size)[-1], np.nan, dtype)
    function = module["main"]
    blocks = next(
        int(line.partition("[")[2].partition("]")[0])
        for line in function.script().splitlines()
        if "= T.cta_id([" in line
    )
    asynchronous.run(
        change(ir_views.cuda_source(module, "sm_90a")),
        dict(zip("ABC", (*inputs, result), strict=True)),
        grid=(blocks, 1),
        block=(384, 1),
        cluster=2 if rung == "wgmma_cluster" else 1,
        maps=asynchronous.encoded(function),
        seed=seed,
    )
    return result.astype(np.float64), workload.reference(size, inputs)


def right(name, size, result, expected):
    """Whether a result is as near as its workload allows; no NaN is."""
    error = np.abs(result - expected).max() / np.abs(expected).max()
    return error <= registry.workload(name).tolerance(size, DTYPES[name].__name__)


TAILS = {"M": 300, "N": 520, "K": 328}  # of rows, columns and k; more tiles than blocks
SMALL = {"M": 1, "N": 8, "K": 8}
WHOLE = {"M": 256, "N": 512, "K": 128}


@emulated
@pytest.mark.parametrize(
    ("rung", "size"),
    [
        *((rung, TAILS) for rung in KERNELS),
        (KERNELS[-1], SMALL),
        *(pytest.param(rung, WHOLE, marks=pytest.mark.slow) for rung in KERNELS),
    ],
    ids=lambda value: value if isinstance(value, str) else describe(value),
)
def test_a_kernel_is_right(rung, size):
    assert right("gemm_bf16", size, *emulate("gemm_bf16", rung, size))


@emulated
@pytest.mark.slow
@pytest.mark.parametrize("rung", ["wgmma_persistent", "wgmma_cluster"])
def test_blocks_that_go_on_are_right(rung):
    """With several tiles for each block, rows that are no whole group, and float16."""
    size = {"M": 700, "N": 1032, "K": 200}
    for seed in (1, 2):  # other inputs, and copies that arrive in another order
        assert right("gemm_f16", size, *emulate("gemm_f16", rung, size, seed))


def replaced(old, new):
    def change(source):
        head, mark, kernel = source.rpartition('extern "C" __global__')
        assert old in kernel or old in head, old
        return head.replace(old, new) + mark + kernel.replace(old, new)

    return change


# What goes wrong with a kernel that waits for less, or arranges its tiles otherwise.
FAULTS = {
    "results are overwritten before they are stored": replaced("wait_group.read 1;", "fence.x;"),
    "the columns of B lie elsewhere": replaced("512, 64, 3)", "256, 64, 3)"),
}
MORE_FAULTS = {
    "a stage is free when half the warps have read it": replaced("(uint)8);", "(uint)4);"),
    "a stage is filled before it is free": replaced(") ^ 1));", ")));"),
    "fewer bytes are waited for than copied": replaced("(uint)49152)", "(uint)16384)"),
    "products are not waited for": replaced(
        "wgmma_wait_group_wait_group_sync_aligned_0();", "wgmma_fence_fence_sync_aligned();"
    ),
    "A is read as if it lay along m": replaced("1, 64, 3)", "64, 1, 3)"),
    "results are not swizzled": replaced("^ (((int)threadIdx.x) & 7)", "^ 0"),
}


@emulated
@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(fault, id=name) for name, fault in FAULTS.items()),
        *(pytest.param(f, id=n, marks=pytest.mark.slow) for n, f in MORE_FAULTS.items()),
    ],
)
def test_the_emulation_finds_faults(change):
    size = {"M": 640, "N": 256, "K": 328}  # five tiles for four blocks
    try:
        result, expected = emulate("gemm_bf16", "wgmma_persistent", size, change=change)
    except RuntimeError:
        return
    assert not right("gemm_bf16", size, result, expected)


@emulated
@pytest.mark.parametrize("k", [STEP, 5 * STEP])
def test_async_copies_wait_for_what_they_multiply(k):
    """The float32 rung of that name, whose copies the interpreter takes for finished at once."""
    gemm = registry.ladder("gemm", "cuda")
    size = {"M": 128, "N": 128, "K": k}
    a, b = gemm.workload.inputs(size)
    source = ir_views.cuda_source(gemm["async_copies"].module(Case(size)), "sm_80")
    result = np.full((size["M"], size["N"]), np.nan, np.float32)
    arrays = {"A": a, "B": b, "C": result}
    asynchronous.run(source, arrays, grid=(1, 1), block=(32, 4), optimise=0)
    expected = gemm.workload.reference(size, [a, b])
    tolerance = gemm.workload.tolerance(size)
    assert np.abs(result - expected).max() <= tolerance * np.abs(expected).max()
    if k == STEP:  # one strip: the shortest of programs
        early = replaced("cp.async.wait_group 0;", "cp.async.wait_group 1;")(source)
        with pytest.raises(RuntimeError, match="copies not waited for"):
            asynchronous.run(early, arrays, grid=(1, 1), block=(32, 4), optimise=0)


def test_the_copy_engines_rule_is_claimed():
    rung = registry.ladder("gemm_f16", "cuda")["wgmma_tile"]
    assert rung.claims({"M": 3, "N": 8, "K": 16}) is None
    assert "K=12 is not a multiple of 8" in rung.claims({"M": 64, "N": 8, "K": 12})
    assert "N=1 is not" in rung.claims({"M": 64, "N": 1, "K": 16})
    for arch in ("sm_80", "sm_90", "sm_100"):
        assert "it needs sm_90a, and the code is for" in rung.refuses(rung_size(), arch)
    assert rung.refuses(rung_size(), "sm_90a") is None


def rung_size():
    return registry.workload("gemm_f16").size("cuda")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
@pytest.mark.parametrize("rung", ["wgmma_pipeline", "wgmma_cluster"])
def test_products_stay_asynchronous_and_sums_in_registers(rung, tmp_path):
    """ptxas says where it has wgmma wait at once; that, like a spill, would be most of the time."""
    module = registry.ladder("gemm_bf16", "cuda")[rung].module(Case(rung_size()))
    source = tmp_path / "kernel.cu"
    source.write_text(ir_views.cuda_source(module, "sm_90a"))
    command = [nvcc.require(), "-std=c++17", "-arch=sm_90a", "-Xptxas", "-v", "-cubin"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "kernel.cubin"), str(source)],
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout + done.stderr
    assert "serialized" not in said and "setmaxnreg" not in said
    (kernel,) = nvcc.resources(said)
    assert kernel.spill_stores == kernel.spill_loads == 0
    assert kernel.registers * 384 <= 65536 and "0 bytes stack frame" in said


def test_shared_memory_is_what_hopper_has():
    for columns, stages in ((128, 4), (256, 4)):
        assert wgmma.Plan(columns, stages).shared_bytes <= 232448


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("rung", KERNELS)
def test_a_kernel_is_right_on_a_gpu(name, rung, tmp_path, monkeypatch):
    monkeypatch.undo()
    if build.gpu_architecture() != "sm_90a":
        pytest.skip(f"wgmma needs sm_90a, this is {build.gpu_architecture()}")
    ladder = registry.ladder(name, "cuda")
    sizes = (
        TAILS,
        SMALL,
        WHOLE,
        {"M": 4096, "N": 4096, "K": 4096},
        {"M": 3000, "N": 5000, "K": 1000},
    )
    for number, size in enumerate(sizes):
        library, inputs = tmp_path / f"{number}.so", str(tmp_path / f"{number}.npz")
        arrays = ladder.workload.inputs(size, number)
        np.savez(
            inputs, **{name: x.astype(np.float32) for name, x in zip("ab", arrays, strict=True)}
        )
        build.write_library(ladder[rung].module(Case(size)), build.make_target("cuda"), library)
        shape = ladder.workload.shapes(size)[-1]
        call, outputs = contestants.device_library(
            str(library), inputs, shape, 2, dtype=ladder.workload.dtype
        )
        call()
        assert right(name, size, outputs()[0], ladder.workload.reference(size, arrays)), size
