"""Models as ONNX files: what stands in them, and what ONNX Runtime makes of them."""

import os
from collections import Counter
from importlib import import_module

import numpy as np
import pytest

import needle as ndl
import needle.nn.functional as F
from apps.models import MODELS
from needle import nn
from needle.errors import DimError, TraceError, UnsupportedError
from needle.onnx import export
from needle.op import REGISTRY, Elementwise, register
from needle.testing import assert_close
from needle.trace.graph import flatten_outputs
from tests.needle.onnx.exporting import loaded, run

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def drawn(*shape, dtype="float32"):
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (values * 3 if dtype.startswith("int") else values).astype(dtype)


@pytest.fixture
def exported(tmp_path):
    """exported(model, *inputs) writes a file, compares the results of ONNX Runtime and of needle
    that reads it again, and returns the ModelProto. `also` are further inputs, of other sizes."""

    def make(model, *inputs, also=(), rtol=2e-5, **choices):
        path = tmp_path / "model.onnx"
        if isinstance(model, nn.Module):
            model.eval()
        export(model, inputs, path, **choices)
        for given in (inputs, *also):
            with ndl.no_grad():
                _, expected = flatten_outputs(model(*map(ndl.Tensor, given)))
            for results in (run(path, given), loaded(path, given)):
                for got, (name, want) in zip(results, expected, strict=True):
                    assert_close(got, want.numpy(), rtol=rtol, scale=1, what=name)
        return onnx.load(path)

    return make


def kinds(model):
    return dict(Counter(node.op_type for node in model.graph.node))


def arrays(model):
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


# What layers become


def test_a_linear_is_one_gemm(exported):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    made = exported(model, drawn(5, 3))
    assert [n.op_type for n in made.graph.node] == ["Gemm", "Relu", "MatMul"]
    for name, array in arrays(made).items():  # weights by name, as they are
        np.testing.assert_array_equal(array, model.state_dict()[name].numpy())
    assert [x.name for x in made.graph.input] == ["x"]
    assert [x.name for x in made.graph.output] == ["output"]
    assert kinds(exported(nn.Linear(3, 4), drawn(2, 5, 3))) == {"MatMul": 1, "Add": 1}


def test_a_convolutional_network_has_no_transposes(exported):
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 2, groups=3, padding="same", bias=False), nn.AvgPool2d(2),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1),
    )  # fmt: skip
    batch = model[1]
    batch.running_mean.data, batch.running_var.data = ndl.Tensor(drawn(6)), ndl.rand(6) + 0.5
    made = exported(model, drawn(2, 3, 17, 16))
    assert [n.op_type for n in made.graph.node] == [
        "Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "AveragePool", "ConvTranspose",
    ]  # fmt: skip
    weight = model.state_dict()["modules.0.weight"].numpy()
    np.testing.assert_array_equal(arrays(made)["modules.0.weight"], weight.transpose(3, 2, 0, 1))


def test_convolutions_of_one_and_three_axes(exported):
    made = exported(nn.Conv1d(3, 4, 3, dilation=2, padding=1), drawn(2, 3, 9))
    assert kinds(made) == {"Reshape": 2, "Conv": 1}
    exported(nn.Conv3d(2, 3, 2), drawn(1, 2, 3, 4, 5))


def test_layers_with_weights_in_two_places(exported):
    """An embedding and the product that reads it the other way round; a layer that runs twice."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, tokens):
            x = self.embedding(tokens)
            x = self.conv(self.conv(x.reshape((1, 1, *x.shape)))).reshape(x.shape)
            return x @ ndl.transpose(self.embedding.weight)

    made = exported(Tied(), np.array([1, 3, 0]))
    names = sorted(name for name, array in arrays(made).items() if array.dtype == np.float32)
    assert names == ["conv.bias", "conv.weight", "embedding.weight"]


@pytest.mark.parametrize("kind, op_type", [(nn.LSTM, "LSTM"), (nn.GRU, "GRU"), (nn.RNN, "RNN")])
def test_recurrent_layers(exported, kind, op_type):
    model = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    t, n = ndl.Dim("t", max=9), ndl.Dim("n", max=9)
    made = exported(model, drawn(2, 5, 3), also=[(drawn(3, 7, 3),)], dims={0: {0: n, 1: t}})
    assert kinds(made)[op_type] == 4 and "Scan" not in kinds(made)
    made = exported(kind(3, 4, bias=False), drawn(5, 2, 3))
    assert kinds(made)[op_type] == 1


def test_cell_states_of_an_lstm_that_are_all_read(exported):
    layer = nn.LSTM(3, 4)

    def cells(x, h, c):
        cell = layer.lstm_cells[0]
        return ndl.recurrence.layers.lstm(cell.project(x), h, c, cell.W_hh)[1]

    assert "Scan" in kinds(exported(cells, drawn(5, 2, 3), drawn(2, 4), drawn(2, 4)))
    exported(nn.RNN(3, 4, num_layers=2), drawn(3, 2, 3))
    exported(nn.LSTMCell(3, 4), drawn(2, 3))


def test_a_transformer(exported):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = kinds(exported(layer, drawn(2, 5, 8)))
    assert found["LayerNormalization"] == 2 and found["Softmax"] == 1
    n = ndl.Dim("n", max=16)
    model = lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
    exported(model, drawn(2, 5, 8), dims={0: {1: n}}, also=[(drawn(2, 9, 8),)])


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.GroupNorm(2, 4), (2, 4, 3, 3)),
        (nn.InstanceNorm2d(4), (2, 4, 3, 3)),
        (nn.BatchNorm1d(4), (3, 4)),
        (nn.LayerNorm((3, 4)), (2, 3, 4)),
        (nn.RMSNorm(4), (2, 4)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
        (nn.Upsample(scale_factor=2), (1, 2, 3, 3)),
        (nn.AdaptiveAvgPool2d(2), (1, 2, 5, 5)),
        (nn.MaxPool2d(3, stride=2, ceil_mode=True), (1, 2, 6, 6)),
        (nn.GELU(), (2, 3)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)  # fmt: skip
def test_layers(exported, layer, shape):
    exported(layer, drawn(*shape))


# Sizes


def test_a_mean_of_nothing_is_nan(exported):
    """ONNX leaves it open, and ONNX Runtime's ReduceMean gives 0."""

    class Means(nn.Module):
        def forward(self, x):
            return x.mean((0,)), x.mean(), x.mean((1,)), x.mean((0, 1), keepdims=True)

    exported(Means(), drawn(0, 3))


def test_sizes_have_names(exported):
    class Model(nn.Module):
        def forward(self, x, y):
            rows, width = x.shape
            flat = ndl.reshape(x, (rows * width,))
            padded = ndl.pad(x, ((0, 0), (1, 2)))[:, ::2]
            total = ndl.concat([x, y], 0) + ndl.arange(width).astype("float32")
            return total, flat[1:], padded, ndl.broadcast_to(y[:1], (rows, width)).mean(0)

    n, m, k = (ndl.Dim(name, min=2, max=32) for name in "nmk")
    dims = {"x": {0: n, 1: m}, 1: {0: k, 1: m}}
    made = exported(Model(), drawn(3, 4), drawn(2, 4), dims=dims, also=[(drawn(5, 7), drawn(3, 7))])
    shapes = [
        [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim]
        for x in (*made.graph.input, made.graph.output[0])
    ]
    assert shapes == [["n", "m"], ["k", "m"], ["k + n", "m"]]
    assert {p.key: p.value for p in made.metadata_props}["needle.dim.n"] == n.described()


def test_results_without_elements_of_open_sizes(exported):
    n = ndl.Dim("n", max=16)
    empty = lambda x: (x[:, 2:1] * 2, ndl.ops.sum(x[:, 2:1], 1))  # noqa: E731
    exported(empty, drawn(5, 2), dims={0: {0: n}}, also=[(drawn(9, 2),)])


def test_one_hot_of_open_classes(exported):
    n = ndl.Dim("n", max=16)
    classes = lambda x: ndl.ops.one_hot(ndl.ops.argmax(x, 1), x.shape[0])  # noqa: E731
    exported(classes, drawn(5, 2), dims={0: {0: n}}, also=[(drawn(9, 2),)])


def test_sizes_of_images(exported):
    n = ndl.Dim("n", min=2, max=16)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(2))
    exported(model, drawn(1, 1, 8, 6), dims={0: {2: 2 * n}}, also=[(drawn(1, 1, 14, 6),)])
    windows = lambda x: ndl.ops.sliding_windows(x, 3, stride=2)  # noqa: E731
    exported(windows, drawn(1, 9, 5, 1), dims={0: {1: 2 * n + 1}}, also=[(drawn(1, 15, 5, 1),)])
    exported(
        lambda x: (ndl.ops.sort(x, 0)[0], ndl.ops.var(x, 0), x[::-1], x[::-2], x[-1:0:-1]),
        drawn(5, 2), dims={0: {0: n}}, also=[(drawn(9, 2),)],
    )  # fmt: skip


def test_a_size_that_no_axis_tells(tmp_path):
    n, m = ndl.Dim("n", max=8), ndl.Dim("m", max=8)
    with pytest.raises(DimError, match="no single axis of an input determines m, n"):
        export(lambda x: x + 1, drawn(8, 2), tmp_path / "x.onnx", dims={0: {0: n + m}})


# Names


def test_names_of_inputs_and_outputs(tmp_path, exported):
    class Model(nn.Module):
        def forward(self, output, pair, scale=None):
            return {"sum": output + pair[0], "same": output, "twice": (pair[1], pair[1])}

    x, path = drawn(2), tmp_path / "x.onnx"
    export(Model().eval(), (x, [x + 1, x + 2]), path)
    session_names = lambda p: [[v.name for v in s] for s in (p.graph.input, p.graph.output)]  # noqa: E731
    inputs, outputs = session_names(onnx.load(path))
    assert inputs == ["output", "pair_0", "pair_1"]
    assert outputs == ["output_sum", "output_same", "output_twice_0", "output_twice_1"]
    for got, want in zip(run(path, [x, x + 1, x + 2]), [x + x + 1, x, x + 2, x + 2], strict=True):
        np.testing.assert_allclose(got, want)
    names = ["a", "b", "c", "d"]
    export(Model().eval(), (x,), path, kwargs={"pair": [x, x]}, output_names=names)
    assert session_names(onnx.load(path))[1] == names
    made = exported(lambda output: output * 2, x)
    assert session_names(made) == [["output"], ["output_"]]
    for wrong in (["a"], ["a", "b", "c", "a"], ["a", "b", "c", ""], ["a", "b", "c", "pair_0"]):
        with pytest.raises(ValueError, match=r"output.name"):
            export(Model().eval(), (x, [x, x]), path, output_names=wrong)


def test_weights_and_constants_as_outputs(exported):
    layer = nn.Linear(2, 3)
    table = ndl.Tensor(drawn(3), requires_grad=False)
    exported(lambda x: (layer.weight, x @ layer.weight + table, table, layer.weight), drawn(2, 2))


# Refusals


def test_ops_without_a_rule_are_named_at_once(tmp_path):
    def planted(name):
        rules = {
            "name": name, "__doc__": "y = x.", "__module__": __name__,
            "compute": lambda self, x: x, "dtype_of": lambda self, dtype: dtype,
        }  # fmt: skip
        return register(type(name.title(), (Elementwise,), rules))

    first, second = planted("first_unknown"), planted("second_unknown")
    try:
        path = tmp_path / "x.onnx"
        with pytest.raises(UnsupportedError, match=r"first_unknown \(2, .*\), second_unknown \(1,"):
            export(lambda x: second()(first()(first()(x) + 1)), drawn(2), path)
        assert not list(tmp_path.iterdir())
        # An op of one's own brings its rule.
        first.emit_onnx = lambda self, site, x: site.w.op("Neg", x)
        export(lambda x: first()(x), drawn(2), path)
        np.testing.assert_array_equal(run(path, [drawn(2)])[0], -drawn(2))
    finally:
        for op in (first, second):
            REGISTRY.pop(op.name)


def test_what_is_refused_writes_nothing(tmp_path):
    path, x = tmp_path / "x.onnx", drawn(2, 3)
    model = nn.Linear(3, 4)
    with pytest.raises(ValueError, match="train mode"):
        export(model, x, path)
    with pytest.raises(ValueError, match="opset 17 is not one of 18 to"):
        export(model.eval(), x, path, opset=17)
    with pytest.raises(TraceError):
        export(lambda x: x + float(x.sum().item()), x, path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        export(model, x, tmp_path / "none" / "x.onnx")
    with pytest.raises(IsADirectoryError):
        export(model, x, tmp_path)
    with pytest.raises(TypeError, match="path 3 is a int"):
        export(model, x, 3)
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path, x = tmp_path / "x.onnx", drawn(2, 3)
    export(nn.Linear(3, 4).eval(), x, path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        export(nn.Linear(3, 5).eval(), x, path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_weights_beside_the_file(tmp_path):
    model, x = (
        nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 2, dtype="float32")).eval(),
        drawn(2, 40),
    )
    path = tmp_path / "x.onnx"
    export(model, x, path, external_above=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.onnx", "x.onnx.data"]
    onnx.checker.check_model(str(path), full_check=True)
    bare = onnx.load(path, load_external_data=False)
    outside = {t.name: t.data_location for t in bare.graph.initializer}
    assert outside["modules.0.weight"] == onnx.TensorProto.EXTERNAL
    assert outside["modules.1.bias"] == onnx.TensorProto.DEFAULT
    assert_close(run(path, [x])[0], model(ndl.Tensor(x)).numpy(), 50)
    whole = arrays(onnx.load(path))
    np.testing.assert_array_equal(whole["modules.0.weight"], model[0].weight.numpy())


def test_halves_and_all_opsets(tmp_path):
    x, path = drawn(2, 4), tmp_path / "x.onnx"
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).eval()
    expected = model(ndl.Tensor(x)).numpy()
    for opset in range(18, 25):
        export(model, x, path, opset=opset)
        made = onnx.load(path)
        assert made.opset_import[0].version == opset
        assert ("Gelu" in kinds(made)) == (opset >= 20)
        assert_close(run(path, [x])[0], expected, 8)
    for dtype in ("float16", "bfloat16"):
        half = nn.Sequential(nn.Linear(4, 4, dtype=dtype), nn.GELU()).eval()
        fn = lambda x: half(x.astype(dtype)).astype("float32")  # noqa: B023, E731
        export(fn, x, path)
        assert_close(run(path, [x])[0], fn(ndl.Tensor(x)).numpy(), rtol=0.02)


# Whole models


def made(name, **options):
    """A model of the evaluation or the benchmarks, and its input."""
    module, _, function = MODELS[name].factory.partition(":")
    return getattr(import_module(module), function)(**options)


@pytest.mark.parametrize("name", ["mlp", "conv", "transformer"])
def test_evaluation_models(exported, name):
    model, x = made(name, batch=2)
    exported(model, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "bert", "mobilenet", "lstm"])
def test_further_models(exported, name):
    model, x = made(name)
    exported(model, *(x if isinstance(x, tuple) else (x,)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "conv", "transformer", "lstm"])
def test_what_is_exported_compiles_again(name, tmp_path):
    pytest.importorskip("tvm")
    import needle_tvm

    model, x = made(name, batch=4)
    model.eval()
    n = ndl.Dim("n", max=8)
    axis = 1 if name == "lstm" else 0
    export(model, x, tmp_path / "model.onnx", dims={0: {axis: n}})
    compiled = needle_tvm.compile_onnx(tmp_path / "model.onnx", x, dims={"n": n})
    for given in (x, np.take(x, range(3), axis)):
        _, expected = flatten_outputs(model(ndl.Tensor(given)))
        found = compiled(given)
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        for got, (what, want) in zip(found, expected, strict=True):
            assert_close(got.numpy(), want.numpy(), rtol=1e-4, scale=1, what=what)
