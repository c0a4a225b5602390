"""The pass that lets arrays lie at any address, and calls with arrays that do."""

import re

import numpy as np
import pytest

import needle as ndl
import needle.nn as nn
import needle_runtime
import needle_tvm
from needle_tvm._tvm.names import IRModule, Target, tirx, tvm, tvm_ffi, tvmscript
from needle_tvm.check.campaign.fenced import fenced
from needle_tvm.lower.any_address import any_address
from needle_tvm.lower.libraries import generated_source

T = tvmscript


@tvm.script.ir_module
class Before:
    @T.prim_func(s_tir=True)
    def f(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float16")):
        T.func_attr({"global_symbol": "f", "tirx.noalias": True})
        for i in T.vectorized(16):
            b[i] = T.cast(a[i], "float16")


@tvm.script.ir_module
class Matched:
    """As a tensor intrinsic leaves it: a part of a parameter by a name of its own."""

    @T.prim_func(s_tir=True)
    def f(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "f", "tirx.noalias": True})
        for i in range(4):
            with T.sblock("part"):
                v = T.axis.spatial(4, i)
                T.reads(a[v * 16 : v * 16 + 16])
                T.writes(b[v * 16 : v * 16 + 16])
                part = T.match_buffer(a[v * 16 : v * 16 + 16], (16,), offset_factor=1)
                for j in T.vectorized(16):
                    b[v * 16 + j] = part[j] * T.float32(2)


def alignments(module: IRModule, kind: str) -> set[int]:
    code = generated_source(
        tvm.compile(module, Target({"kind": "llvm", "mcpu": "x86-64-v4"})), "ll"
    )
    return set(map(int, re.findall(rf"{kind} <16 x [^\n]*align (\d+)", code)))


def test_only_the_alignment_of_parameters_changes():
    after = any_address(Before)
    assert [each.data_alignment for each in Before["f"].params] == [64, 64]
    assert [each.data_alignment for each in after["f"].params] == [4, 2]
    assert [each.name for each in after["f"].params] == ["a", "b"]
    tvm.ir.assert_structural_equal(after["f"].attrs, Before["f"].attrs)
    used = set()
    tvm_ffi.structural_walk(after["f"].body, (tvm.ir.Var, used.add), order="post")
    assert {each for each in used if tirx.is_buffer_var(each)} == set(after["f"].params)


def test_code_takes_no_more_for_granted():
    assert alignments(Before, "load") == {64} and alignments(any_address(Before), "load") == {4}
    assert alignments(Before, "store") == {64} and alignments(any_address(Before), "store") == {2}


def test_parts_of_parameters_are_no_better_aligned_than_they():
    assert alignments(any_address(Matched), "load") == {4}
    built = tvm.compile(any_address(Matched), Target("llvm"))
    memory = np.zeros(65, "float32")
    x, y = memory[1:], np.zeros(64, "float32")
    x[:] = np.arange(64)
    built["f"](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    assert np.array_equal(y, x * 2)


@pytest.mark.parametrize("stage", ["noopt", "fused", "tuned"])
def test_inputs_at_every_address_and_next_to_inaccessible_pages(stage):
    model = nn.Sequential(nn.Linear(37, 50), nn.ReLU(), nn.LayerNorm1d(50), nn.Linear(50, 21))
    model.eval()
    x = np.random.default_rng(0).standard_normal((5, 37)).astype("float32")
    exe = needle_tvm.compile(model, ndl.Tensor(x), stage=stage, threads=2)
    expected = exe(x).numpy()
    np.testing.assert_allclose(expected, model(ndl.Tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
    memory = np.zeros(x.nbytes + 128, np.uint8)
    for offset in range(66):
        moved = np.ndarray(x.shape, x.dtype, memory, offset)
        moved[...] = x
        assert np.array_equal(exe(moved).numpy(), expected), offset
    for at_end in (False, True):
        assert np.array_equal(exe(fenced(x, at_end)).numpy(), expected)


def test_the_runtime_shares_an_inputs_memory_at_any_address(tmp_path):
    x = np.arange(40.0, dtype="float32").reshape(5, 8)
    path = needle_tvm.compile(lambda a: a * 2, ndl.Tensor(x)).export(tmp_path / "model")
    executor = needle_runtime.load(path).executor
    memory = np.zeros(x.nbytes + 128, np.uint8)
    for offset in range(0, 64, 4):
        moved = np.ndarray(x.shape, x.dtype, memory, offset)
        (tensor,) = executor.convert([moved])
        assert tensor.data_ptr() == moved.ctypes.data
    (tensor,) = executor.convert([np.ndarray(x.shape, x.dtype, memory, 1)])
    assert tensor.data_ptr() % 64 == 0
