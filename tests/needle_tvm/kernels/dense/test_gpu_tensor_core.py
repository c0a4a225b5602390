"""Schedules by the rule for tensor cores. test_emulated_gpu.py checks their results."""

import math
import re

import numpy as np
import pytest

import needle_tvm
from needle import Tensor, nn
from needle.trace import trace
from needle_tvm._tvm.names import PrimFunc, te, tirx, topi, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.kernels.dense.gpu.mma import Registers
from needle_tvm.kernels.dense.gpu.tensor_core import (
    TF32,
    _shared_bytes,
    _taken,
    tensor_core,
    warp_tiles,
)
from needle_tvm.lower import build, pipeline
from needle_tvm.target import nvcc
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import nodes_in
from needle_tvm.tir.regions import lowered as lowered_loops
from needle_tvm.tune import library

needs_nvcc = pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")

MMA, WMMA = "ptx.mma", "tvm_mma_sync"  # the instructions' names in TVMScript


def dense(rows, terms, columns, dtype="float16", turned=False, note=True):
    """A dense layer with a weight (terms, columns), or its transpose, bias and relu."""
    x = te.placeholder((rows, terms), dtype, "x")
    w = te.placeholder((columns, terms) if turned else (terms, columns), dtype, "w")
    b = te.placeholder((columns,), "float32", "b")
    r = te.reduce_axis((0, terms), "r")

    def wide(value):
        return value if dtype == "float32" else tirx.Cast("float32", value)

    def element(i, j):
        return te.sum(wide(x[i, r]) * wide(w[j, r] if turned else w[r, j]), axis=r)

    attrs = {TF32: 1} if note and dtype == "float32" else {}
    y = te.compute((rows, columns), element, "y", attrs=attrs)
    return te.create_prim_func([x, w, b, topi.nn.relu(topi.add(y, b))])


def scheduled(function, arch="sm_90"):
    return tensor_core(function, resolve(f"cuda:{arch}").to_tvm())


def fragments(sch):
    """Shapes (rows, columns, terms) of the wmma fragments in a schedule."""
    text = sch.mod.script()
    found = re.findall(r"tvm_fill_fragment\([^,]*, (\d+), (\d+), (\d+)", text)
    return {tuple(map(int, each)) for each in found}


@pytest.mark.parametrize(
    ("rows", "shape"), [(5, (8, 32, 16)), (8, (8, 32, 16)), (9, (16, 16, 16)), (512, (16, 16, 16))]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_fragments_are_as_high_as_there_are_rows(rows, shape, dtype):
    assert fragments(scheduled(dense(rows, 512, 512, dtype))) == {shape}


def test_tf32_is_ptx():
    text = scheduled(dense(64, 512, 512, "float32")).mod.script()
    assert "tf32" in text and WMMA not in text


@pytest.mark.parametrize(
    "function",
    [
        dense(4, 512, 512),
        dense(64, 512, 4),
        dense(64, 4, 512),
        dense(64, 512, 512, "float32", note=False),
        dense(64, 512, 512, "float64"),
    ],
    ids=["rows", "columns", "terms", "float32", "float64"],
)
def test_other_products_are_left_to_others(function):
    assert scheduled(function) is None


@pytest.mark.parametrize(
    ("dtype", "first"), [("float16", "sm_75"), ("bfloat16", "sm_80"), ("float32", "sm_80")]
)
def test_what_a_gpu_has_no_instruction_for_is_left_to_others(dtype, first):
    function = dense(64, 512, 512, dtype)
    assert scheduled(function, first) is not None
    assert (scheduled(function, "sm_75") is None) == (first != "sm_75")


def test_halves_lie_in_rows_for_ldmatrix():
    with pytest.raises(ValueError, match="mma of float16: operands must not be transposed"):
        Registers("float16", right=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_every_element_of_a_fragment_has_a_place_of_its_own(dtype, operand):
    for turned in (False, True) if dtype == "float32" else (False,):
        kind = Registers(dtype, turned, turned)
        rows, columns = kind.edges(operand)
        places = {kind.at(operand, i, j) for i in range(rows) for j in range(columns)}
        each = rows * columns // 32
        assert places == {(thread, place) for thread in range(32) for place in range(each)}


def test_the_rule_has_a_switch():
    target = resolve("cuda:sm_80").to_tvm()
    graph = trace(nn.Linear(512, 512).eval(), Tensor(np.zeros((32, 512), np.float32)))
    module = lowering.lower(graph, target, "tuned", precision="float16")
    whole, left = (
        build.schedule(module.clone(), target, "tuned", without)
        for without in ((), ("tensor_core",))
    )
    assert WMMA in whole.script() and WMMA not in left.script()
    assert "tensor_core" in pipeline.switches("tuned", "cuda")


def test_a_model_in_halves_has_its_products_on_tensor_cores():
    """This needs no `dtype=`, because a product of halves is exact in float32."""
    target = resolve("cuda:sm_80").to_tvm()
    layer = nn.Linear(512, 512).eval().to(dtype="bfloat16")
    graph = trace(
        layer, Tensor(np.zeros((32, 512), "float32"), requires_grad=False).astype("bfloat16")
    )
    module = build.schedule(lowering.lower(graph, target, "tuned"), target, "tuned")
    assert WMMA in module.script()


@needs_nvcc
@pytest.mark.parametrize(
    ("dtype", "arch", "turned"),
    [("float16", "sm_75", False), ("bfloat16", "sm_80", True), ("tf32", "sm_90", False)],
)
def test_no_thread_spills(dtype, arch, turned):
    """Uses the largest tile, whose threads have the most accumulators."""

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(Tensor(np.zeros((2048, 64), np.float32)))

        def forward(self, x):
            return x @ self.weight.transpose()

    layer = Turned().eval() if turned else nn.Linear(64, 2048).eval()
    x = np.zeros((1024, 64), np.float32)
    found = needle_tvm.compile(layer, x, target=f"cuda:{arch}", dtype=dtype)
    assert ("ptx" if dtype == "tf32" else WMMA) in found.script
    for kernel in found.manifest["kernels"]:
        assert kernel["spill_stores"] == kernel["spill_loads"] == 0, kernel
        assert kernel["registers"] <= 200 and kernel["shared"] <= 48 << 10, kernel


def test_results_in_another_order_are_scheduled_too():
    """Heads are split, as attention reads its projections."""
    x, w = te.placeholder((96, 64), "float16", "x"), te.placeholder((64, 128), "float16", "w")
    r = te.reduce_axis((0, 64), "r")

    def element(i, j):
        return te.sum(tirx.Cast("float32", x[i, r]) * tirx.Cast("float32", w[r, j]), axis=r)

    y = te.compute((96, 128), element, "y")
    heads = te.compute((4, 96, 32), lambda h, i, d: tirx.Cast("float16", y[i, h * 32 + d]), "heads")
    function = te.create_prim_func([x, w, heads])
    assert isinstance(function, PrimFunc) and fragments(scheduled(function)) == {(16, 16, 16)}


@pytest.mark.parametrize("dtype", ["tf32", "float16", "bfloat16"])
def test_attention_is_one_kernel_in_every_precision(dtype):
    """Its scores are not in memory, and the matmuls around it take narrow operands."""
    x = Tensor(np.zeros((2, 40, 64), np.float32), requires_grad=False)
    graph = trace(nn.AttentionLayer(64, num_head=4, dim_head=16).eval(), x)
    target = resolve("cuda:sm_90").to_tvm()
    module = lowering.lower(graph, target, "tuned", precision=dtype)
    functions = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    shapes = [tuple(map(int, buffer.shape)) for each in functions for buffer in each.params]
    scores = [shape for shape in shapes if shape[-2:] == (40, 40) and len(shape) > 2]
    assert (40, 40) in shapes and not scores, "the mask alone"
    assert any("attention" in name.name_hint for name in module.get_global_vars())
    assert any(tensor_core(function, target) is not None for function in functions)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_tile_takes_the_shared_memory_that_is_counted(dtype, turned):
    """That is strips, sums, and what keeps the rows of each in different banks."""
    target, function = resolve("cuda:sm_90").to_tvm(), dense(40, 300, 300, dtype, turned)
    found, instructions = _taken(function, target)
    for tile in warp_tiles(function, target)[::5]:
        lowered = lowered_loops(tensor_core(function, target, tile).mod["main"], target)
        buffers = [each.buffer for each in nodes_in(lowered.body, tirx.AllocBuffer)]
        shared = [buffer for buffer in buffers if buffer.scope() == "shared"]
        taken = sum(
            math.prod(map(int, each.shape)) * item_bytes(str(each.dtype)) for each in shared
        )
        assert taken == _shared_bytes(found, instructions, tile) <= 48 << 10


@needs_nvcc
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(300, 300, 300), (256, 512, 512)])
def test_tiles_stay_below_48_kB(shape, dtype, tmp_path):
    """This holds also where sums of several fragments meet and where no tile is whole."""
    target = resolve("cuda:sm_90").to_tvm()
    module = tvm.IRModule({"main": scheduled(dense(*shape, dtype)).mod["main"]})
    assert "partial" in str(module.script())
    (kernel,) = library.write(module, target, tmp_path / "kernel.so")
    assert kernel.shared <= 48 << 10 and kernel.spill_stores == 0
