"""What the numbers of a file may ask for: refused before it is allocated, by every operator."""

from __future__ import annotations

import resource

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.conversion import budget
from needle.errors import ModelError, UnsupportedError

from . import peers
from .one_node import by_needle, by_onnxruntime, model_of
from .test_control import node

pytest.importorskip("onnx")

X = np.ones((1, 1, 4, 4), "float32")
SHAPE = np.array([1, 1, 1 << 20, 1 << 20])
PADS = np.array([0, 0, 0, 0, 0, 0, 1 << 30, 1 << 30])
ML, INTS, F32 = "ai.onnx.ml", np.array, "float32"
_TREE = {
    "nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_modes": ["LEAF"],
    "nodes_values": [0.0], "nodes_truenodeids": [0], "nodes_falsenodeids": [0],
    "target_treeids": [0], "target_nodeids": [0], "target_ids": [0], "target_weights": [1.0],
    "n_targets": 1 << 40,
}  # fmt: skip

# Operator, inputs, attributes, opset, domain and dtype of the result.
CASES = [
    ("ConstantOfShape", (SHAPE,), {}, 21),
    ("Expand", (X, SHAPE), {}, 21),
    ("Tile", (X, SHAPE), {}, 21),
    ("Range", (INTS(0), INTS(1 << 40), INTS(1)), {}, 21),
    ("Range", (INTS(0.0), INTS(1.0), INTS(1e-12)), {}, 21),
    ("Resize", (X, None, INTS([1, 1, 1e9, 1], F32)), {}, 21),
    ("Resize", (X, None, INTS([1, 1, 1, 1e9], F32)), {"mode": "cubic"}, 21),
    ("Resize", (X, None, None, INTS([1, 1, 4, 1 << 40])), {"mode": "linear"}, 21),
    ("Resize", (X, INTS([1, 1, 3e4, 3e4], F32)), {}, 10),
    ("Upsample", (X, INTS([1, 1, 1e9, 1], F32)), {}, 9),
    ("Pad", (X, PADS), {}, 21),
    ("Pad", (X, PADS), {"mode": "edge"}, 21),
    ("CenterCropPad", (X, SHAPE), {}, 21),
    ("OneHot", (INTS([1]), INTS(1 << 40), INTS([0.0, 1.0])), {}, 21),
    ("AffineGrid", (np.ones((1, 2, 3), F32), SHAPE), {}, 21),
    ("Conv", (X, X), {"pads": [0, 0, 1 << 30, 1 << 30]}, 21),
    ("ConvTranspose", (X, X), {"strides": [1 << 30, 1 << 30]}, 21),
    ("ConvTranspose", (X, X), {"output_padding": [1 << 30, 0], "strides": [1 << 31, 1]}, 21),
    ("MaxPool", (X,), {"kernel_shape": [2, 2], "pads": [0, 0, 1 << 30, 1 << 30]}, 21),
    ("AveragePool", (X,), {"kernel_shape": [2, 2], "pads": [0, 0, 1 << 30, 1 << 30]}, 21),
    ("MaxUnpool", (X, np.zeros(X.shape, "int64")), {"kernel_shape": [1 << 20] * 2}, 21),
    ("MaxUnpool", (X, np.zeros(X.shape, "int64"), SHAPE), {"kernel_shape": [2, 2]}, 21),
    ("Col2Im", (np.ones((1, 4, 9), F32), INTS([1 << 20] * 2), INTS([2, 2])), {}, 21),
    ("RoiAlign", (X, X[0, 0, :1], INTS([0])), {"output_height": 1 << 31}, 21),
    ("RoiAlign", (X, X[0, 0, :1], INTS([0])), {"sampling_ratio": 1 << 31}, 21),
    ("MaxRoiPool", (X, np.ones((1, 5), F32)), {"pooled_shape": [1 << 20, 1 << 20]}, 21),
    ("DFT", (np.ones((1, 4, 1), F32), INTS(1 << 40)), {}, 20),
    ("HannWindow", (INTS(1 << 40),), {}, 21),
    ("MelWeightMatrix", (*map(INTS, (1 << 20, 1 << 20, 8000)), *INTS([0, 4e3], F32)), {}, 21),
    ("STFT", (np.ones((1, 60000, 1), F32), INTS(1), None, INTS(8192)), {}, 21),
    ("TreeEnsembleRegressor", (X[0, 0],), _TREE, 3, ML),
    ("DequantizeLinear", (np.ones((4, 2), "int8"), np.ones((4, 1), F32), np.zeros((4, 1), "int8")),
     {"axis": 1, "block_size": 1 << 40}, 21),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_number_of_a_file_asks_for_too_much(case):
    """The peak of this process's memory grows by less than 64 MB."""
    op_type, inputs, attributes, opset, *domain = case
    model = model_of(op_type, inputs, attributes, opset, 1, *domain, dtypes=[F32])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asked = rf"node 'it' \((ai.onnx.ml.)?{op_type}\): it asks for .* budget .* {1 << 28} elements"
    for known in ((), range(len(inputs))):
        with pytest.raises(ModelError, match=asked):
            by_needle(model, inputs, known)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16


def test_a_number_of_results():
    """onnx itself would make a list of them for shape inference."""
    split = node("Split", "x", "y", num_outputs=1 << 40, axis=0)
    with pytest.raises(ModelError, match=f"num_outputs is {1 << 40}, but it has 1 output"):
        peers.by_needle(peers.model_of([split], {"x": X}, ["y"]), {"x": X})


def test_constants_that_grow_from_node_to_node():
    """Each node doubles what the one before it made."""
    from onnx import helper, numpy_helper

    nodes = [helper.make_node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=0) for i in range(40)]
    nodes.append(helper.make_node("Add", ["x", "v40"], ["y"]))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "doubling", [info("x", 7, [1])], [info("y", 7, None)],
        [numpy_helper.from_array(np.ones(1 << 12, "int64"), "v0")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MOST_ELEMENTS", 1 << 20)
        with pytest.raises(UnsupportedError, match=r"constants computed .* elements"):
            needle.onnx.load(model)


def test_a_large_input_may_become_64_times_as_large():
    """And what the nodes before have made does not count as input."""
    from needle.trace import trace

    def traced(scale, *nodes):
        scales = {"by": np.array([1, scale], F32)}
        outputs = [nodes[-1].output[0]]
        model = peers.model_of(nodes, {"x": np.ones((2, 8), F32)}, outputs, scales, free=True)
        return trace(needle.onnx.load(model), ndl.zeros(1 << 10, 1 << 13)).outputs[0].spec.shape

    first, second = node("Resize", "x - by", "z"), node("Resize", "z - by", "y")
    assert traced(64, first) == (1 << 10, 1 << 19)
    with pytest.raises(UnsupportedError, match=r"Resize_0.*64 times the elements of the inputs"):
        traced(65, first)
    with pytest.raises(UnsupportedError, match=r"Resize_1.*64 times the elements of the inputs"):
        traced(9, first, second)


def test_a_window_beyond_all_channels():
    """As much work as there are channels, whatever the file says."""
    pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).random((2, 5, 3, 1), F32)
    for size in (3, 9, 11, 13, 1001):
        model = model_of("LRN", (x,), {"size": size, "alpha": 0.3}, 13)
        np.testing.assert_allclose(by_needle(model, (x,))[0], by_onnxruntime(model, (x,))[0], 1e-6)
    huge = model_of("LRN", (x,), {"size": (1 << 40) + 1, "alpha": 0.3}, 13)
    np.testing.assert_allclose(by_needle(huge, (x,))[0], x, 1e-6)


def test_the_budget_is_no_less_than_it_says():
    """One axis of a tensor of the largest size, in a trace, which allocates nothing."""
    from needle.trace import trace

    for asked, fits in ((1 << 28, True), ((1 << 28) + 1, False)):
        model = model_of("Expand", (X[0, 0, 0, :1], INTS([asked])), {}, 21)
        module = needle.onnx.load(model, fixed={"x1": INTS([asked])})
        if fits:
            assert trace(module, ndl.Tensor(np.ones(1, F32))).outputs[0].spec.shape == (asked,)
        else:
            with pytest.raises(UnsupportedError, match="budget"):
                trace(module, ndl.Tensor(np.ones(1, F32)))
