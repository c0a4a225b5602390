"""Quantized operators beside ONNX Runtime: equal integers, not close ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.errors import ModelError, UnsupportedError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from . import peers
from .one_node import by_needle, by_onnxruntime, by_reference, compiled, model_of

_MS = "com.microsoft"


def _whole(rng, dtype, *shape):
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def _scale(rng, *shape):
    return np.asarray(rng.choice([0.5, 0.25, 0.013, 0.1, 0.03, 0.3], shape), "float32")


def _equal(op_type, inputs, attributes, opset, dtypes, domain="", judge=by_onnxruntime, off=0):
    """Compares with scales and zero points known while tracing, and given by a call."""
    model = model_of(op_type, inputs, attributes, opset, len(dtypes), domain, dtypes)
    expected = judge(model, inputs)
    small = [i for i, x in enumerate(inputs) if i and x is not None and x.size < 8]
    for known in ((), small):
        for found, right in zip(by_needle(model, inputs, known), expected, strict=True):
            assert (found.dtype, found.shape) == (right.dtype, right.shape), op_type
            if found.dtype.kind == "f":
                np.testing.assert_allclose(found, right, 1e-5, 1e-5, err_msg=op_type)
            else:
                distance = np.abs(found.astype("int64") - right.astype("int64"))
                assert distance.max(initial=0) <= off, f"{op_type} {attributes} {dtypes}"


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_quantize_and_back(dtype):
    """All of a tensor, along an axis, and in blocks; halves are rounded to even."""
    rng = np.random.default_rng(0)
    opset = 13 if "8" in dtype else 21
    x = (rng.integers(-400, 400, (3, 4, 5)) * 0.25).astype("float32")
    y = _whole(rng, dtype, 3, 4, 5)
    for shape, attributes in (((), {}), ((4,), {"axis": 1}), ((5,), {"axis": -1})):
        few = _scale(rng, *shape), _whole(rng, dtype, *shape)
        _equal("QuantizeLinear", (x, *few), attributes, opset, [dtype])
        _equal("DequantizeLinear", (y, *few), attributes, opset, ["float32"])
    for size, block in ((2, 2), (2, 3)):
        few = _scale(rng, 3, size, 5), _whole(rng, dtype, 3, size, 5)
        attributes = {"axis": 1, "block_size": block}
        _equal("QuantizeLinear", (x, *few), attributes, 21, [dtype])
        _equal("DequantizeLinear", (y, *few), attributes, 21, ["float32"])


def test_other_dtypes_of_quantize_and_back():
    rng = np.random.default_rng(0)
    half, scale = rng.standard_normal(40).astype("float16"), np.array(0.013, "float16")
    inputs = half, scale, np.array(3, "int8")
    _equal("QuantizeLinear", inputs, {}, 21, ["int8"], judge=by_reference)
    inputs = _whole(rng, "int8", 40), scale, np.array(3, "int8")
    _equal("DequantizeLinear", inputs, {}, 21, ["float16"])
    _equal("DequantizeLinear", (_whole(rng, "int32", 9), _scale(rng)), {}, 13, ["float32"])
    _equal("QuantizeLinear", (half.astype("float32"), _scale(rng)), {}, 13, ["uint8"])
    inputs = (half.astype("float32"), _scale(rng))
    _equal("QuantizeLinear", inputs, {"output_dtype": 5}, 21, ["int16"])
    made = ["uint8", "float32", "uint8"]
    for x in (10 * rng.standard_normal((3, 9)), np.zeros(3), rng.random(9) + 1):
        _equal("DynamicQuantizeLinear", (x.astype("float32"),), {}, 11, made)


_BITS = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}


def _packed(rng, dtype, *shape):
    low, high = _BITS[dtype]
    return rng.integers(low, high + 1, shape).astype(getattr(ml_dtypes, dtype))


def _dequantized(dtype, scale_shape, attributes, opset=21):
    """A model whose weight (6, 8) is dequantized and added to its input, and the weight's array."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    held = {
        "w": _packed(rng, dtype, 6, 8),
        "s": rng.random(scale_shape, "float32"),
        "z": _packed(rng, dtype, *scale_shape),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], **attributes),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, [6, 8])], [info("y", 1, [6, 8])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


_ARRANGED = [
    ((), {}),
    ((6,), {"axis": 0}),
    ((6, 2), {"axis": 1, "block_size": 4}),
    ((6, 3), {"axis": 1, "block_size": 3}),
    ((2, 8), {"axis": -2, "block_size": 3}),
]


@pytest.mark.parametrize("dtype", _BITS)
@pytest.mark.parametrize("shape, attributes", _ARRANGED)
def test_weights_of_few_bits(dtype, shape, attributes, tmp_path):
    """In the file and in another one; ONNX Runtime, onnx's evaluator for 2 bits."""
    import onnx

    model = _dequantized(dtype, shape, attributes, 21 if "4" in dtype else 25)
    x = np.random.default_rng(1).random((6, 8), "float32")
    if "4" in dtype:
        right = peers.by_runtime(model, {"x": x})[0]
    else:
        right = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    modules, path = [needle.onnx.load(model)], tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    for module in (*modules, needle.onnx.load(path)):
        np.testing.assert_allclose(module(ndl.Tensor(x)).numpy(), right, 1e-6, 1e-6)


@pytest.mark.parametrize("dtype, code", [("int4", 22), ("uint4", 21)])
@pytest.mark.parametrize("shape, attributes", _ARRANGED[:3])
def test_values_of_few_bits(dtype, code, shape, attributes):
    """Quantized, saturated, and back; by a zero point's dtype, or by that of an attribute."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    x = (rng.integers(-40, 40, (6, 8)) * 0.25).astype("float32")
    scale, zero = _scale(rng, *shape), _packed(rng, dtype, *shape)
    for zeros in (["z"], []):
        more = {} if zeros else {"output_dtype": code}
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", *zeros], ["q"], **attributes, **more),
            helper.make_node("DequantizeLinear", ["q", "s", *zeros], ["y"], **attributes),
        ]
        weights = {"s": scale, "z": zero}
        graph = helper.make_graph(
            nodes, "g",
            [helper.make_tensor_value_info("x", 1, x.shape)],
            [helper.make_tensor_value_info("y", 1, x.shape)],
            [numpy_helper.from_array(weights[n], n) for n in ["s", *zeros]],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        found = peers.by_needle(model, {"x": x})
        peers.assert_same(found, peers.by_runtime(model, {"x": x}))


def _matmul(a, b, a_zero, b_zero):
    """The definition of MatMulInteger."""
    return ((a.astype("int64") - a_zero) @ (b.astype("int64") - b_zero)).astype("int32")


def _conv(x, w, x_zero, w_zero):
    """The definition of ConvInteger with 2 groups, these pads, and strides of (1, 2): what pads has
    is the zero point, and adds nothing."""
    x = np.pad(x.astype("int64") - x_zero, [(0, 0), (0, 0), (1, 1), (0, 1)])
    w = w.astype("int64") - w_zero
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, :, ::2]
    halves = zip(np.split(windows, 2, 1), np.split(w, 2), strict=True)
    made = [np.einsum("bcijkl,ockl->boij", of_x, of_w) for of_x, of_w in halves]
    return np.concatenate(made, 1).astype("int32")


def _exact(weights):
    """Weights whose products ONNX Runtime adds exactly: without VNNI, it adds two products of uint8
    and int8 in 16 bits, which 7 bits of a weight do not exceed."""
    return weights // 2 if weights.dtype == np.int8 else weights


@pytest.mark.parametrize("left", ["uint8", "int8"])
@pytest.mark.parametrize("right", ["uint8", "int8"])
def test_products(left, right):
    """Sums of integers are judged by their definition, and other results by ONNX Runtime."""
    rng = np.random.default_rng(0)
    a, b = _whole(rng, left, 3, 7), _whole(rng, right, 7, 4)
    a_zero, b_zero = _whole(rng, left), _whole(rng, right)
    x, w = _whole(rng, left, 2, 4, 6, 7), _whole(rng, right, 6, 2, 3, 2)
    attributes = {"group": 2, "pads": [1, 0, 1, 1], "strides": [1, 2]}
    sums = {
        "MatMulInteger": ((a, b, a_zero, _whole(rng, right, 4)), {}, _matmul),
        "ConvInteger": ((x, w, a_zero, b_zero), attributes, _conv),
    }
    for op_type, (inputs, given, definition) in sums.items():
        wanted = [definition(*inputs)]
        _equal(op_type, inputs, given, 10, ["int32"], judge=lambda *_, wanted=wanted: wanted)
    if (left, right) == ("int8", "uint8"):
        return  # the others have no kernel in ONNX Runtime for int8 with uint8
    b, w = _exact(b), _exact(w)
    y_zero, by = _whole(rng, left), np.array(40.0, "float32")
    for shape in ((), (4,)):
        few = _scale(rng, *shape), _whole(rng, right, *shape)
        inputs = a, _scale(rng), a_zero, b, *few, by, y_zero
        _equal("QLinearMatMul", inputs, {}, 10, [left])
        bias = _whole(rng, "int16", 4).astype("int32")
        inputs = a, _scale(rng), a_zero, b, *few, bias, by, y_zero
        _equal("QGemm", inputs, {}, 1, [left], _MS)
    _equal("QGemm", (a.T, *inputs[1:6]), {"transA": 1, "alpha": 0.5}, 1, ["float32"], _MS)
    inputs = x, _scale(rng), a_zero, w, _scale(rng, 6), np.zeros(6, right), by + by, y_zero
    inputs = *inputs, _whole(rng, "int16", 6).astype("int32")
    _equal("QLinearConv", tuple(map(np.asarray, inputs)), attributes, 10, [left])
    floats = rng.standard_normal((3, 7)).astype("float32")
    inputs = floats, b, _scale(rng, 4), _whole(rng, right, 4), floats[0, :4]
    _equal("DynamicQuantizeMatMul", inputs, {}, 1, ["float32"], _MS)
    inputs = a, b, _scale(rng), _scale(rng, 4), a_zero, _whole(rng, right, 4), floats[0, :4]
    if left == "uint8":
        _equal("MatMulIntegerToFloat", inputs, {}, 1, ["float32"], _MS)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_layers(dtype):
    """Sums of floats, whose last bit may decide a half, may be 1 off."""
    rng = np.random.default_rng(0)

    def few():
        return _scale(rng), _whole(rng, dtype)

    a, b = _whole(rng, dtype, 3, 4, 40), _whole(rng, dtype, 4, 1)
    _equal("QLinearAdd", (a, *few(), b, *few(), *few()), {}, 1, [dtype], _MS, off=1)
    by = np.array(8, "float32"), _whole(rng, dtype)
    _equal("QLinearMul", (a, *few(), b, *few(), *by), {}, 1, [dtype], _MS)
    by = np.array(1 / 256, "float32"), _whole(rng, dtype)
    _equal("QLinearSigmoid", (a, *few(), *by), {}, 1, [dtype], _MS)
    _equal("QLinearSoftmax", (a, *few(), *by), {"axis": -1, "opset": 13}, 1, [dtype], _MS)
    _equal("QLinearLeakyRelu", (a, *few(), *few()), {"alpha": 0.3}, 1, [dtype], _MS)
    _equal("QLinearConcat", (*few(), a, *few(), a[:1], *few()), {"axis": 0}, 1, [dtype], _MS)
    x = _whole(rng, dtype, 2, 6, 5, 6)
    for last in (0, 1):
        attributes = {"channels_last": last}
        inputs = x, *few(), *few()
        _equal("QLinearGlobalAveragePool", inputs, attributes, 1, [dtype], _MS, off=1)
        attributes |= {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [1, 0, 1, 0]}
        _equal("QLinearAveragePool", inputs, attributes, 1, [dtype], _MS, off=1)


def test_compiled():
    rng = np.random.default_rng(0)
    x, w = _whole(rng, "uint8", 1, 8, 9, 9), _exact(_whole(rng, "int8", 16, 8, 3, 3))
    inputs = (
        *(x, _scale(rng), np.array(120, "uint8")),
        *(w, _scale(rng, 16), np.zeros(16, "int8")),
        *(np.array(90, "float32"), np.array(7, "uint8"), _whole(rng, "int16", 16).astype("int32")),
    )
    model = model_of("QLinearConv", inputs, {"pads": [1, 1, 1, 1]}, 10)
    known = (1, 2, 3, 4, 5, 6, 7, 8)
    np.testing.assert_array_equal(
        compiled(model, inputs, known)[0], by_onnxruntime(model, inputs)[0]
    )


def test_faults_are_named():
    x, scale = np.ones((2, 3), "float32"), np.ones(4, "float32")
    model = model_of("QuantizeLinear", (x, scale), {"axis": 1}, 13)
    with pytest.raises(ModelError, match=r"shape \(4,\) does not fit axis 1"):
        by_needle(model, (x, scale))
    model = model_of("QuantizeLinear", (x, scale[:1]), {"output_dtype": 17}, 21)
    with pytest.raises(UnsupportedError, match="float8e4m3fn"):
        by_needle(model, (x, scale[:1]))


def test_bits_read_as_another_dtype():
    rng = np.random.default_rng(0)
    for given, to, code in (
        ("int8", "uint8", 2),
        ("uint16", "int16", 5),
        ("float32", "int32", 6),
        ("int64", "float64", 11),
    ):
        x = _whole(rng, "int64" if "64" in given else "int32", 6).astype(given)
        model = model_of("BitCast", (x,), {"to": code}, 26)
        np.testing.assert_array_equal(by_needle(model, (x,), (0,))[0], x.view(to))
        if "float" not in given + to:
            np.testing.assert_array_equal(by_needle(model, (x,))[0], x.view(to))
    model = model_of("BitCast", (x,), {"to": 1}, 26, dtypes=["float32"])
    with pytest.raises(ModelError, match="have different widths"):
        by_needle(model, (x,))
