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
