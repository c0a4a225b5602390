"""GPU rungs without a GPU: interpreted thread by thread, and compiled by nvcc."""

import shutil

import numpy as np
import pytest

from kernel_lab import build, cross_compile, ir_views, registry
from kernel_lab.errors import LabError, LabUsageError, NotCompiled
from kernel_lab.field import Field
from kernel_lab.results import RungResult
from kernel_lab.rung import Ladder
from kernel_lab.trace import trace
from kernel_lab.workload import Case, describe
from needle_runtime.artifact.tolerance import compare
from needle_runtime.errors import TargetError
from needle_tvm.errors import CudaCompilerError
from needle_tvm.target import nvcc

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
        {"M": 128, "N": 128, "K": 8},
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
        found = trace(rung.module(Case(size)), inputs, limit=5_000_000)
        expected = workload.reference(size, inputs)
        result = list(found.arrays.values())[len(inputs)].reshape(expected.shape)
        bound = workload.tolerance(size, rung.precision)
        assert compare(expected, result, bound, same_dtype=False).right, describe(size)
    assert claimed, f"{rung.name} claims none of the sizes"


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")


# In CI for the newer GPU: nvcc takes a minute for each.
ARCHITECTURES = [
    pytest.param(arch, marks=[pytest.mark.long] * (arch != build.CUDA_ARCHITECTURES[-1]))
    for arch in build.CUDA_ARCHITECTURES
]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def compiled(request):
    """The architecture, and for each rung ptxas's report on its kernels or the error."""
    arch, sources, told = request.param, {}, {}
    for name, (ladder, rung) in zip(IDS, RUNGS, strict=True):
        size = ladder.workload.size("cuda")
        if rung.refuses(size, arch) is None:
            sources[name] = ir_views.cuda_source(rung.module(Case(size)), arch)
    try:
        told = cross_compile.compile_together(sources, arch)
    except LabError:  # compile each alone, so that only those fail that do not compile
        for name, source in sources.items():
            try:
                told.update(cross_compile.compile_together({name: source}, arch))
            except LabError as error:
                told[name] = error
    return arch, told


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(("ladder", "rung"), RUNGS, ids=IDS)
def test_every_rung_compiles_at_the_documents_sizes(ladder, rung, compiled):
    arch, told = compiled
    refusal = rung.refuses(ladder.workload.size("cuda"), arch)
    if refusal:
        assert rung.needs in refusal and arch in refusal
        return
    kernels = told[f"{ladder.workload.name}-{rung.name}"]
    assert not isinstance(kernels, LabError), str(kernels)
    assert kernels and all(kernel.resources.registers > 0 for kernel in kernels)
    assert all(kernel.resources.shared <= 48 * 1024 for kernel in kernels)


@needs_nvcc
def test_what_does_not_compile_is_named():
    ladder = registry.ladder("vector_add", "cuda")
    source = ir_views.cuda_source(ladder["threads"].module(Case({"N": 1024})), "sm_75")
    broken = source.replace("threadIdx.x", "threadIdx.w")
    with pytest.raises(LabError, match=r"broken\(\d+\): error.*\"w\""):
        cross_compile.compile_together({"right": source, "broken": broken}, "sm_75")
    too_much = source.replace(") {", ") {\n  __shared__ volatile float x[20000]; x[1] = 1;", 1)
    with pytest.raises(LabError, match=r"greedy: .*too much shared data"):
        cross_compile.compile_together({"right": source, "greedy": too_much}, "sm_75")


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "least"), [("double_buffer", 8), ("large_tiles", 16), ("warp_tiles", 21.3)]
)
def test_float32_rungs_multiply_as_often_for_a_load_as_they_say(name, least):
    """Counts multiply-adds per 16-byte load from shared memory; there are no smaller loads."""
    gemm = registry.ladder("gemm", "cuda")
    size = gemm.workload.size("cuda", {"M": 4096, "N": 4096, "K": 4096})
    code = ir_views.gpu_code(gemm[name].module(Case(size)), "sm_90")
    loads = code.counts.accesses["ld.shared"]
    assert set(loads) == {"v4"} and code.counts.fma / loads["v4"] >= least
    assert not {"ld.local", "st.local"} & set(code.counts.accesses)
    (kernel,) = code.resources
    threads = 128 if name == "warp_tiles" else 256
    assert kernel.spill_loads == 0 and 2 * threads * kernel.registers <= 65536  # two blocks fit


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "arch"), [("tensor_core_pipeline", "sm_75"), ("tensor_core_mma", "sm_90")]
)
def test_tensor_core_rungs_use_tensor_cores_and_keep_fragments_in_registers(name, arch):
    gemm = registry.ladder("gemm", "cuda")
    code = ir_views.gpu_code(gemm[name].module(Case(gemm.workload.size("cuda"))), arch)
    assert code.counts.mma > 0 and code.counts.fma == 0
    assert not {"ld.local", "st.local"} & set(code.counts.accesses)


def test_a_rung_that_needs_a_newer_gpu_is_refused_by_name():
    ladder = Ladder(registry.workload("gemm"), "cuda")

    @ladder.rung(expected=(1, 1), kind="naive", needs="sm_80")
    def naive(sch, case):
        """Why."""

    size = {"M": 1, "N": 1, "K": 1}
    assert ladder["naive"].refuses(size, "sm_90a") is None
    assert ladder["naive"].refuses(size, "sm_100") is None
    assert ladder["naive"].refuses(size) is None
    assert "needs sm_80 or newer" in ladder["naive"].refuses(size, "sm_75")
    with pytest.raises(LabUsageError, match="architecture 'turing': must be like sm_75"):
        ladder["naive"].refuses(size, "turing")


def test_the_tolerance_follows_the_operands():
    """It allows one rounding of each operand, but not sums in half precision."""
    gemm = registry.workload("gemm")
    size = gemm.size("cuda", {"M": 64, "N": 64, "K": 4096})
    inputs = gemm.inputs(size)
    exact = gemm.reference(size, inputs)
    rounded = [array.astype(np.float16) for array in inputs]
    error = np.abs(gemm.reference(size, rounded) - exact).max() / np.abs(exact).max()
    allowed = gemm.tolerance(size, "float16")
    assert gemm.tolerance(size) < error < allowed / 4
    assert allowed == gemm.tolerance(size, "tf32")
    sums = np.zeros(exact.shape, np.float16)
    for k in range(size["K"]):
        sums += rounded[0][:, k : k + 1] * rounded[1][k]
    assert np.abs(sums - exact).max() / np.abs(exact).max() > allowed / 4
    tensor = [r for r in registry.ladder("gemm", "cuda").rungs if r.name.startswith("tensor")]
    assert tensor and all(rung.precision == "float16" for rung in tensor)


def test_no_nvcc_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(nvcc, "find", lambda: None)
    ladder = registry.ladder("vector_add", "cuda")
    module = ladder["threads"].module(Case({"N": 1024}))
    with pytest.raises(TargetError, match="no nvcc"):
        build.write_library(module, build.make_target("cuda", "sm_75"), tmp_path / "kernel.so")
    with pytest.raises(TargetError, match="no nvcc"):
        ir_views.gpu_code(module, "sm_75")


@needs_nvcc
def test_a_library_for_a_gpu_holds_machine_code(tmp_path):
    """It is made without a GPU and loads without a compiler, as it holds no source."""
    gemm = registry.ladder("gemm", "cuda")
    module = gemm["tensor_core_tiles"].module(Case(gemm.workload.size("cuda")))
    build.write_library(module, build.make_target("cuda", "sm_75"), tmp_path / "kernel.so")
    library = (tmp_path / "kernel.so").read_bytes()
    assert b"__global__" not in library
    assert library.count(b"\x7fELF") == 2 and b".text.main_kernel" in library  # its own, the cubin


@needs_nvcc
def test_a_rung_that_nvcc_refuses_is_named(monkeypatch, tmp_path):
    def refuse(source, arch):
        raise CudaCompilerError(f"nvcc -arch={arch} failed: error: no")

    monkeypatch.setattr(nvcc, "compile_cubin", refuse)
    workload = registry.workload("vector_add")
    case = Case(workload.size("cuda", {"N": 64}))
    contest = Field(workload, case, build.make_target("cuda"), tmp_path, 0, "cuda")
    entry = RungResult("threads", "schedule", "Why.")
    entry.module = registry.ladder("vector_add", "cuda")["threads"].module(case)
    with pytest.raises(NotCompiled, match="vector_add: threads: nvcc") as raised:
        contest.add_rung(entry)
    assert raised.value.contestant == "threads"
