"""`compile_onnx`: names, sizes, examples, errors, and results beside ONNX Runtime's."""

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle_runtime.errors import UsageError

onnx = pytest.importorskip("onnx")
from onnx import helper  # noqa: E402

from tests.needle.onnx import node_cases  # noqa: E402
from tests.needle.onnx.mutation import dense, image, model, sizes  # noqa: E402
from tests.needle.onnx.operators import OPSETS, joined  # noqa: E402


def runtime_outputs(proto, given):
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(proto.SerializeToString()).run(None, given)


def test_open_sizes_names_and_weights(tmp_path):
    path = tmp_path / "m.onnx"
    proto = dense()
    path.write_bytes(proto.SerializeToString())
    rng = np.random.default_rng(0)
    exe = needle_tvm.compile_onnx(path, dims={"n": ndl.Dim("n", max=16)})
    exe.export(tmp_path / "out")
    loaded = needle_tvm.load(tmp_path / "out")
    for rows in (1, 5, 16):
        x = rng.standard_normal((rows, 8)).astype("float32")
        (expected,) = runtime_outputs(proto, {"x": x})
        for found in (exe(x), exe(x=x), loaded(x)):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert [each["name"] for each in exe.program.params] == ["w", "b"]
    assert [each["name"] for each in exe.program.outputs] == ["y"]
    exe.set_params({"w": np.zeros((8, 6), "float32"), "b": np.zeros(6, "float32")})
    np.testing.assert_allclose(exe(x).numpy(), 0.5)


def test_examples_are_drawn_from_declared_shapes():
    proto = image()
    exe = needle_tvm.compile_onnx(proto)
    assert exe.program.inputs[0]["shape"] == [1, 2, 9, 8]
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 8)).astype("float32")
    (expected,) = runtime_outputs(proto, {"x": x})
    np.testing.assert_allclose(exe(x).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_several_outputs_integers_and_examples_by_name():
    proto, i = sizes(), np.array([[0, 1, 4, 2], [3, 3, 0, 1]])
    exe = needle_tvm.compile_onnx(proto, {"i": i})
    found = exe(i)
    expected = runtime_outputs(proto, {"i": i})
    assert isinstance(found, tuple)
    for have, want in zip(found, expected, strict=True):
        assert have.dtype == want.dtype.name
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("opset", OPSETS)
def test_operators_compiled(opset):
    proto, given = joined(opset)
    found = needle_tvm.compile_onnx(proto)(**given)
    found = found if isinstance(found, tuple) else (found,)
    for have, want in zip(found, runtime_outputs(proto, given), strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_no_node_case_of_onnx_is_wrong_compiled():
    verdicts = [node_cases.judged(case, compiled=True) for case in node_cases.cases()]
    assert not [each for each in verdicts if each.verdict == node_cases.WRONG]


@pytest.mark.parametrize(
    ("inputs", "choices", "text"),
    [
        ((), {}, r"input 'x' has no size for axis 0 \('n'\): give an example"),
        ((np.zeros((2, 7), "float32"),), {}, r"input 'x' has the shape \(2, 7\); .* \[n, 8\]"),
        (({"z": 0},), {}, "'z' is not an input; they are x"),
        ((np.zeros((2, 8)), 1), {}, "2 inputs are given; the model has x"),
        (
            (),
            {"dims": {"m": ndl.Dim("m", max=3)}},
            "'m' is neither an input nor a size; they are x",
        ),
        ((), {"dims": {"x": 3}}, "must be a dict from axes to dims, or a Dim"),
        ((), {"fixed": {"z": 0}}, "fixed: 'z' is not an input; they are x"),
    ],
)
def test_examples_and_dims_that_do_not_fit(inputs, choices, text):
    with pytest.raises(UsageError, match=text):
        needle_tvm.compile_onnx(dense(), *inputs, **choices)


def test_models_that_cannot_be_compiled_are_a_usage_error(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"m\.onnx is not an ONNX file"):
        needle_tvm.compile_onnx(tmp_path / "m.onnx")
    proto = model(
        [helper.make_node("NonZero", ["x"], ["y"])], [("x", 1, [3])], [("y", 7, None)], {}
    )
    with pytest.raises(UsageError, match="the shape of its result depends on values"):
        needle_tvm.compile_onnx(proto)
