"""ONNX models that cannot run, and texts in them, are errors of one printable sentence."""

import numpy as np
import pytest

import needle.onnx
import needle_tvm
from needle.errors import ModelError
from needle_runtime.errors import UsageError

onnx = pytest.importorskip("onnx")
HUGE = (2**40, 2**40)


def model(operator, shape, initializers=(), inputs=("x",)):
    node = onnx.helper.make_node(operator, [*inputs], ["y"])
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers],
    )
    opset = onnx.helper.make_opsetid("", 18)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (model("Relu", HUGE), "input 'x' has the shape .* give an example"),
        (
            model("Gather", (2,), [("i", np.array([7]))], ("x", "i")),
            "the model fails on its inputs: .*index 7 is out of bounds for an axis of extent 2",
        ),
        (model("Re\x1b[31mlu", (2,)), r"not valid ONNX: .*Re\\x1b\[31mlu"),
    ],
    ids=["a huge input", "an index", "an escape"],
)
def test_what_cannot_run_is_one_sentence(proto, words):
    with pytest.raises(UsageError, match=words) as caught:
        needle_tvm.compile_onnx(proto, stage="noopt")
    assert str(caught.value).isprintable()


def test_a_models_text_is_escaped_in_needles_errors_too():
    with pytest.raises(ModelError) as caught:
        needle.onnx.load(model("Re\x1b]0;title\x07lu", (2,)))
    assert str(caught.value).isprintable() and "\\x1b]0;title" in str(caught.value)
