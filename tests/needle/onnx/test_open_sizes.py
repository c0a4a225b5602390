"""Sizes that dims leave open as numbers among tensors, and as ends of slices of constants."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.trace import trace
from tests.needle.onnx.peers import assert_same, by_runtime, model_of


def test_sizes_are_numbers_and_ends() -> None:
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.normal(size=(12, 4)).astype("float32"),
        "ids": np.arange(12),
        **{name: np.array([n]) for name, n in (("zero", 0), ("one", 1), ("three", 3))},
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["t"], start=1, end=2),
        helper.make_node("Slice", ["ids", "zero", "t"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["rows"]),
        helper.make_node("Sub", ["t", "three"], ["less"]),
        helper.make_node("Cast", ["less"], ["number"], to=1),
        helper.make_node("Div", ["x", "number"], ["scaled"]),
        helper.make_node("Add", ["scaled", "rows"], ["y"]),
    ]

    def drawn(batch: int, length: int) -> dict[str, np.ndarray]:
        return {"x": rng.normal(size=(batch, length, 4)).astype("float32")}

    model = model_of(nodes, drawn(2, 5), ["y"], weights, free=True)
    module = needle.onnx.load(model)
    b, t = ndl.Dim("b", max=4), ndl.Dim("t", max=12)
    graph = trace(module, ndl.Tensor(drawn(2, 5)["x"]), dims={0: {0: b, 1: t}})
    assert str(graph.outputs[0].spec.shape) == "(b, t, 4)"
    for batch, length in ((1, 1), (2, 5), (4, 12)):
        inputs = drawn(batch, length)
        numbers = graph.at({b: batch, t: length})
        assert numbers.outputs[0].spec.shape == (batch, length, 4)
        with ndl.no_grad():
            assert_same([module(ndl.Tensor(inputs["x"])).numpy()], by_runtime(model, inputs))


def test_ranges_of_floats_up_to_a_size() -> None:
    """The grid of a detector: as many places as the input is wide, and their middles."""
    helper = pytest.importorskip("onnx.helper")
    weights = {"zero": np.array(0.0, "float32"), "one": np.array(1.0, "float32")}
    weights |= {"half": np.array(0.5, "float32"), "last": np.array(1)}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["width"]),
        helper.make_node("Cast", ["width"], ["number"], to=1),
        helper.make_node("Range", ["zero", "number", "one"], ["places"]),
        helper.make_node("Add", ["places", "half"], ["middles"]),
        helper.make_node("Mul", ["x", "middles"], ["y"]),
        helper.make_node("Range", ["zero", "number", "half"], ["finer"]),
    ]
    x = np.random.default_rng(0).normal(size=(2, 5)).astype("float32")
    model = model_of(nodes[:-1], {"x": x}, ["y"], weights, free=True)
    module = needle.onnx.load(model)
    graph = trace(module, ndl.Tensor(x), dims={0: {1: ndl.Dim("t", max=12)}})
    assert str(graph.outputs[0].spec.shape) == "(2, t)"
    for width in (1, 5, 12):
        x = np.random.default_rng(width).normal(size=(2, width)).astype("float32")
        with ndl.no_grad():
            assert_same([module(ndl.Tensor(x)).numpy()], by_runtime(model, {"x": x}))
    model = model_of(nodes, {"x": x}, ["y", "finer"], weights, free=True)
    with ndl.no_grad():
        made = [each.numpy() for each in needle.onnx.load(model)(ndl.Tensor(x))]
    assert_same(made, by_runtime(model, {"x": x}))


def test_indices_along_open_axes() -> None:
    """Operators that read or write at places, some of them along an axis of open size."""
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("ScatterElements", ["x", "i", "u"], ["scattered"], reduction="add"),
        helper.make_node("GatherND", ["x", "at"], ["taken"], batch_dims=1),
        helper.make_node("ReverseSequence", ["x", "n"], ["turned"], batch_axis=0, time_axis=1),
        helper.make_node("Unsqueeze", ["x", "one"], ["image"]),
        helper.make_node("MaxPool", ["image"], ["most", "places"], kernel_shape=[2]),
    ]

    def drawn(n: int) -> dict[str, np.ndarray]:
        return {
            "x": rng.normal(size=(n, 5)).astype("float32"),
            "i": rng.integers(0, n, (2 * n, 5)),
            "u": rng.normal(size=(2 * n, 5)).astype("float32"),
            "at": rng.integers(0, 5, (n, 2, 1)),
            "n": rng.integers(1, 6, n),
        }

    names = ["scattered", "taken", "turned", "most", "places"]
    model = model_of(nodes, drawn(3), names, {"one": np.array([1])}, free=True,
                     dtypes={"places": "int64"})  # fmt: skip
    module, n = needle.onnx.load(model), ndl.Dim("n", max=9)
    axes = [n, n * 2, n * 2, n, n]
    given = [ndl.Tensor(each) for each in drawn(3).values()]
    graph = trace(module, *given, dims={i: {0: axis} for i, axis in enumerate(axes)})
    assert [str(each.spec.shape[0]) for each in graph.outputs] == ["n"] * 5
    for count in (1, 4, 9):
        inputs = drawn(count)
        with ndl.no_grad():
            made = [each.numpy() for each in module(*map(ndl.Tensor, inputs.values()))]
        assert_same(made, by_runtime(model, inputs))
