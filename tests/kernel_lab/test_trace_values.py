"""Results of traced kernels, and errors of the interpreter."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm")

from kernel_lab.errors import LabUsageError
from kernel_lab.trace import NotInterpreted, NotLowered, TraceError, TraceTooLarge, trace
from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import te, tirx
from needle_tvm.tir import functions
from tests.kernel_lab import kernels
from tests.kernel_lab.kernels import close, counts, random


def elementwise(compute, *dtypes, n=40):
    """`compute` of n elements, scheduled as serial code, over lanes and over GPU threads."""
    scheduled = []
    inputs = [te.placeholder((n,), dtype, name=f"I{k}") for k, dtype in enumerate(dtypes)]
    for arrangement in ("serial", "lanes", "gpu"):
        result = te.compute((n,), lambda i: compute(*[tensor[i] for tensor in inputs]), name="R")
        s = kernels.schedule(*inputs, result)
        loop = s.get_loops(s.get_sblock("R"))[0]
        if arrangement == "lanes":
            s.vectorize(s.split(loop, [None, 8])[1])
        elif arrangement == "gpu":
            outer, inner = s.split(loop, [None, 32])
            s.bind(outer, "blockIdx.x")
            s.bind(inner, "threadIdx.x")
        scheduled.append((s.mod, arrangement))
    return scheduled


UNARY = {
    "exp": (tirx.exp, np.exp),
    "tanh": (tirx.tanh, np.tanh),
    "sqrt": (lambda x: tirx.sqrt(tirx.abs(x)), lambda x: np.sqrt(np.abs(x))),
    "rsqrt": (lambda x: tirx.rsqrt(x * x + 1.0), lambda x: 1 / np.sqrt(x * x + 1)),
    "sigmoid": (tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "floor": (tirx.floor, np.floor),
    "relu": (lambda x: tirx.max(x, tirx.const(0, "float32")), lambda x: np.maximum(x, 0)),
    "clip": (lambda x: tirx.min(x, tirx.const(0.5, "float32")), lambda x: np.minimum(x, 0.5)),
    "select": (lambda x: tirx.Select(x > 0, x, x * 0.5), lambda x: np.where(x > 0, x, x / 2)),
}


@pytest.mark.parametrize("name", UNARY)
def test_intrinsics_compute_what_numpy_does(name):
    compute, twin = UNARY[name]
    (x,) = random(40)
    for module, arrangement in elementwise(compute, "float32"):
        found = trace(module, [x]).arrays["R"]
        assert found.dtype == np.float32
        assert close(found, twin(x.astype("f8"))), arrangement


def test_round_takes_halves_away_from_zero():
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    for module, _ in elementwise(tirx.round, "float32", n=6):
        assert trace(module, [x]).arrays["R"].tolist() == [-3, -2, -1, 1, 2, 3]


def test_the_error_function_agrees_with_the_compiled_kernel():
    (x,) = random(40)
    module = elementwise(tirx.erf, "float32")[0][0]
    compiled = tvm_names.tvm.compile(module, target="llvm")
    result = tvm_names.tvm.runtime.tensor(np.zeros(40, np.float32))
    compiled["main"](tvm_names.tvm.runtime.tensor(x), result)
    np.testing.assert_allclose(trace(module, [x]).arrays["R"], result.numpy(), rtol=0, atol=5e-7)


def test_integers_divide_wrap_and_shift_as_the_machine_does():
    a = np.arange(-20, 20).astype(np.int32)
    b = np.where(a % 7 == 0, 3, a % 7).astype(np.int32)

    def mixed(x, y):
        return tirx.truncdiv(x, y) * 1000 + tirx.floordiv(x, y) * 10 + tirx.floormod(x, y)

    expected = np.trunc(a / b).astype(np.int32) * 1000 + a // b * 10 + a % b
    for module, _ in elementwise(mixed, "int32", "int32"):
        assert np.array_equal(trace(module, [a, b]).arrays["R"], expected)

    def narrow(x):
        return tirx.Cast("int8", x * 9)

    for module, _ in elementwise(narrow, "int32"):
        assert np.array_equal(trace(module, [a]).arrays["R"], (a * 9).astype(np.int8))


def test_a_condition_that_loads_is_evaluated_as_far_as_it_decides():
    n = 12
    i0, i1 = (te.placeholder((n,), "float32", name=name) for name in ("I0", "I1"))
    (x,) = random(n)
    y = -x

    def body(i):
        return tirx.if_then_else(tirx.all(i > 3, i0[i] > 0), i1[i], tirx.const(7, "float32"))

    result = te.compute((n,), body, name="R")
    expected = np.where((np.arange(n) > 3) & (x > 0), y, np.float32(7))
    for vectorize in (False, True):
        s = kernels.schedule(i0, i1, result)
        if vectorize:
            s.vectorize(s.get_loops(s.get_sblock("R"))[0])
        found = trace(s.mod, [x, y])
        assert np.array_equal(found.arrays["R"], expected)
        assert counts(found) == {
            ("I0", "load"): n - 4,
            ("I1", "load"): int((x[4:] > 0).sum()),
            ("R", "store"): n,
        }


def test_half_precision_rounds_at_each_step():
    a, b = random((6, 40), (40, 6), dtype="float16")
    found = trace(kernels.gemm(6, 6, 40, "float16").mod, [a, b]).arrays["C"]
    expected = np.zeros((6, 6), np.float16)
    for k in range(40):
        expected = expected + np.outer(a[:, k], b[k])
    assert np.array_equal(found.reshape(6, 6), expected)


def test_a_million_accesses_are_refused_or_traced_as_the_limit_says():
    module = kernels.gemm(16, 16, 16).mod
    assert len(trace(module, limit=16_640)) == 16 * 16 + 4 * 16**3
    with pytest.raises(TraceTooLarge, match=re.escape("16,640 accesses, more than the limit")):
        trace(module, limit=16_639)
    with pytest.raises(TraceTooLarge, match=r"up to 5,368,7.* limit of 1,000,000.* smaller"):
        trace(kernels.gemm(1024, 1024, 1024).mod)


def test_reading_outside_a_buffer_is_an_error_with_the_access():
    a = te.placeholder((8,), "float32", name="A")
    for vectorize in (False, True):
        s = kernels.schedule(a, te.compute((8,), lambda i: a[i + 3], name="R"))
        if vectorize:
            s.vectorize(s.get_loops(s.get_sblock("R"))[0])
        with pytest.raises(TraceError, match=r"A\[.*\] is element (8|10) of A, which has 8"):
            trace(s.mod)


def test_what_was_never_written_shows():
    found = trace(kernels.vector_add(4).mod, {"A": np.ones(4, np.float32)})
    assert np.isnan(found.arrays["C"]).all()


def test_wrong_inputs_are_refused_by_name():
    module = kernels.vector_add(4).mod
    with pytest.raises(LabUsageError, match="no argument 'X'"):
        trace(module, {"X": np.ones(4)})
    with pytest.raises(LabUsageError, match="A takes 4 elements of float32, not 5 of float32"):
        trace(module, [np.ones(5, np.float32)])
    with pytest.raises(LabUsageError, match="4 inputs for the 3 buffers"):
        trace(module, [np.ones(4, np.float32)] * 4)
    with pytest.raises(LabUsageError, match="cores is 0"):
        trace(module, cores=0)


def test_what_is_not_known_is_refused_by_name():
    a = te.placeholder((8,), "float32", name="A")
    body = te.compute((8,), lambda i: tirx.call_pure_extern("float32", "sinf", a[i]), name="R")
    with pytest.raises(NotInterpreted, match=r"call_pure_extern.*sinf.* is not interpreted"):
        trace(kernels.schedule(a, body).mod)
    n = tirx.Var("n", "int32")
    a = te.placeholder((n,), "float32", name="A")
    with pytest.raises(NotInterpreted, match="symbolic"):
        trace(kernels.schedule(a, te.compute((n,), lambda i: a[i] * 2.0, name="R")).mod)


def test_a_schedule_tvm_refuses_is_one_line(monkeypatch):
    def refuse(module):
        raise tvm_names.INTERNAL_ERROR(
            "in some pass\nCheck failed: Cannot insert syncs inside condition"
        )

    monkeypatch.setattr(functions, "lowered_loops", refuse)
    with pytest.raises(NotLowered) as caught:
        trace(kernels.vector_add(4).mod)
    assert str(caught.value) == (
        "trace: TVM cannot lower the schedule: Check failed: Cannot insert syncs inside condition"
    )


def test_a_kernel_that_leaves_elements_out_shows_them():
    # TVM builds it without an error: threadIdx.x is bound to 32 and to 16, and 16 are launched.
    s = kernels.vector_add(64)
    block = s.get_sblock("C")
    outer, inner = s.split(s.get_loops(block)[0], [None, 32])
    s.bind(outer, "blockIdx.x")
    copy = s.cache_read(block, 0, "shared")
    s.compute_at(copy, outer)
    s.bind(inner, "threadIdx.x")
    s.bind(s.split(s.get_loops(copy)[-1], [None, 16])[1], "threadIdx.x")
    a, b = random(64, 64)
    result = trace(s.mod, [a, b]).arrays["C"]
    left_out = np.arange(64) % 32 >= 16
    assert np.isnan(result[left_out]).all()
    assert np.array_equal(result[~left_out], (a + b)[~left_out])


@pytest.mark.parametrize("length", [128, 100])
def test_a_reduction_across_threads_gives_each_row_its_sum(length):
    rows, threads = 6, 32
    a = te.placeholder((rows, length), "float32", name="A")
    k = te.reduce_axis((0, length), name="k")
    s = kernels.schedule(a, te.compute((rows,), lambda i: te.sum(a[i, k], axis=k), name="R"))
    row, step = s.get_loops(s.get_sblock("R"))
    s.bind(s.split(step, [None, threads])[1], "threadIdx.x")
    outer, inner = s.split(row, [None, 2])
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.y")
    (x,) = random((rows, length))
    found = trace(s.mod, [x])
    assert close(found.arrays["R"], x.astype("f8").sum(axis=1), length)
    seen = counts(found)
    assert seen["A", "load"] == rows * length
    assert seen["R", "store"] == rows  # one thread writes each row's result


def test_a_maximum_across_threads():
    a = te.placeholder((4, 64), "float32", name="A")
    k = te.reduce_axis((0, 64), name="k")
    s = kernels.schedule(a, te.compute((4,), lambda i: te.max(a[i, k], axis=k), name="R"))
    row, step = s.get_loops(s.get_sblock("R"))
    s.bind(row, "blockIdx.x")
    s.bind(step, "threadIdx.x")
    (x,) = random((4, 64))
    assert np.array_equal(trace(s.mod, [x]).arrays["R"], x.max(axis=1))


def test_tensor_core_memory_outside_a_kernel_is_refused_by_name():
    s = kernels.gemm(16, 16, 16)
    block = s.get_sblock("C")
    s.bind(s.get_loops(block)[0], "threadIdx.x")
    s.cache_read(block, 0, "wmma.matrix_a")
    with pytest.raises(NotInterpreted, match=r"A_wmma.matrix_a has scope .* outside a kernel"):
        trace(s.mod)
