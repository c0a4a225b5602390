"""RNN, GRU and LSTM nodes beside ONNX Runtime."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.errors import ModelError, UnsupportedError
from needle.trace import trace
from tests.needle.onnx.peers import assert_same, by_needle, by_runtime, model_of

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
# Those whose alpha and beta ONNX Runtime takes as ONNX says when the model leaves them out.
ACTIVATIONS = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"),
)
WITH_NUMBERS = (*ACTIVATIONS, "Affine", "ScaledTanh", "ThresholdedRelu")
BATCH, WIDTH, HIDDEN = 3, 4, 6


def layer(
    kind: str,
    steps: int = 5,
    direction: str = "forward",
    bias: bool = True,
    lengths: Any = None,
    first: bool = True,
    peepholes: bool = False,
    **attributes: Any,
) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A node, the inputs of a model of it, and its weights."""
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(0)
    count, rows = (2 if direction == "bidirectional" else 1), GATES[kind] * HIDDEN
    shapes = {"X": (steps, BATCH, WIDTH), "W": (count, rows, WIDTH), "R": (count, rows, HIDDEN)}
    if bias:
        shapes["B"] = (count, 2 * rows)
    if first:
        shapes["H"] = (count, BATCH, HIDDEN)
    if first and kind == "LSTM":
        shapes["C"] = (count, BATCH, HIDDEN)
    if peepholes:
        shapes["P"] = (count, 3 * HIDDEN)
    values = {n: rng.normal(size=s).astype("float32") / 4 for n, s in shapes.items()}
    if lengths is not None:
        values["L"] = np.array(lengths, "int32")
    names = ["X", "W", "R", "B", "L", "H", *(["C", "P"] if kind == "LSTM" else [])]
    node = helper.make_node(
        kind,
        [name if name in values else "" for name in names],
        ["Y", "Y_h", "Y_c"] if kind == "LSTM" else ["Y", "Y_h"],
        hidden_size=HIDDEN,
        direction=direction,
        **attributes,
    )
    inputs = {name: values.pop(name) for name in ("X", "L") if name in values}
    return node, inputs, values


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_forms_of_layers(kind: str, direction: str) -> None:
    draw = random.Random(f"{kind} {direction}")
    count = FUNCTIONS[kind] * (2 if direction == "bidirectional" else 1)
    for _ in range(12):
        form: dict[str, Any] = {
            "bias": draw.random() < 0.7,
            "first": draw.random() < 0.6,
            "lengths": draw.choice([None, [2, 5, 3], [1, 1, 4]]),
        }
        if draw.random() < 0.3:
            form["clip"] = 0.5
        if draw.random() < 0.5:
            numbers = draw.random() < 0.5
            known = WITH_NUMBERS if numbers else ACTIVATIONS
            form["activations"] = [draw.choice(known) for _ in range(count)]
            for name in ("activation_alpha", "activation_beta") if numbers else ():
                form[name] = [round(draw.uniform(0.1, 0.6), 2) for _ in range(count)]
        if kind == "GRU":
            form["linear_before_reset"] = draw.choice([0, 1])
        if kind == "LSTM":
            form |= {"input_forget": draw.choice([0, 0, 1]), "peepholes": draw.random() < 0.4}
        node, inputs, weights = layer(kind, direction=direction, **form)
        model = model_of([node], inputs, node.output, weights)
        assert_same(by_needle(model, inputs), by_runtime(model, inputs), 3e-5)


@pytest.mark.parametrize("kind", GATES)
def test_batches_before_steps(kind: str) -> None:
    """Layout 1, which ONNX Runtime does not have, is layout 0 with axes exchanged."""
    node, inputs, weights = layer(kind, direction="bidirectional", lengths=[2, 5, 3])
    expected = by_runtime(model_of([node], inputs, node.output, weights), inputs)
    node, *_ = layer(kind, direction="bidirectional", lengths=[2, 5, 3], layout=1)
    inputs["X"] = inputs["X"].swapaxes(0, 1).copy()
    for name in {"H", "C"} & weights.keys():
        weights[name] = weights[name].swapaxes(0, 1).copy()
    found = by_needle(model_of([node], inputs, node.output, weights), inputs)
    turned = [expected[0].transpose(2, 0, 1, 3), *(each.swapaxes(0, 1) for each in expected[1:])]
    assert_same(found, turned, 3e-5)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("RNN", {"activations": ["Relu", "Tanh"]}),
        ("RNN", {"activations": ["Elu", "Softsign"], "clip": 0.7}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("LSTM", {}),
        ("LSTM", {"peepholes": True, "input_forget": 1}),
    ],
)
def test_a_direction_is_one_scan(kind: str, form: dict[str, Any]) -> None:
    given = {"steps": 40, "direction": "bidirectional", "lengths": [7, 40, 33], **form}
    node, inputs, weights = layer(kind, **given)
    model = model_of([node], inputs, node.output, weights)
    assert_same(by_needle(model, inputs), by_runtime(model, inputs), 3e-5)
    graph = trace(needle.onnx.load(model), *map(ndl.Tensor, inputs.values()))
    kinds = [type(node.op).__name__ for node in graph.nodes]
    assert kinds.count("Scan") == 2 and len(kinds) < 160


def test_infinite_elements_of_a_long_rnn() -> None:
    node, inputs, weights = layer("RNN", steps=40)
    next(iter(inputs.values()))[3, 0, 1] = np.inf
    model = model_of([node], inputs, node.output, weights)
    expected = by_runtime(model, inputs)
    assert all(np.isfinite(each).all() for each in expected)  # tanh(inf) is 1
    assert_same(by_needle(model, inputs), expected, 3e-5)


def test_halves() -> None:
    node, inputs, weights = layer("LSTM", direction="bidirectional")
    expected = by_runtime(model_of([node], inputs, node.output, weights), inputs)
    narrow = [{n: v.astype("float16") for n, v in each.items()} for each in (inputs, weights)]
    found = by_needle(model_of([node], narrow[0], node.output, narrow[1]), narrow[0])
    assert all(each.dtype == "float16" for each in found)
    assert_same([each.astype("float32") for each in found], expected, 5e-3)


def test_faults_are_named() -> None:
    node, inputs, weights = layer("LSTM")
    weights["R"] = weights["R"][:, 1:]
    with pytest.raises(ModelError, match=r"LSTM.*R has the shape \(1, 23, 6\), not \(1, 24, 6\)"):
        by_needle(model_of([node], inputs, node.output, weights), inputs)
    node, inputs, weights = layer("GRU", activations=["Sigmoid", "Cosine"])
    with pytest.raises(UnsupportedError, match="the activation 'Cosine'"):
        by_needle(model_of([node], inputs, node.output, weights), inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("RNN", {"activations": ["Softsign"]}),
        ("GRU", {"clip": 1.0}),
        ("LSTM", {"peepholes": True, "input_forget": 1}),
    ],
)
def test_other_forms_are_one_scan(kind: str, form: dict[str, Any]) -> None:
    """Of any number of steps."""
    tvm = pytest.importorskip("needle_tvm")
    node, inputs, weights = layer(kind, steps=9, **form)
    model = model_of([node], inputs, node.output, weights, free=True)
    dims = {"X": {0: ndl.Dim("t", min=1, max=9)}}
    graph = trace(needle.onnx.load(model), ndl.Tensor(inputs["X"]), dims=dims)
    assert [type(node.op).__name__ for node in graph.nodes].count("Scan") == 1
    run = tvm.compile_onnx(model, inputs["X"], dims=dims, stage="fused", progress=False)
    for steps in (1, 4, 9):
        given = {"X": inputs["X"][:steps]}
        found = [each.numpy() for each in run(given["X"])]
        assert_same(found, by_runtime(model, given), 3e-5)


@pytest.mark.slow
def test_compiled_with_open_sizes() -> None:
    """One library for every number of steps and batches, of the three layers in a row."""
    tvm = pytest.importorskip("needle_tvm")
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(1)
    nodes, weights, source = [], {}, "X"
    for kind, width in (("LSTM", WIDTH), ("GRU", 2 * HIDDEN), ("RNN", 2 * HIDDEN)):
        rows = GATES[kind] * HIDDEN
        own = {
            f"W_{kind}": rng.normal(size=(2, rows, width)),
            f"R_{kind}": rng.normal(size=(2, rows, HIDDEN)),
            f"B_{kind}": rng.normal(size=(2, 2 * rows)),
        }
        weights |= {name: value.astype("float32") / 3 for name, value in own.items()}
        form = {"direction": "bidirectional", "hidden_size": HIDDEN}
        nodes.append(helper.make_node(kind, [source, *own, "L"], [f"Y_{kind}", kind], **form))
        nodes.append(helper.make_node("Transpose", [f"Y_{kind}"], [f"T_{kind}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"T_{kind}", "shape"], [f"Z_{kind}"]))
        source = f"Z_{kind}"
    weights["shape"] = np.array([0, 0, -1])

    def drawn(steps: int, batch: int) -> dict[str, np.ndarray]:
        lengths = rng.integers(1, steps + 1, batch).astype("int32")
        lengths[0] = steps
        return {"X": rng.normal(size=(steps, batch, WIDTH)).astype("float32"), "L": lengths}

    outputs = [source, "LSTM", "GRU", "RNN"]
    model = model_of(nodes, drawn(8, 4), outputs, weights, free=True)
    t, n = ndl.Dim("t", min=2, max=64), ndl.Dim("n", min=1, max=16)
    examples = [ndl.Tensor(x) for x in drawn(8, 4).values()]
    dims = {0: {0: t, 1: n}, 1: {0: n}}
    exe = tvm.compile(needle.onnx.load(model), *examples, dims=dims, progress=False)
    for steps, batch in ((2, 1), (31, 5), (64, 16)):
        inputs = drawn(steps, batch)
        found = [each.numpy() for each in exe(*inputs.values())]
        assert_same(found, by_runtime(model, inputs), 1e-4)
