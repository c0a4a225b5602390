"""Sequences that Loop, If and SequenceMap carry, beside ONNX Runtime, and loops in eager calls."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.conversion import budget
from needle.errors import ModelError, UnsupportedError
from needle.trace import trace

from .peers import assert_same, by_needle, by_runtime, model_of
from .test_control import X, body, node, number

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def sequence(name, rank=2):
    from onnx import TensorProto, helper

    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [None] * rank)
    return helper.make_value_info(name, helper.make_sequence_type_proto(kind))


def with_sequences(graph, *names):
    """The body, in which these inputs and outputs are sequences of matrices."""
    for listed in (graph.input, graph.output):
        for info in listed:
            if info.name in names:
                info.CopyFrom(sequence(info.name))
    return graph


def growing(more="Identity"):
    """Appends s * 2**i to a sequence; `again` says whether the sum of s is still small."""
    step = [
        node("Add", "s s", "next"),
        node("SequenceInsert", "q next", "grown"),
        node("ReduceSum", "next", "total", keepdims=0),
        node("Less", "total limit", "again") if more == "Less" else node(more, "keep", "again"),
    ]
    return with_sequences(
        body(
            step,
            "i:int64:0 keep:bool:0 q s:float32:2",
            "again:bool:0 grown next:float32:2",
        ),
        "q",
        "grown",
    )


def loop_nodes(trips, go, more="Identity"):
    return [
        node("SequenceEmpty", "", "none"),
        node("Loop", f"{trips} {go} none x", "many last", body=growing(more)),
        node("ConcatFromSequence", "many", "y", axis=0),
    ]


def alike(nodes, inputs, outputs, fixed=(), weights=None, dtypes=None):
    """Equal to ONNX Runtime with these inputs fixed, and with none."""
    model = model_of(nodes, inputs, outputs, weights, dtypes=dtypes)
    expected = by_runtime(model, inputs)
    for known in ((), fixed):
        assert_same(by_needle(model, inputs, {name: inputs[name] for name in known}), expected)
    return model


def test_a_loop_carries_a_sequence():
    nodes = [number("three", 3), number("go", True, "bool"), *loop_nodes("three", "go")]
    model = alike(nodes, {"x": X}, ["y", "last"])
    needle_tvm = pytest.importorskip("needle_tvm")
    found = needle_tvm.compile_onnx(model, X, stage="noopt", progress=False)(X)
    assert_same([each.numpy() for each in found], by_runtime(model, {"x": X}))


def test_a_list_that_a_loop_appends_to_is_one_tensor():
    """For any number of iterations, which the length of an input gives, as TorchScript's exporter
    writes `for i in range(x.shape[0]): rows.append(...)`."""
    needle_tvm = pytest.importorskip("needle_tvm")
    step = with_sequences(
        body(
            [
                node("Gather", "x i", "row"),
                node("Add", "s row", "t"),
                node("Tanh", "t", "n"),
                node("SequenceInsert", "q n", "grown"),
                node("Identity", "keep", "again"),
            ],
            "i:int64:0 keep:bool:0 q s:float32:1",
            "again:bool:0 grown n:float32:1",
        ),
        "q",
        "grown",
    )
    nodes = [
        node("Shape", "x", "shape"),
        number("zero", 0),
        number("go", True, "bool"),
        node("Gather", "shape zero", "steps"),
        node("SequenceEmpty", "", "none"),
        node("Loop", "steps go none w", "rows last", body=step),
        node("ConcatFromSequence", "rows", "stacked", axis=1, new_axis=1),
        node("ConcatFromSequence", "rows", "flat", axis=0),
        node("SequenceLength", "rows", "count"),
    ]
    inputs = {"x": X, "w": X[0]}
    outputs = ["stacked", "flat", "last", "count"]
    model = model_of(nodes, inputs, outputs, free=True, dtypes={"count": "int64"})
    dims = {"x": {0: ndl.Dim("n", min=1, max=9)}}
    assert_same(by_needle(model, inputs), by_runtime(model, inputs))
    run = needle_tvm.compile_onnx(model, *inputs.values(), dims=dims, stage="noopt", progress=False)
    for count in (1, 3, 4):
        given = {"x": X[:count], "w": X[0]}
        assert_same([x.numpy() for x in run(*given.values())], by_runtime(model, given))


def test_a_loop_over_a_sequence():
    """Of values of one shape, taken by the number of the iteration, from the end."""
    step = body(
        [
            node("Sub", "minus i", "place"),
            node("SequenceAt", "rows place", "row"),
            node("Mul", "s half", "t"),
            node("Add", "t row", "n"),
        ],
        "i:int64:0 keep:bool:0 s:float32:1",
        "keep:bool:0 n:float32:1",
    )
    nodes = [
        *(number("minus", -1), number("half", 0.5, "float32")),
        node("SplitToSequence", "x", "rows", axis=0, keepdims=0),
        node("Loop", "most - w", "y", body=step),
    ]
    inputs = {"x": X, "w": X[0], "most": np.array(3)}
    model = alike(nodes, inputs, ["y"], fixed=["most"])
    graph = trace(needle.onnx.load(model), *map(ndl.Tensor, inputs.values()))
    assert any(each.op is not None and each.op.name == "while_loop" for each in graph.nodes)


@pytest.mark.parametrize("trips", [1, 4])
def test_a_loop_counted_by_an_input(trips):
    nodes = loop_nodes("n", "-")
    model = alike(nodes, {"x": X, "n": np.array(trips)}, ["y", "last"], fixed=["n"])
    with pytest.raises(
        UnsupportedError, match=r"Loop\): .*the trip count depends on values.*fixed="
    ):
        trace(needle.onnx.load(model), ndl.Tensor(X), ndl.Tensor(np.array(trips)))


@pytest.mark.parametrize("limit", [-1.0, 40.0, 500.0])
def test_a_loop_that_ends_by_a_condition(limit):
    """After one iteration and after several; the condition is computed from the input."""
    inputs = {"x": np.abs(X), "limit": np.array(limit, "float32")}
    nodes = [number("go", True, "bool"), *loop_nodes("-", "go", "Less")]
    model = alike(nodes, inputs, ["y", "last"])
    module = needle.onnx.load(model)
    with pytest.raises(UnsupportedError, match="the condition after iteration 1 depends on values"):
        trace(module, *map(ndl.Tensor, inputs.values()))


def test_a_loop_whose_first_condition_is_an_input():
    for go in (True, False):
        inputs = {"x": X, "go": np.array(go)}
        step = body([node("Add", "s s", "next"), node("Not", "keep", "again")],
                    "i:int64:0 keep:bool:0 s:float32:2", "again:bool:0 next:float32:2")  # fmt: skip
        alike([node("Loop", "- go x", "y", body=step)], inputs, ["y"], fixed=["go"])


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_gives_a_sequence(taken):
    """Of other lengths; a trace takes those of one length."""
    both = [node("SequenceConstruct", "x x", "q")], [node("SequenceConstruct", "z", "q")]
    branches = [with_sequences(body(n, outputs="q"), "q") for n in both]
    nodes = [
        node("Neg", "x", "z"),
        node("If", "c", "s", then_branch=branches[0], else_branch=branches[1]),
        node("ConcatFromSequence", "s", "y", axis=0),
    ]
    inputs = {"x": X, "c": np.array(taken)}
    model = alike(nodes, inputs, ["y"], fixed=["c"])
    with pytest.raises(UnsupportedError, match=r"If\): .*the condition depends on values"):
        trace(needle.onnx.load(model), *map(ndl.Tensor, inputs.values()))
    del nodes[1].attribute[:]
    equal = [node("SequenceConstruct", "z", "q")], [node("SequenceConstruct", "x", "q")]
    chosen = [with_sequences(body(n, outputs="q"), "q") for n in equal]
    nodes[1].CopyFrom(node("If", "c", "s", then_branch=chosen[0], else_branch=chosen[1]))
    model = alike(nodes, inputs, ["y"], fixed=["c"])
    assert trace(needle.onnx.load(model), *map(ndl.Tensor, inputs.values())).outputs


@pytest.mark.parametrize("length", [1, 3])
def test_a_sequence_is_mapped(length):
    """With a second sequence, and with a tensor that all elements see."""
    mapped = body(
        [node("Add", "a b", "t"), node("Mul", "t c", "u"), node("Neg", "a", "v")],
        "a:float32:2 b:float32:2 c:float32:1",
        "u:float32:2 v:float32:2",
    )
    nodes = [
        node("SequenceConstruct", " ".join(["x"] * length), "p"),
        node("SequenceConstruct", " ".join(["z"] * length), "q"),
        node("SequenceMap", "p q w", "s t", body=mapped),
        node("ConcatFromSequence", "s", "y", axis=0),
        node("ConcatFromSequence", "t", "g", axis=1),
    ]
    alike(nodes, {"x": X, "z": X + 1, "w": X[0]}, ["y", "g"])


def test_a_sequence_in_the_place_of_a_tensor_is_named():
    """And the other way round: the checker does not look for it."""
    wrong = (
        [node("SequenceConstruct", "x x", "q"), node("Add", "q x", "y")],
        [node("SequenceAt", "x zero", "y")],
        [node("Optional", "", "q"), node("Neg", "q", "y")],
    )
    for nodes in wrong:
        model = model_of([number("zero", 0), *nodes], {"x": X}, ["y"])
        with pytest.raises(ModelError, match=r"node .*(a sequence|an optional|a tensor)"):
            by_needle(model, {"x": X})


@pytest.mark.parametrize("inner", [False, True])
def test_a_loop_without_an_end_is_refused(inner, monkeypatch):
    """And loops in a loop, each with few iterations, when the model is loaded."""
    monkeypatch.setattr(budget, "MOST_ITERATIONS", 1000)
    step = body([node("Identity", "keep", "again"), node("Abs", "s", "next")],
                "i:int64:0 keep:bool:0 s:float32:2", "again:bool:0 next:float32:2")  # fmt: skip
    nodes = [number("go", True, "bool"), node("Loop", "- go x", "y", body=step)]
    if inner:
        few = [number("few", 100), number("one", np.ones((1, 1)), "float32")]
        again = node("Loop", "few keep2 z", "more", body=step)
        outer = body([again], "j:int64:0 keep2:bool:0 z:float32:2", "keep2:bool:0 more:float32:2")
        nodes = [*few, number("go", True, "bool"), node("Loop", "few go one", "v", body=outer)]
        nodes.append(node("Add", "v x", "y"))
    model = model_of(nodes, {"x": X}, ["y"])
    with pytest.raises(UnsupportedError, match=r"1001 iterations; the budget .* 1000 iterations"):
        by_needle(model, {"x": X})


def test_a_loop_keeps_no_more_than_the_budget(monkeypatch):
    """Nor more than 64 times its inputs, of the outputs of all its iterations."""
    monkeypatch.setattr(budget, "MOST_ELEMENTS", 100)
    step = body(
        [node("Abs", "s", "next"), node("Neg", "next", "kept")],
        "i:int64:0 keep:bool:0 s:float32:2",
        "keep:bool:0 next:float32:2 kept:float32:2",
    )
    nodes = [node("Loop", "n - x", "y all", body=step)]
    inputs = {"x": X, "n": np.array(69)}  # 64 times 13 elements are less than 70 times 12
    model = model_of(nodes, inputs, ["all"])
    assert by_needle(model, inputs)[0].shape == (69, 4, 3)
    with pytest.raises(UnsupportedError, match=r"Loop\): it asks for .*\[70, 4, 3\]"):
        by_needle(model, {"x": X, "n": np.array(90)})
