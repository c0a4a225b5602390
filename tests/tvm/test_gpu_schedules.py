"""What the rules for GPUs make of functions; that they compute the same is test_emulated_gpu's."""

import numpy as np
import pytest

import needle_tvm
from needle import Tensor, nn
from needle.trace import trace
from needle_tvm import build, nvcc, pipeline
from needle_tvm._tvm import NODES, Schedule, nodes_in, prim_funcs, te, tirx, topi
from needle_tvm.schedule import gpu
from needle_tvm.schedule.gpu_narrow import narrow
from needle_tvm.stages import STAGES
from needle_tvm.target import resolve

TARGET = resolve("cuda:sm_90").to_tvm()


def dense(rows, terms, columns, dtype="float32"):
    x = te.placeholder((rows, terms), dtype, "x")
    w = te.placeholder((terms, columns), dtype, "w")
    r = te.reduce_axis((0, terms), "r")
    y = te.compute((rows, columns), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "y")
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def extents(function):
    """Extents of the grid and the threads, by their names."""
    return {
        str(loop.thread_binding.thread_tag): int(loop.extent)
        for loop in nodes_in(function.body, NODES.loop)
        if loop.kind == tirx.ForKind.THREAD_BINDING
    }


@pytest.mark.parametrize(
    ("columns", "lanes"), [(8, 8), (512, 8), (1024, 8), (2048, 16), (4096, 32), (8192, 32)]
)
def test_columns_are_cut_until_there_are_enough_blocks(columns, lanes):
    found = narrow(Schedule(dense(8, 512, columns))).mod["main"]
    assert extents(found) == {
        "blockIdx.x": columns // lanes,
        "threadIdx.x": lanes,
        "threadIdx.y": 256 // lanes,
    }


@pytest.mark.parametrize(
    "function",
    [dense(17, 512, 512), dense(8, 64, 512), dense(8, 512, 4), dense(8, 512, 512, "float64")],
    ids=["rows", "terms", "columns", "dtype"],
)
def test_other_products_are_left_to_others(function):
    assert narrow(Schedule(function)) is None


def test_a_weight_of_each_row_is_none_that_rows_share():
    x, w = te.placeholder((4, 256), "float32", "x"), te.placeholder((4, 256, 64), "float32", "w")
    r = te.reduce_axis((0, 256), "r")
    y = te.compute((4, 64), lambda i, j: te.sum(x[i, r] * w[i, r, j], axis=r), "y")
    assert narrow(Schedule(te.create_prim_func([x, w, y]))) is None


def test_the_rule_has_a_switch():
    module = build.lower(
        trace(nn.Linear(512, 512).eval(), Tensor(np.zeros((8, 512), np.float32))), TARGET, "tuned"
    )
    whole, left = (gpu.schedule(module.clone(), TARGET, without) for without in ((), ("narrow",)))
    assert whole.script() != left.script()
    assert "narrow" in pipeline.switches("tuned", "cuda")


@pytest.mark.parametrize("stage", STAGES)
def test_an_empty_result_launches_nothing(stage):
    x = Tensor(np.zeros((0, 5), np.float32))
    graph = trace(nn.Sequential(nn.Linear(5, 3), nn.ReLU()).eval(), x)
    module = build.schedule(build.lower(graph, TARGET, stage), TARGET, stage)
    for function in prim_funcs(module).values():
        assert 0 not in extents(function).values()


@pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
def test_a_thread_of_the_mlp_has_its_sums_in_registers():
    layers = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval()
    found = needle_tvm.compile(layers, np.zeros((16, 512), np.float32), target="cuda:sm_90")
    (kernel,) = found.manifest["kernels"]
    assert kernel["spill_stores"] == 0 and kernel["registers"] <= 64
    assert kernel["shared"] == 4 * 32 * 16 * 8  # a float of each slice, row and column
