"""Tensor cores, asynchronous copies and dynamic shared memory of the emulated GPU.

test_emulated_gpu.py runs these in a separate process, like checks.py. They check the emulated GPU
itself, so that its results for kernels with these instructions can be relied on.
"""

import re

import ml_dtypes
import numpy as np
import pytest

from kernel_lab import build, registry
from kernel_lab.ladders.gemm_ffma import STEP
from kernel_lab.workload import Case
from needle_runtime.artifact.tolerance import compare
from needle_tvm._tvm.names import IRModule, ldmatrix, mma, tvm
from needle_tvm._tvm.names import tvmscript as T
from needle_tvm.lower.gpu_code import export_library
from needle_tvm.target import nvcc
from tests.needle_tvm.emulated_gpu import install, load, ptx

install()
load()

rng = np.random.default_rng(0)
ARCH = "sm_90"
GEMM = registry.ladder("gemm", "cuda")


def run(module, folder, *arrays, change=lambda source: source):
    """Run a module's kernel on arrays, of which the last is the result; return it and the source.

    `change` is applied to the CUDA source before it is compiled.
    """
    library = build.compile_module(module, build.make_target("cuda", ARCH))
    sources = []

    def compiled(source):
        sources.append(source)
        return nvcc.compile_cubin(change(source), ARCH)[0]

    export_library(library, folder / "kernel.so", compiled)
    function = tvm.runtime.load_module(str(folder / "kernel.so"))["main"]
    given = [tvm.runtime.tensor(array, tvm.cuda(0)) for array in arrays]
    function(*given)
    return given[-1].numpy(), sources[0]


def module_of(function):
    return IRModule({"main": function.with_attr("global_symbol", "main")})


def normal(*shape, dtype="float32"):
    return rng.standard_normal(shape).astype(_numpy(dtype))


def _numpy(dtype):
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def cut_off(array):
    """Floats truncated as tf32 tensor cores read them."""
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("name", [rung.name for rung in GEMM.rungs if rung.precision == "float16"])
def test_rungs_with_tensor_cores_compute_the_product(name, tmp_path):
    size = {"M": 128, "N": 64, "K": 96}
    a, b = normal(128, 96), normal(96, 64)
    module = GEMM[name].module(Case(size))
    found, source = run(module, tmp_path, a, b, np.zeros((128, 64), np.float32))
    assert re.search("mma[._]sync", source)
    halves = [x.astype(np.float16).astype(np.float64) for x in (a, b)]
    expected = halves[0] @ halves[1]
    # Products of halves are exact in float32; 96 of them are summed in it.
    np.testing.assert_allclose(found, expected, atol=96 * 2.0**-24 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("terms", "name", "dtype"),
    [
        (16, "fp16", "float16"),
        (8, "fp16", "float16"),
        (16, "bf16", "bfloat16"),
        (8, "bf16", "bfloat16"),
        (8, "tf32", "float32"),
        (4, "tf32", "float32"),
    ],
)
def test_mma_of_16_by_8(terms, name, dtype, tmp_path):
    each = 1 if name == "tf32" else 2  # elements of a register
    a_count, b_count, shape = terms // 2, terms // 4, f"m16n8k{terms}"

    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((16, terms), dtype),
        B: T.Buffer((terms, 8), dtype),
        C: T.Buffer((16, 8), "float32"),
    ):
        lane = T.launch_thread("threadIdx.x", 32)
        a = T.alloc_buffer((a_count,), dtype, scope="local")
        b = T.alloc_buffer((b_count,), dtype, scope="local")
        c = T.alloc_buffer((4,), "float32", scope="local")
        for i in T.serial(a_count):
            a[i] = A[
                lane // 4 + i // each % 2 * 8,
                (lane % 4 + i // each // 2 * 4) * each + i % each,
            ]
        for i in T.serial(b_count):
            b[i] = B[(lane % 4 + i // each * 4) * each + i % each, lane // 4]
        for i in T.serial(4):
            c[i] = T.float32(1)
        T.evaluate(
            mma(
                shape,
                "row",
                "col",
                name,
                name,
                "fp32",
                a.data,
                0,
                b.data,
                0,
                c.data,
                0,
                False,
                dtype="float32",
            )
        )
        for i in T.serial(4):
            C[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = c[i]

    a, b = normal(16, terms, dtype=dtype), normal(terms, 8, dtype=dtype)
    found, source = run(module_of(kernel), tmp_path, a, b, np.zeros((16, 8), np.float32))
    assert "mma.sync.aligned" in source
    read = [cut_off(x) if name == "tf32" else x for x in (a, b)]
    expected = read[0].astype(np.float64) @ read[1].astype(np.float64) + 1
    np.testing.assert_allclose(found, expected, atol=terms * 2.0**-24 * np.abs(expected).max())


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count, transposed, tmp_path):
    elements = 2 * count

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((32, 8), "float16"), C: T.Buffer((32, elements), "float16")):
        lane = T.launch_thread("threadIdx.x", 32)
        shared = T.alloc_buffer((32, 24), "float16", scope="shared")
        own = T.alloc_buffer((elements,), "float16", scope="local")
        for i in T.serial(8):
            shared[lane, i] = A[lane, i]
        T.evaluate(T.tvm_storage_sync("shared"))
        T.evaluate(
            ldmatrix(
                transposed,
                count,
                ".b16",
                own.data,
                0,
                T.tvm_access_ptr(T.type_annotation("float16"), shared.data, 0, 768, 1),
                lane * 24,
                dtype="float16",
            )
        )
        for i in T.serial(elements):
            C[lane, i] = own[i]

    a = normal(32, 8, dtype="float16")
    result = np.zeros((32, elements), np.float16)
    found, source = run(module_of(kernel), tmp_path, a, result)
    assert f"m8n8.x{count}" in source and (".trans" in source) == transposed
    tiles = a.reshape(4, 8, 8)[:count]  # thread t: row t / 4, columns 2 (t % 4) and the next
    tiles = tiles.transpose(0, 2, 1) if transposed else tiles
    expected = tiles.reshape(count, 32, 2).transpose(1, 0, 2).reshape(32, elements)
    np.testing.assert_array_equal(found, expected)


def copies(wait):
    """Two groups of asynchronous copies of 16 rows each; `wait` of them may still be pending."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((32, 4), "float32"), C: T.Buffer((32, 4), "float32")):
        lane = T.launch_thread("threadIdx.x", 16)
        shared = T.alloc_buffer((32, 4), "float32", scope="shared")
        for part in T.unroll(2):
            for i in T.serial(4):
                shared[part * 16 + lane, i] = T.float32(-1)
            T.evaluate(
                T.ptx["cp.async.cg.shared.global"](
                    shared.ptr_to([part * 16 + lane, 0]), A.ptr_to([part * 16 + lane, 0]), 16
                )
            )
            T.evaluate(T.ptx["cp.async.commit_group"]())
        T.evaluate(T.ptx["cp.async.wait_group"](wait))
        T.evaluate(T.tvm_storage_sync("shared"))
        for part in T.unroll(2):
            for i in T.serial(4):
                C[part * 16 + lane, i] = shared[part * 16 + 15 - lane, i]

    return module_of(kernel)


@pytest.mark.parametrize(("wait", "arrived"), [(0, 32), (1, 16), (2, 0)])
def test_asynchronous_copies_arrive_when_they_are_waited_for(wait, arrived, tmp_path):
    a = normal(32, 4)
    found, source = run(copies(wait), tmp_path, a, np.zeros((32, 4), np.float32))
    assert "cp.async.cg.shared.global" in source
    expected = np.where(np.arange(32)[:, None] < arrived, a, -1)
    expected = expected.reshape(2, 16, 4)[:, ::-1].reshape(32, 4)
    np.testing.assert_array_equal(found, expected.astype(np.float32))


# The shortest program has one strip. With one more group pending it reads stale memory.
@pytest.mark.parametrize(("k", "more"), [(STEP, 0), (5 * STEP, 0), (STEP, 1)])
def test_a_rung_waits_for_the_copies_it_multiplies(k, more, tmp_path):
    """The lab's interpreter finishes copies at once; here they arrive when waited for."""

    def waits(source):
        return re.sub(r"(?<=wait_group )\d(?=;)", lambda found: f"{int(found[0]) + more}", source)

    size = {"M": 128, "N": 128, "K": k}
    inputs = GEMM.workload.inputs(size)
    module, result = GEMM["async_copies"].module(Case(size)), np.zeros((128, 128), np.float32)
    found, source = run(module, tmp_path, *inputs, result, change=waits)
    assert "cp.async.wait_group 0;" in source
    expected = GEMM.workload.reference(size, inputs)
    bound = GEMM.workload.tolerance(size)
    assert compare(expected, found, bound, same_dtype=False).right == (more == 0)


def test_shared_memory_of_a_size_said_at_launch(tmp_path):
    threads, each = 64, 300  # 75 kB, more than a kernel may declare

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((threads, each), "float32"), C: T.Buffer((threads, each), "float32")):
        thread = T.launch_thread("threadIdx.x", threads)
        shared = T.alloc_buffer((threads, each), "float32", scope="shared.dyn")
        for i in T.serial(each):
            shared[thread, i] = A[thread, i]
        T.evaluate(T.tvm_storage_sync("shared"))
        for i in T.serial(each):
            C[thread, i] = shared[threads - 1 - thread, i]

    a = normal(threads, each)
    found, source = run(module_of(kernel), tmp_path, a, np.zeros_like(a))
    assert "extern __shared__" in source
    np.testing.assert_array_equal(found, a[::-1])


# operand dtype, its fragments' shape, layout of B
FRAGMENTS = [
    ("float16", (16, 16, 16), "row_major"),
    ("float16", (32, 8, 16), "col_major"),
    ("bfloat16", (16, 16, 16), "col_major"),
    ("bfloat16", (8, 32, 16), "row_major"),
]


@pytest.mark.parametrize(("dtype", "shape", "layout"), FRAGMENTS)
def test_a_product_of_fragments(dtype, shape, layout, tmp_path):
    m, n, k = shape
    b_stride = n if layout == "row_major" else k

    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((m * k,), dtype), B: T.Buffer((k * n,), dtype), C: T.Buffer((m * n,), "float32")
    ):
        T.launch_thread("threadIdx.x", 32)
        a = T.alloc_buffer((m * k,), dtype, scope="wmma.matrix_a")
        b = T.alloc_buffer((k * n,), dtype, scope="wmma.matrix_b")
        c = T.alloc_buffer((m * n,), "float32", scope="wmma.accumulator")
        T.tvm_fill_fragment(c.data, m, n, k, 0, T.float32(1))
        T.tvm_load_matrix_sync(a.data, m, n, k, 0, A.access_ptr("r"), k, "row_major")
        T.tvm_load_matrix_sync(b.data, m, n, k, 0, B.access_ptr("r"), b_stride, layout)
        T.tvm_mma_sync(c.data, 0, a.data, 0, b.data, 0, c.data, 0)
        T.tvm_store_matrix_sync(c.data, m, n, k, 0, C.access_ptr("w"), n, "row_major")

    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    given = b if layout == "row_major" else b.T
    result = np.zeros(m * n, np.float32)
    found, _ = run(module_of(kernel), tmp_path, a.ravel(), given.ravel(), result)
    expected = a.astype(np.float64) @ b.astype(np.float64) + 1
    np.testing.assert_allclose(
        found.reshape(m, n), expected, atol=k * 2.0**-24 * np.abs(expected).max()
    )


TF32 = """
#include <mma.h>
__device__ void product(const float* a, const float* b, float* c) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 8, precision::tf32, row_major> left;
  fragment<matrix_b, 16, 16, 8, precision::tf32, col_major> right;
  fragment<accumulator, 16, 16, 8, float> sums;
  load_matrix_sync(left, a, 8);
  load_matrix_sync(right, b, 8);
  for (int i = 0; i < left.num_elements; ++i) left.x[i] = __float_to_tf32(left.x[i]);
  fill_fragment(sums, 1.0f);
  mma_sync(sums, left, right, sums);
  store_matrix_sync(c, sums, 16, mem_col_major);
}
"""


def test_a_product_of_fragments_of_tf32(tmp_path):
    """Written by hand, as TVM has no wmma for tf32: A is rounded, B is not, C is column-major."""

    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((16, 8), "float32"),
        B: T.Buffer((16, 8), "float32"),
        C: T.Buffer((16, 16), "float32"),
    ):
        T.launch_thread("threadIdx.x", 32)
        T.evaluate(T.call_extern("void", "product", A.data, B.data, C.data))

    a, b = normal(16, 8), normal(16, 8)
    result = np.zeros((16, 16), np.float32)
    found, _ = run(module_of(kernel), tmp_path, a, b, result, change=lambda source: TF32 + source)
    upper = cut_off(a), cut_off(a) + np.copysign(np.spacing(np.abs(cut_off(a))) * 2**13, a)
    rounded = np.where(np.abs(a - upper[0]) < np.abs(a - upper[1]), *upper)
    expected = (rounded.astype(np.float64) @ cut_off(b).T.astype(np.float64) + 1).T
    np.testing.assert_allclose(found, expected, atol=8 * 2.0**-24 * np.abs(expected).max())


@pytest.mark.parametrize(
    "instruction",
    [
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4}, {%5}, {%6};",
        "mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {%0}, {%4}, {%5}, {%6};",
        "wgmma.fence.sync.aligned;",
        "{ .reg .pred p; cp.async.cg.shared.global [%0], [%1], 16, p; }",
    ],
)
def test_instructions_that_are_not_known_do_not_compile(instruction):
    operands = ", ".join(f'"r"(x[{i}])' for i in range(7))
    body = f'asm volatile("{instruction}" : : {operands});'
    head = '#include <cuda.h>\nextern "C" __global__ void f(unsigned* x);\n'
    source = f"{head}void f(unsigned* x) {{ {body} }}\n"
    with pytest.raises(RuntimeError, match="does not know this PTX"):
        nvcc.compile_cubin(source, ARCH)
    # There is no error if the preprocessor leaves the instruction out.
    assert "#error" in ptx.translated(source)
    nvcc.compile_cubin(source.replace(body, f"\n#ifdef NEVER\n{body}\n#endif\n"), ARCH)
