"""ONNX models as needle Modules: names, weights, fixed inputs, known sizes and what is refused."""

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.errors import ModelError, TraceError, UnsupportedError
from needle.trace import trace

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.needle.onnx.mutation import MODELS, dense, image, model, sizes  # noqa: E402


def arrays(proto):
    """An input for each of a model's, with 3 for open sizes."""
    rng = np.random.default_rng(1)
    made = {}
    for info in proto.graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value or 3 for d in kind.shape.dim]
        floats = rng.standard_normal(shape).astype("float32")
        made[info.name] = floats if kind.elem_type == 1 else rng.integers(0, 2, shape)
    return made


def outputs(module, *args, **named):
    found = module(*args, **named)
    return [x.numpy() for x in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("make", MODELS)
def test_outputs_are_those_of_onnx_own_evaluator(make):
    proto, given = make(), arrays(make())
    found = outputs(needle.onnx.load(proto), **given)
    for have, expected in zip(found, ReferenceEvaluator(proto).run(None, given), strict=True):
        assert have.dtype == expected.dtype
        np.testing.assert_allclose(have, expected, rtol=1e-5, atol=1e-6)


def test_weights_have_their_onnx_names_and_learn():
    module = needle.onnx.load(dense())
    assert [name for name, _ in module.named_parameters()] == ["w", "b"]
    x = arrays(dense())["x"]
    before = outputs(module, x)[0]
    (module(ndl.Tensor(x)) ** 2).sum().backward()
    for parameter in module.parameters():
        assert np.abs(parameter.grad.numpy()).max() > 0
    module.load_state_dict({"w": np.zeros((8, 6), "float32"), "b": np.zeros(6, "float32")})
    after = outputs(module, x)[0]
    assert np.abs(before - after).max() > 1e-3
    np.testing.assert_allclose(after, 0.5)


def test_the_graph_decides_names_and_order_of_inputs_and_outputs():
    nodes = [helper.make_node("Sub", ["a.1", "training"], ["out/0"])]
    inputs = [("a.1", 1, [2]), ("training", 1, [2])]
    module = needle.onnx.load(model(nodes, inputs, [("out/0", 1, [2])], {}))
    graph = trace(module, np.ones(2, "float32"), np.zeros(2, "float32"))
    assert [leaf.name for leaf in graph.inputs] == ["a.1", "training"]
    assert graph.output_names == ("out/0",)
    named = {"training": np.full(2, 5, "float32"), "a.1": np.full(2, 7, "float32")}
    assert outputs(module, **named)[0].tolist() == [2, 2]
    with pytest.raises(TypeError, match=r"argument: 'a\.1'"):
        module(b=1)


def test_a_weight_may_have_the_name_of_an_attribute():
    nodes = [helper.make_node("Add", ["x", "training"], ["y"])]
    weights = {"training": np.ones(2, "float32")}
    module = needle.onnx.load(model(nodes, [("x", 1, [2])], [("y", 1, [2])], weights))
    assert outputs(module, np.zeros(2, "float32"))[0].tolist() == [1, 1]
    assert module.training is False


def test_fixed_inputs_decide_shapes():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    proto = model(nodes, [("x", 1, [6]), ("shape", 7, [2])], [("y", 1, None)], {})
    x = np.arange(6, dtype="float32")
    with pytest.raises(UnsupportedError, match=r"'Reshape_0' .*the shape depends on .* fixed="):
        trace(needle.onnx.load(proto), x, np.array([2, 3]))
    module = needle.onnx.load(proto, fixed={"shape": np.array([2, 3])})
    assert outputs(module, x)[0].shape == (2, 3)
    with pytest.raises(ModelError, match="'z' is not an input; they are x, shape"):
        needle.onnx.load(proto, fixed={"z": 1})


def test_sizes_are_known_while_tracing_also_as_expressions():
    n = ndl.Dim("n", min=2, max=9)
    module = needle.onnx.load(sizes())
    graph = trace(module, np.zeros((2, 4), "int64"), dims={"i": {1: n}})
    shapes = [node.spec.shape for node in graph.outputs]
    assert shapes == [(6, n), (2, 2), (2, 2), (2 * n,)]


def test_all_operators_that_are_missing_are_named_at_once():
    nodes = [
        helper.make_node("Nothing", ["x"], ["a"], domain="com.example", name="first"),
        helper.make_node("Nothing", ["a"], ["b"], domain="com.example", name="second"),
        helper.make_node("Less", ["b"], ["y"], domain="com.example", name="third"),
    ]
    proto = model(nodes, [("x", 1, [2])], [("y", 1, [2])], {})
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedError) as caught:
        needle.onnx.load(proto)
    text = str(caught.value)
    assert "com.example.Nothing (opset 1): 2 ('first')" in text
    assert "com.example.Less (opset 1): 1 ('third')" in text


def test_functions_of_the_model_are_put_in_their_places():
    body = [helper.make_node("Mul", ["v", "v"], ["s"]), helper.make_node("Add", ["s", "v"], ["w"])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", ["v"], ["w"], body, imports[:1])
    twice = [helper.make_node("F", ["x"], ["h"], domain="own")]
    twice += [helper.make_node("F", ["h"], ["y"], domain="own")]
    proto = model(twice, [("x", 1, [2])], [("y", 1, [2])], {}, functions=[function])
    proto.opset_import.append(imports[1])
    assert outputs(needle.onnx.load(proto), np.array([1, 2], "float32"))[0].tolist() == [6, 42]


def test_functions_of_another_opset_are_brought_to_that_of_the_model():
    body = [helper.make_node("ReduceSum", ["v"], ["w"], axes=[0], keepdims=0)]
    imports = [helper.make_opsetid("", 11), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", ["v"], ["w"], body, imports[:1])
    node = helper.make_node("F", ["x"], ["y"], domain="own")
    proto = model([node], [("x", 1, [2, 2])], [("y", 1, [2])], {}, functions=[function])
    proto.opset_import.append(imports[1])
    x = np.array([[1, 2], [3, 4]], "float32")
    assert outputs(needle.onnx.load(proto), x)[0].tolist() == [4, 6]
    body = [helper.make_node("Upsample", ["v"], ["w"], scales=[1.0, 2.0])]  # no longer in ONNX
    function = helper.make_function("own", "F", ["v"], ["w"], body, [helper.make_opsetid("", 7)])
    proto.functions[0].CopyFrom(function)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert outputs(needle.onnx.load(proto), x)[0].tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]


def test_operators_without_a_converter_have_the_body_that_onnx_defines():
    nodes = [helper.make_node("HannWindow", ["n"], ["y"])]
    proto = model(nodes, [("x", 1, [1])], [("y", 1, None)], {"n": np.array(6)})
    found = outputs(needle.onnx.load(proto), np.zeros(1, "float32"))[0]
    np.testing.assert_allclose(found, np.hanning(7)[:6], atol=1e-6)


def test_weights_in_files_beside_the_model(tmp_path):
    proto, x = dense(), arrays(dense())["x"]
    expected = outputs(needle.onnx.load(proto), x)[0]
    path = tmp_path / "m.onnx"
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save_model(proto, path, **options)
    np.testing.assert_array_equal(outputs(needle.onnx.load(path), x)[0], expected)


def test_values_that_a_call_decides_are_refused_in_words():
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name="where")]
    module = needle.onnx.load(model(nodes, [("x", 1, [3])], [("y", 7, None)], {}))
    x = np.array([0, 2, 3], "float32")
    assert outputs(module, x)[0].tolist() == [[1, 2]]
    with pytest.raises(UnsupportedError, match=r"'where' .*the shape of its result depends"):
        trace(module, x)
    nodes = [helper.make_node("RandomNormal", [], ["y"], shape=[2])]
    with pytest.raises(UnsupportedError, match="it draws random numbers"):
        needle.onnx.load(model(nodes, [], [("y", 1, [2])], {}))()


def test_an_operator_that_a_trace_cannot_size_names_its_node():
    nodes = [helper.make_node("Add", ["x", "x"], ["y"], name="sum")]
    module = needle.onnx.load(model(nodes, [("x", 1, ["a", "b"])], [("y", 1, None)], {}))
    n = ndl.Dim("n", max=4)
    assert (
        trace(module, np.ones((2, 3), "float32"), dims={"x": {0: n}}).outputs[0].spec.shape[0] == n
    )
    nodes = [helper.make_node("Split", ["x"], ["y", "z"], name="parts", axis=0)]
    module = needle.onnx.load(model(nodes, [("x", 1, ["a", 3])], [("y", 1, None)], {}))
    with pytest.raises((TraceError, ModelError), match="node 'parts'"):
        trace(module, np.ones((3, 3), "float32"), dims={"x": {0: n}})


def test_constants_of_many_elements_are_weights():
    big = numpy_helper.from_array(np.ones((100, 50), "float32"), "t")
    nodes = [
        helper.make_node("Constant", [], ["big"], value=big),
        helper.make_node("MatMul", ["x", "big"], ["y"]),
    ]
    module = needle.onnx.load(model(nodes, [("x", 1, [1, 100])], [("y", 1, None)], {}))
    assert [name for name, _ in module.named_parameters()] == ["big"]
    assert outputs(module, np.ones((1, 100), "float32"))[0].tolist() == [[100.0] * 50]


def test_image_models_take_open_batches():
    n = ndl.Dim("n", max=4)
    graph = trace(needle.onnx.load(image()), np.ones((1, 2, 9, 8), "float32"), dims={0: {0: n}})
    assert graph.outputs[0].spec.shape == (n, 4)


def test_open_sizes_as_paddle_writes_them():
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    proto = model(nodes, [("x", 1, [-1, 3, "?", "?"])], [("y", 1, None)], {})
    module = needle.onnx.load(proto)
    assert module.graph_inputs[0].shape == (None, 3, None, None)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32")
    assert np.array_equal(outputs(module, x)[0], np.maximum(x, 0))
