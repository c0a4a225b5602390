"""Schedules by the rules for GPUs. test_emulated_gpu.py checks their results."""

from itertools import chain

import numpy as np
import pytest

import needle_tvm
from needle import Tensor, nn, ops
from needle.trace import trace
from needle_tvm._tvm.names import te, tirx, topi, tvm
from needle_tvm.frontend import lowering
from needle_tvm.kernels import gpu
from needle_tvm.kernels.conv.gpu import per_result
from needle_tvm.kernels.dense.gpu import product as gpu_product
from needle_tvm.kernels.dense.gpu import tiles as gpu_tiles
from needle_tvm.kernels.dense.gpu.few_rows import narrow
from needle_tvm.kernels.recurrence.gpu.steps import steps_threads
from needle_tvm.kernels.reduce.gpu.shared_reductions import shared_reductions
from needle_tvm.lower import build, pipeline
from needle_tvm.stages import STAGES
from needle_tvm.target import nvcc
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import NODES, nodes_in, prim_funcs

TARGET = resolve("cuda:sm_90").to_tvm()


def dense(rows, terms, columns, dtype="float32"):
    x = te.placeholder((rows, terms), dtype, "x")
    w = te.placeholder((terms, columns), dtype, "w")
    r = te.reduce_axis((0, terms), "r")
    y = te.compute((rows, columns), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "y")
    return te.create_prim_func([x, w, topi.nn.relu(y)])


def extents(function):
    """Extents of the grid and of thread blocks, by name."""
    return {
        str(loop.thread_binding.thread_tag): int(loop.extent)
        for loop in nodes_in(function.body, NODES.loop)
        if loop.kind == tirx.ForKind.THREAD_BINDING
    }


@pytest.mark.parametrize(
    ("columns", "lanes"), [(8, 8), (512, 8), (1024, 8), (2048, 16), (4096, 32), (8192, 32)]
)
def test_columns_are_cut_until_there_are_enough_blocks(columns, lanes):
    found = narrow(dense(8, 512, columns), TARGET).mod["main"]
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
    assert narrow(function, TARGET) is None


def test_a_weight_of_each_row_is_none_that_rows_share():
    x, w = te.placeholder((4, 256), "float32", "x"), te.placeholder((4, 256, 64), "float32", "w")
    r = te.reduce_axis((0, 256), "r")
    y = te.compute((4, 64), lambda i, j: te.sum(x[i, r] * w[i, r, j], axis=r), "y")
    assert narrow(te.create_prim_func([x, w, y]), TARGET) is None


def reduced(shape, axes, op=topi.max, follow=None, dtype="float32"):
    x = te.placeholder(shape, dtype, "x")
    y = op(x, axes, keepdims=True)
    return te.create_prim_func([x, y if follow is None else follow(x, y)])


def softmax_along(shape, axis):
    return te.create_prim_func(
        [x := te.placeholder(shape, "float32", "x"), topi.nn.softmax(x, axis)]
    )


# Rows, terms per row, threads per row (x) and rows per block (y).
@pytest.mark.parametrize(
    ("rows", "terms", "x", "y"),
    [
        (4096, 1024, 32, 8),
        (4096, 1025, 64, 4),
        (1024, 64, 32, 8),
        (256, 64, 32, 2),
        (255, 64, 32, 1),
        (128, 4096, 256, 1),
        (2, 100_000, 1024, 1),
    ],
)
def test_a_row_has_as_many_warps_as_leave_each_thread_a_few_terms(rows, terms, x, y):
    for function in (reduced((rows, terms), -1), softmax_along((rows, terms), -1)):
        found = extents(shared_reductions(function, TARGET).mod["main"])
        assert found == {"blockIdx.x": rows // y, "threadIdx.x": x, "threadIdx.y": y}


def test_neighbouring_rows_are_read_by_neighbouring_threads():
    found = extents(shared_reductions(reduced((300, 64), 0), TARGET).mod["main"])
    assert found == {"blockIdx.x": 2, "threadIdx.x": 32, "threadIdx.y": 8}
    assert shared_reductions(reduced((300, 60), 0), TARGET) is None  # not whole warps
    assert shared_reductions(reduced((300, 1 << 16), 0), TARGET) is None  # enough rows already


def test_what_is_read_twice_lies_in_shared_memory_where_there_is_room():
    def staged(terms):
        found = shared_reductions(softmax_along((64, terms), -1), TARGET).mod["main"]
        buffers = chain(*(sblock.alloc_buffers for sblock in nodes_in(found.body, NODES.sblock)))
        return [int(each.shape[1]) for each in buffers if len(each.shape) == 2]

    assert staged(6000) == [6000]
    assert staged(7000) == []


@pytest.mark.parametrize(
    "function",
    [
        dense(64, 512, 64),
        reduced((64, 16), -1),
        reduced((8, 64, 64), (1, 2), follow=lambda x, y: topi.max(y, 0)),
        te.create_prim_func(
            [
                x := te.placeholder((1, 8, 99, 99)),
                topi.nn.pool2d(x, (7, 7), (1, 1), (1, 1), (0, 0, 0, 0), "max"),
            ]
        ),
    ],
    ids=["product", "few terms", "other rows", "windows"],
)
def test_other_reductions_are_left_to_others(function):
    assert shared_reductions(function, TARGET) is None


@pytest.mark.parametrize(
    ("batch", "hidden", "expected"),
    [
        (8, 1024, (8, 8, 8, 4)),
        (8, 512, (4, 8, 16, 4)),
        (1, 64, (2, 1, 16, 4)),
        (33, 7, (2, 11, 4, 1)),
        (1, 1, (2, 1, 1, 1)),
    ],
)
def test_a_step_of_an_lstm_has_enough_blocks_and_no_slices_without_terms(batch, hidden, expected):
    threads = steps_threads(batch, hidden, 4)
    assert (threads.units, threads.rows, threads.slices, threads.terms) == expected


def test_the_rules_have_switches():
    module = lowering.lower(
        trace(nn.Linear(512, 512).eval(), Tensor(np.zeros((8, 512), np.float32))), TARGET, "tuned"
    )
    switched = ((), ("narrow",), ("narrow", "tiled"))
    scripts = {gpu.schedule(module.clone(), TARGET, off).script() for off in switched}
    assert len(scripts) == len(switched)
    assert set(gpu.names()) <= set(pipeline.switches("tuned", "cuda"))


def test_a_convolution_is_a_product_of_windows():
    model = nn.Sequential(nn.Conv(16, 24, 3, stride=2), nn.ReLU()).eval()
    x = Tensor(np.zeros((4, 16, 10, 10), np.float32))
    found = [
        product
        for function in prim_funcs(lowering.lower(trace(model, x), TARGET, "tuned")).values()
        if (product := gpu_product.find(function)) is not None
    ]
    assert [(p.batches, p.rows, p.columns, p.terms) for p in found] == [
        (1, 4 * 5 * 5, 24, 3 * 3 * 16)
    ]


def row_maxima():
    x = te.placeholder((64, 64), "float32", "x")
    r = te.reduce_axis((0, 64), "r")
    return te.create_prim_func([x, te.compute((64,), lambda i: te.max(x[i, r], axis=r), "y")])


def row_sums():
    x = te.placeholder((64, 64), "float32", "x")
    r = te.reduce_axis((0, 64), "r")
    return te.create_prim_func([x, te.compute((64,), lambda i: te.sum(x[i, r], axis=r), "y")])


def softmax():
    x = te.placeholder((64, 64), "float32", "x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


@pytest.mark.parametrize("function", [row_maxima(), row_sums(), softmax()])
def test_other_reductions_are_no_products(function):
    assert gpu_product.find(function) is None


SIZES = [(8, 64, 64), (64, 512, 512), (80, 256, 768), (2560, 512, 512), (4096, 4096, 4096)]


@pytest.mark.parametrize(("rows", "terms", "columns"), SIZES)
def test_tiles_keep_to_the_limits_of_a_block(rows, terms, columns):
    product = gpu_product.find(dense(rows, terms, columns))
    found = list(gpu_tiles.candidates(product))
    assert found
    for tile in found:
        threads = tile.threads * tile.slices
        assert threads % 32 == 0 and threads <= 1024
        assert tile.shared_bytes <= 48 << 10
        assert threads * tile.registers <= 65536 and tile.registers < 255


def test_few_results_get_many_blocks_and_many_results_large_tiles():
    def chosen(*sizes):
        product = gpu_product.find(dense(*sizes))
        return min(gpu_tiles.candidates(product), key=lambda tile: gpu_tiles.cycles(product, tile))

    few, many = chosen(64, 512, 512), chosen(4096, 4096, 4096)
    assert 64 * 512 // (few.rows * few.columns) >= 64 and few.slices > 1
    assert many.own_rows * many.own_columns >= 32


@pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
@pytest.mark.parametrize("sizes", [(64, 512, 512), (80, 256, 768), (2560, 512, 512)])
def test_a_tile_has_the_registers_and_the_memory_it_is_said_to_have(sizes):
    rows, terms, columns = sizes
    product = gpu_product.find(dense(*sizes))
    tile = min(gpu_tiles.candidates(product), key=lambda tile: gpu_tiles.cycles(product, tile))
    layer = nn.Sequential(nn.Linear(terms, columns), nn.ReLU()).eval()
    found = needle_tvm.compile(layer, np.zeros((rows, terms), np.float32), target="cuda:sm_90")
    (kernel,) = found.manifest["kernels"]
    assert kernel["spill_stores"] == 0 and kernel["shared"] <= tile.shared_bytes
    assert kernel["registers"] <= 1.25 * tile.registers  # addresses may take some more


def test_a_pool_has_a_thread_for_each_result():
    x = te.placeholder((4, 16, 16, 16), "float32", "x")
    pool = topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max")
    found = per_result(te.create_prim_func([x, topi.nn.relu(pool)]), TARGET).mod["main"]
    assert extents(found) == {"blockIdx.x": 4 * 16 * 8 * 8 // 128, "threadIdx.x": 128}
    assert per_result(row_sums(), TARGET) is None  # 64 results cannot keep a GPU busy


@pytest.mark.parametrize("stage", STAGES)
def test_an_empty_result_launches_nothing(stage):
    x = Tensor(np.zeros((0, 5), np.float32))
    graph = trace(nn.Sequential(nn.Linear(5, 3), nn.ReLU()).eval(), x)
    module = build.schedule(lowering.lower(graph, TARGET, stage), TARGET, stage)
    for function in prim_funcs(module).values():
        assert 0 not in extents(function).values()


@pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
def test_a_thread_of_the_mlp_has_its_sums_in_registers():
    layers = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval()
    found = needle_tvm.compile(layers, np.zeros((16, 512), np.float32), target="cuda:sm_90")
    (kernel,) = found.manifest["kernels"]
    assert kernel["spill_stores"] == 0 and kernel["registers"] <= 64
    assert kernel["shared"] == 4 * 32 * 16 * 8  # a float of each slice, row and column


def test_a_permutation_of_axes_of_one_element_is_a_view():
    """Channels last and back needs no kernel for an image of one pixel."""

    def flat(x):
        return Tensor.reshape(x.transpose((1, 3)), (8, 128))

    moved = Tensor(np.zeros((8, 1, 1, 128), np.float32)), Tensor(np.zeros((8, 2, 1, 64), "f"))
    kernels = [prim_funcs(lowering.lower(trace(flat, x), TARGET, "tuned")) for x in moved]
    assert [len(functions) for functions in kernels] == [
        1,
        1,
    ]  # the copy that makes the model's result its own
    scripts = [str(next(iter(functions.values()))) for functions in kernels]
    assert "transpose" not in scripts[0] and "transpose" in scripts[1]


@pytest.mark.parametrize("stage", ["fused", "tuned"])
def test_a_cast_maximum_of_one_element_has_operands_of_one_type(stage):
    """TVM merges the initial value, the only term and the cast into one statement of two types."""
    x = Tensor(np.zeros((1, 1, 3, 3), np.float16), requires_grad=False)
    graph = trace(lambda x: ops.max_pool(x, 1), x)
    module = build.schedule(lowering.lower(graph, TARGET, stage), TARGET, stage)
    for function in prim_funcs(module).values():
        for kind in (*NODES.comparisons, *NODES.arithmetic):
            assert all(node.a.ty == node.b.ty for node in nodes_in(function, kind))
        for node in nodes_in(function, NODES.select):
            assert node.true_value.ty == node.false_value.ty


def test_a_reduction_of_two_results_is_no_product():
    """argmax, which writes an index and a value at once, is left to dlight."""
    x = te.placeholder((4, 10), "float32", "x")
    module = gpu.prepared(tvm.IRModule({"main": te.create_prim_func([x, topi.argmax(x, 1)])}))
    with TARGET:
        scheduled = gpu.schedule_function(module["main"], TARGET)
    assert gpu_product.find(module["main"]) is None
    assert "threadIdx.x" in str(scheduled.script())
