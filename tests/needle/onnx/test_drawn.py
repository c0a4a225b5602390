"""Faults that random graphs of ONNX operators have found, beside ONNX Runtime."""

import numpy as np
import pytest

from tests.needle.onnx.one_node import by_needle, model_of
from tests.needle.onnx.peers import by_runtime

X = np.linspace(-2, 3, 24, dtype="float32").reshape(2, 3, 4)
FLAGS = np.array([[True, False, True], [False, False, True]])


def ints(*numbers):
    return np.array(numbers, "int64")


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "known", "outputs"),
    [
        # A start before the axis is its first place if steps go back.
        ("Slice", [X, ints(-9), ints(-(2**31)), ints(2), ints(-1)], {}, (1, 2, 3, 4), 1),
        ("Slice", [X, ints(-5, 9), ints(-99, -9), ints(1, 2), ints(-2, -1)], {}, (1, 2, 3, 4), 1),
        ("Compress", [X, np.array([True, False, True])], {"axis": 1}, (1,), 1),
        ("Compress", [X, FLAGS.reshape(-1)], {}, (1,), 1),
        ("Hardmax", [X[:, :, :0]], {}, (), 1),
        # Mean and deviation are float32.
        ("LayerNormalization", [X.astype("float64"), np.ones(4)], {}, (), 3),
        ("ScatterElements", [FLAGS, ints(0, 1).reshape(1, 2), FLAGS[:1, :2]],
         {"reduction": "add", "axis": 1}, (), 1),
        ("ScatterND", [FLAGS, ints(0, 0).reshape(2, 1), ~FLAGS], {"reduction": "add"}, (), 1),
    ],
)  # fmt: skip
def test_operators(op, inputs, attributes, known, outputs):
    pytest.importorskip("onnx")
    model = model_of(op, inputs, attributes, opset=18, outputs=outputs)
    wanted = by_runtime(model, {f"x{i}": x for i, x in enumerate(inputs)})
    for found, want in zip(by_needle(model, inputs, known), wanted, strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
