"""Tensor-core instructions in the interpreter: values, recorded accesses, and errors."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="the lab needs the [tvm] extra")

from kernel_lab.trace import NotInterpreted, TraceError, gpu, trace
from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import tvmscript as T

rng = np.random.default_rng(5)


def product(
    threads=32, layout="row_major", first="0", shape=(16, 16, 16), number=0, dtype="float32"
):
    """C = A B + 1 of 16 x 16 halves. If `first` is "lane", each thread reads A elsewhere."""
    m, n, k = shape
    lane_dependent = first == "lane"

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((512,), "float16"), B: T.Buffer((256,), "float16"), C: T.Buffer((256,), dtype)
    ):
        T.func_attr({"tirx.noalias": True})
        lane = T.launch_thread("threadIdx.x", threads)
        a = T.alloc_buffer((256,), "float16", scope="wmma.matrix_a")
        b = T.alloc_buffer((256,), "float16", scope="wmma.matrix_b")
        c = T.alloc_buffer((256,), dtype, scope="wmma.accumulator")
        T.tvm_fill_fragment(c.data, m, n, k, 0, T.float32(1))
        T.tvm_load_matrix_sync(
            a.data,
            m,
            n,
            k,
            number,
            T.tvm_access_ptr(
                T.type_annotation("float16"), A.data, lane if lane_dependent else 0, 256, 1
            ),
            16,
            "row_major",
        )
        T.tvm_load_matrix_sync(
            b.data,
            m,
            n,
            k,
            0,
            T.tvm_access_ptr(T.type_annotation("float16"), B.data, 0, 256, 1),
            16,
            layout,
        )
        T.tvm_mma_sync(c.data, 0, a.data, number, b.data, 0, c.data, 0)
        T.tvm_store_matrix_sync(
            c.data,
            m,
            n,
            k,
            0,
            T.tvm_access_ptr(T.type_annotation(dtype), C.data, 0, 256, 2),
            16,
            "row_major",
        )

    return main.with_attr("global_symbol", "main")


def halves(count):
    return rng.standard_normal(count).astype(np.float16)


@pytest.mark.parametrize("layout", ["row_major", "col_major"])
def test_a_product_of_fragments(layout):
    a, b = halves(512), halves(256)
    found = trace(product(layout=layout), [a, b])
    left = a[:256].reshape(16, 16).astype(np.float64)
    right = b.reshape(16, 16).astype(np.float64)
    expected = left @ (right.T if layout == "col_major" else right) + 1
    result = found.arrays["C"].reshape(16, 16)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


def test_sums_of_halves_are_rounded_to_halves():
    a, b = halves(512), halves(256)
    found = trace(product(dtype="float16"), [a, b])
    exact = a[:256].reshape(16, 16).astype(np.float32) @ b.reshape(16, 16).astype(np.float32) + 1
    result = found.arrays["C"].reshape(16, 16)
    assert result.dtype == np.float16
    np.testing.assert_allclose(result.astype(np.float32), exact, rtol=1e-3, atol=1e-3)


def test_two_warps_have_a_fragment_each():
    found = trace(product(threads=64), [halves(512), halves(256)])
    assert set(found.of_buffer("C").warp) == {0, 1}
    assert not np.isnan(found.arrays["C"]).any()


def test_an_operand_is_recorded_as_ldmatrix_reads_it():
    found = trace(product(), [halves(512), halves(256)]).of_buffer("A")
    rows = {}
    for thread, index in zip(found.thread.tolist(), found.index.tolist(), strict=True):
        rows.setdefault(thread, []).append(index)
    for thread, elements in rows.items():
        first = thread % 16 * 16 + thread // 16 * 8
        assert elements == list(range(first, first + 8))
    assert sorted(found.index) == list(range(256))  # each element once
    assert len(set(found.time)) == 1  # one instruction


def test_sums_are_recorded_on_the_layout_of_mma():
    found = trace(product(), [halves(512), halves(256)])
    stored = found.of_buffer("C")
    assert stored.is_store.all() and sorted(stored.index) == list(range(256))
    assert len(set(stored.time)) == 4
    assert ((stored.index // 16) % 8 == stored.thread // 4).all()
    assert ((stored.index % 8) // 2 == stored.thread % 4).all()
    (report,) = [r for r in gpu.site_reports(found) if r.buffer == "C"]
    assert report.requests == 4 and report.efficiency == 1.0


def test_registers_are_not_recorded():
    found = trace(product(), [halves(512), halves(256)])
    assert {found.buffers[number].name for number in found.buffer} == {"A", "B", "C"}


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        (product(threads=48), TraceError, "block of 48 threads is not whole warps"),
        (product(threads=1), TraceError, "block of 1 threads is not whole warps"),
        (product(first="lane"), TraceError, "address differs within a warp"),
        (product(number=1), TraceError, "has 256 elements"),
        (product(shape=(8, 32, 16)), NotInterpreted, "8 x 32 x 16 fragments"),
        (product(dtype="int32"), NotInterpreted, "int32"),
    ],
    ids=["part of a warp", "one thread", "own addresses", "no such fragment", "shape", "dtype"],
)
def test_what_is_no_tensor_core_instruction_is_refused(kernel, error, message):
    with pytest.raises(error, match=message):
        trace(kernel, [halves(512), halves(256)])


def test_an_ordinary_access_of_a_fragment_is_refused():
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((256,), "float16")):
        lane = T.launch_thread("threadIdx.x", 32)
        held = T.alloc_buffer((256,), "float16", scope="wmma.matrix_a")
        held[lane] = A[lane]

    with pytest.raises(NotInterpreted, match=r"held has scope 'wmma.matrix_a'; only tensor-core"):
        trace(main.with_attr("global_symbol", "main"))


def mma(form="m16n8k16", count=4, scope="warp", threads=32):
    """C = A B of 16 x 16 halves by ldmatrix and mma, A and B in global memory for the test."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((256,), "float16"),
        B: T.Buffer((256,), "float16"),
        C: T.Buffer((256,), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        t = T.launch_thread("threadIdx.x", threads)
        a = T.alloc_buffer((256,), "float16", scope=scope)
        b = T.alloc_buffer((256,), "float16", scope="warp")
        c = T.alloc_buffer((256,), "float32", scope="warp")
        tvm_names.mma_fill(8, c.data, 0, dtype="float32")
        T.evaluate(
            tvm_names.ldmatrix(
                False,
                count,
                ".b16",
                a.data,
                t % 32 * 8,
                T.tvm_access_ptr(T.type_annotation("float16"), A.data, 0, 256, 1),
                t % 16 * 16 + t % 32 // 16 * 8,
                dtype="float16",
            )
        )
        T.evaluate(
            tvm_names.ldmatrix(
                True,
                4,
                ".b16",
                b.data,
                t % 32 * 8,
                T.tvm_access_ptr(T.type_annotation("float16"), B.data, 0, 256, 1),
                t % 16 * 16 + t % 32 // 16 * 8,
                dtype="float16",
            )
        )
        for half in range(2):
            T.evaluate(
                tvm_names.mma(
                    form,
                    "row",
                    "col",
                    "fp16",
                    "fp16",
                    "fp32",
                    a.data,
                    t % 32 * 8,
                    b.data,
                    t % 32 * 8 + half * 4,
                    c.data,
                    t % 32 * 8 + half * 4,
                    False,
                    dtype="float32",
                )
            )
        for e in range(8):
            C[(t % 32 // 4 + e % 4 // 2 * 8) * 16 + e // 4 * 8 + t % 4 * 2 + e % 2] = c[
                t % 32 * 8 + e
            ]

    return main.with_attr("global_symbol", "main")


@pytest.mark.parametrize("threads", [32, 64])
def test_a_product_by_mma(threads):
    a, b = halves(256), halves(256)
    found = trace(mma(threads=threads), [a, b])
    expected = a.reshape(16, 16).astype(np.float64) @ b.reshape(16, 16).astype(np.float64)
    np.testing.assert_allclose(found.arrays["C"].reshape(16, 16), expected, rtol=0, atol=1e-5)
    read = found.of_buffer("A")
    assert len(set(read.time)) == 1 and len(read) == 256 * threads // 32
    assert (read.index == read.thread % 16 * 16 + read.thread % 32 // 16 * 8 + read.lane).all()
    assert {found.buffers[number].name for number in found.buffer} == {"A", "B", "C"}


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        (mma(form="m16n8k8"), NotInterpreted, "ptx_legacy.mma m16n8k8 .*m16n8k16"),
        (mma(count=2), NotInterpreted, "ldmatrix x2 .*x4 .b16 is"),
        (mma(scope="local"), NotInterpreted, "a, which is float16 in 'local' memory"),
        (mma(threads=48), TraceError, "block of 48 threads is not whole warps"),
    ],
    ids=["shape", "count", "scope", "part of a warp"],
)
def test_other_forms_of_mma_are_refused(kernel, error, message):
    with pytest.raises(error, match=message):
        trace(kernel, [halves(256), halves(256)])


def test_other_memory_of_warps_is_refused_by_name():
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32,), "float32")):
        lane = T.launch_thread("threadIdx.x", 32)
        held = T.alloc_buffer((32,), "float32", scope="m16n8k8.matrixC")
        held[lane] = A[lane]

    with pytest.raises(NotInterpreted, match=r"held has scope 'm16n8k8.matrixC'; .*wmma.matrix_a"):
        trace(main.with_attr("global_symbol", "main"))
