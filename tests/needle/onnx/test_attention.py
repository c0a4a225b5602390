"""Attention, rotations and caches of ONNX's own domain beside ONNX's reference."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.errors import ModelError
from needle.trace import trace
from tests.needle.onnx.peers import assert_same, by_needle, by_runtime, model_of

B, N, L, S, E, V = 2, 4, 5, 7, 8, 6  # batch, heads, queries, keys, features of keys and of values


def by_reference(model: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    reference = pytest.importorskip("onnx.reference")
    with np.errstate(all="ignore"):
        return reference.ReferenceEvaluator(model).run(None, inputs)


def drawn_form(draw: random.Random) -> tuple[Any, dict[str, np.ndarray]]:
    """A node of a form that is drawn, and its inputs."""
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(draw.randrange(1000))

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype("float32")

    kv, past, form = draw.choice([N, 2, 1]), draw.choice([0, 0, 3]), {}
    if draw.random() < 0.5:
        inputs = {"q": normal(B, N, L, E), "k": normal(B, kv, S, E), "v": normal(B, kv, S, V)}
    else:
        inputs = {"q": normal(B, L, N * E), "k": normal(B, S, kv * E), "v": normal(B, S, kv * V)}
        form = {"q_num_heads": N, "kv_num_heads": kv}
    total = S + past
    lengths = not past and draw.random() < 0.3
    kind = draw.choice(["none", "bool", "float", "infinite"])
    shape = draw.choice([(L, total), (B, 1, L, total), (1, N, L, total), (N, L, total)])
    if kind in ("bool", "infinite"):
        inputs["m"] = rng.random(shape) < 0.7
        inputs["m"][..., 2, :] = False  # a query that sees nothing
    if kind == "infinite":
        inputs["m"] = np.where(inputs["m"], 0, -np.inf).astype("float32")
    if kind == "float":
        inputs["m"] = normal(*shape)
    if "m" in inputs and not lengths and draw.random() < 0.3:
        inputs["m"] = inputs["m"][..., :-2].copy()
    if past:
        inputs |= {"pk": normal(B, kv, past, E), "pv": normal(B, kv, past, V)}
    if lengths:
        inputs["n"] = np.array([S, 4], "int64")
    for name, value in (("is_causal", 1), ("softcap", 1.5), ("scale", 0.3)):
        if draw.random() < 0.4:
            form[name] = value
    outputs = ["y", "", "", ""]
    if draw.random() < 0.4:  # ONNX's reference shows modes 0 and 1 alike
        outputs[3], form["qk_matmul_output_mode"] = "qk", draw.choice([1, 2, 3])
    if past:
        outputs[1:3] = "new_k", "new_v"
    names = [name if name in inputs else "" for name in ("q", "k", "v", "m", "pk", "pv", "n")]
    return helper.make_node("Attention", names, outputs, **form), inputs


def test_forms_of_attention() -> None:
    draw = random.Random(1)
    for _ in range(80):
        node, inputs = drawn_form(draw)
        model = model_of([node], inputs, [name for name in node.output if name], opset=24)
        assert_same(by_needle(model, inputs), by_reference(model, inputs), 2e-5)


def test_masks_that_are_known() -> None:
    """A constant mask is folded, with the queries that see nothing."""
    draw = random.Random(2)
    for _ in range(30):
        node, inputs = drawn_form(draw)
        weights = {name: inputs.pop(name) for name in ("m",) if name in inputs}
        outputs = [name for name in node.output if name]
        model = model_of([node], inputs, outputs, weights, opset=24)
        assert_same(by_needle(model, inputs), by_reference(model, inputs), 2e-5)


def test_softmax_in_another_dtype() -> None:
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(B, N, L, E)).astype("float16") for name in "qkv"}
    for code in (1, 10, 11):
        node = helper.make_node("Attention", [*"qkv"], ["y"], softmax_precision=code)
        model = model_of([node], inputs, ["y"], opset=23)
        (found,), (expected,) = by_needle(model, inputs), by_reference(model, inputs)
        assert found.dtype == "float16"
        np.testing.assert_allclose(found, expected, atol=4e-3)


def test_rotations_and_caches() -> None:
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(0)
    tables = {name: rng.normal(size=(9, E // 2)).astype("float32") for name in ("cos", "sin")}
    inputs = {
        "x": rng.normal(size=(B, N, L, E)).astype("float32"),
        **tables,
        "at": rng.integers(0, 9, (B, L)),
        "cache": rng.normal(size=(B, N, 9, E)).astype("float32"),
        "start": np.array([2, 7]),
    }
    nodes = [
        helper.make_node("RotaryEmbedding", ["x", "cos", "sin", "at"], ["turned"], interleaved=1),
        helper.make_node("TensorScatter", ["cache", "turned", "start"], ["y"], mode="circular"),
        helper.make_node("TensorScatter", ["cache", "turned"], ["z"]),
    ]
    model = model_of(nodes, inputs, ["turned", "y", "z"], opset=24)
    assert_same(by_needle(model, inputs), by_reference(model, inputs), 2e-5)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shown", [False, True])
def test_guards_of_pytorch(known: bool, shown: bool) -> None:
    """Weights that are no numbers become 0; where the weights are an output, nothing is changed."""
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(B, N, L, E)).astype("float32") for name in "qkv"}
    seen = rng.random((B, 1, L, L)) < 0.6
    seen[1, :, 2:4] = False
    inputs["m"] = np.where(seen, rng.normal(size=seen.shape), -np.inf).astype("float32")
    weights = {"zero": np.float32(0) * np.ones((), "float32")}
    if known:
        weights["m"] = inputs.pop("m")
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["products"]),
        helper.make_node("Add", ["products", "m"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("IsNaN", ["weights"], ["wrong"]),
        helper.make_node("Where", ["wrong", "zero", "weights"], ["right"]),
        helper.make_node("MatMul", ["right", "v"], ["y"]),
    ]
    model = model_of(nodes, inputs, ["y", "right"] if shown else ["y"], weights)
    assert_same(by_needle(model, inputs), by_runtime(model, inputs), 2e-5)
    module = needle.onnx.load(model)
    kinds = [type(n.op).__name__ for n in trace(module, *map(ndl.Tensor, inputs.values())).nodes]
    assert ("Condition" in kinds) == shown  # isnan


def test_faults_are_named() -> None:
    helper = pytest.importorskip("onnx.helper")
    x = np.zeros((B, L, 12), "float32")
    node = helper.make_node("Attention", ["x"] * 3, ["y"], q_num_heads=5, kv_num_heads=3)
    with pytest.raises(ModelError, match=r"Attention\): an input of shape \(2, 5, 12"):
        by_needle(model_of([node], {"x": x}, ["y"], opset=23), {"x": x})


@pytest.mark.slow
def test_compiled_attention_of_open_sizes() -> None:
    """A padded batch with a causal mask is one kernel, right at every size; with infinite masks."""
    tvm = pytest.importorskip("needle_tvm")
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(0)

    def drawn(batch: int, length: int) -> dict[str, np.ndarray]:
        inputs = {n: rng.normal(size=(batch, length, 32)).astype("float32") for n in "qkv"}
        seen = np.arange(length) < rng.integers(1, length + 1, batch)[:, None, None, None]
        seen[0] = False  # a batch that sees nothing
        return {**inputs, "m": np.where(seen, 0, -np.inf).astype("float32")}

    form = {"q_num_heads": 4, "kv_num_heads": 4, "is_causal": 1}
    node = helper.make_node("Attention", [*"qkvm"], ["y"], **form)
    model = model_of([node], drawn(2, 24), ["y"], opset=24, free=True)
    b, t = ndl.Dim("b", max=4), ndl.Dim("t", min=2, max=96)
    dims = {**{i: {0: b, 1: t} for i in range(3)}, 3: {0: b, 3: t}}
    module = needle.onnx.load(model)
    examples = [ndl.Tensor(x) for x in drawn(2, 24).values()]
    assert trace(module, *examples, dims=dims).nodes
    exe = tvm.compile(module, *examples, dims=dims, progress=False)
    for batch, length in ((1, 2), (3, 41), (4, 96)):
        inputs = drawn(batch, length)
        found = exe(*inputs.values()).numpy()
        inputs["m"] = inputs["m"].repeat(length, 2)  # the reference takes queries from the mask
        assert_same([found], by_reference(model, inputs), 1e-5)
