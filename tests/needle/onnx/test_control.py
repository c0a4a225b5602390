"""If, Loop, Scan, sequences and optionals beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle.errors import UnsupportedError
from needle.trace import trace
from tests.needle.onnx.peers import assert_same, by_needle, by_runtime, model_of

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; names are words, and "-" is an input that is left out."""
    helper = pytest.importorskip("onnx.helper")
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), **attributes)


def body(nodes: Sequence[Any], inputs: str = "", outputs: str = "") -> Any:
    """A subgraph; an input or output is name, name:dtype, or name:dtype:axes."""
    helper = pytest.importorskip("onnx.helper")

    def info(text: str) -> Any:
        name, dtype, axes = (
            [*text.split(":"), "float32", "-"][:3] if ":" in text else (text, "float32", "-")
        )
        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        shape = None if axes == "-" else [None] * int(axes)
        return helper.make_tensor_value_info(name, code, shape)

    return helper.make_graph(
        list(nodes), "body", [info(i) for i in inputs.split()], [info(o) for o in outputs.split()]
    )


def number(name: str, value: Any, dtype: str = "int64") -> Any:
    helper = pytest.importorskip("onnx.helper")
    from onnx import numpy_helper

    tensor = numpy_helper.from_array(np.array(value, dtype))
    return helper.make_node("Constant", [], [name], value=tensor)


def same(nodes: Sequence[Any], outputs: str, inputs: dict[str, np.ndarray], **fixed: Any) -> None:
    given = {**inputs, **fixed}
    model = model_of(nodes, given, outputs.split())
    assert_same(by_needle(model, given, fixed), by_runtime(model, given))


def traced(model: Any, *inputs: np.ndarray, **fixed: Any) -> Any:
    return trace(needle.onnx.load(model, fixed=fixed), *map(ndl.Tensor, inputs))


def _choice(other: str = "Neg") -> list[Any]:
    branches = {
        "then_branch": body([node("Exp", "x", "a")], outputs="a"),
        "else_branch": body([node(other, "x", "a")], outputs="a"),
    }
    return [node("If", "c", "y", **branches)]


@pytest.mark.parametrize("taken", [True, False])
def test_if_of_known_and_unknown_conditions(taken: bool) -> None:
    condition = np.array(taken)
    same(_choice(), "y", {"x": X}, c=condition)
    same(_choice(), "y", {"x": X, "c": condition})


def test_if_runs_one_branch() -> None:
    """Traced and compiled."""
    needle_tvm = pytest.importorskip("needle_tvm")
    model = model_of(_choice(), {"x": X, "c": np.array(True)}, ["y"])
    graph = traced(model, X, np.array(True))
    assert [n.op.name for n in graph.nodes if n.op is not None].count("cond") == 1
    run = needle_tvm.compile_onnx(model, X, np.array(True), stage="noopt", progress=False)
    for taken in (True, False):
        expected = by_runtime(model, {"x": X, "c": np.array(taken)})
        assert_same([run(X, np.array(taken)).numpy()], expected)


def test_if_of_other_shapes_needs_a_known_condition() -> None:
    same(_choice("Flatten"), "y", {"x": X}, c=np.array(True))
    same(_choice("Transpose"), "y", {"x": X}, c=np.array(False))
    same(_choice("Transpose"), "y", {"x": X, "c": np.array(False)})  # an eager call knows it
    model = model_of(_choice("Transpose"), {"x": X, "c": np.array(True)}, ["y"])
    with pytest.raises(
        UnsupportedError, match=r"If\): .*the condition depends .*\(4, 3\).*\(3, 4\)"
    ):
        traced(model, X, np.array(True))


def test_a_branch_that_does_not_fit_is_named() -> None:
    wrong = body([node("Reshape", "x shape", "a")], outputs="a")
    right = body([node("Exp", "x", "a")], outputs="a")
    nodes = [number("shape", [5, 5]), node("If", "c", "y", then_branch=right, else_branch=wrong)]
    same(nodes, "y", {"x": X}, c=np.array(True))
    model = model_of(nodes, {"x": X, "c": np.array(True)}, ["y"])
    with pytest.raises(UnsupportedError, match=r"does not fit these inputs.*fixed="):
        traced(model, X, np.array(True))


def _loop(limited: bool = False) -> Any:
    """s = s * w, with the outer value w, and i + s as an output of each iteration."""
    nodes = [
        node("Less", "i limit", "again") if limited else node("Identity", "keep", "again"),
        node("Mul", "s w", "next"),
        node("Cast", "i", "n", to=1),
        node("Add", "next n", "shown"),
    ]
    return body(
        nodes,
        "i:int64:0 keep:bool:0 s:float32:2",
        "again:bool:0 next:float32:2 shown:float32:2",
    )


def _sized() -> Any:
    """s becomes the sum of as many copies as the iteration's number, which shapes depend on."""
    return body(
        [
            node("Cast", "i", "n", to=7),
            node("Unsqueeze", "n zero", "size"),
            node("Expand", "s size", "wide"),
            node("ReduceSum", "wide", "next", keepdims=0),
        ],
        "i:int64:0 keep:bool:0 s:float32:0",
        "keep:bool:0 next:float32:0",
    )


def test_loops_count_and_stop() -> None:
    inputs = {"x": X, "w": X[0]}
    counted = node("Loop", "most - x", "y all", body=_loop())
    same([number("most", 3), counted], "y all", inputs)
    same([counted], "y all", inputs, most=np.array(2))
    guarded = [number("most", 2**62), number("limit", 4)]
    guarded.append(node("Loop", "most go x", "y all", body=_loop(limited=True)))
    same([number("go", True, "bool"), *guarded], "y all", inputs)
    same([number("go", False, "bool"), *guarded], "y", inputs)


def test_loops_that_cannot_be_unrolled_are_named() -> None:
    inputs = {"x": X, "w": X[0], "most": np.array(3)}
    model = model_of([node("Loop", "most - x", "y all", body=_loop())], inputs, ["y"])
    with pytest.raises(
        UnsupportedError, match=r"Loop\): .*the trip count depends on values.*fixed="
    ):
        traced(model, *inputs.values())
    nodes = [number("zero", [0]), node("Loop", "most - x", "y", body=_sized())]
    model = model_of(nodes, {"x": X[0, 0], "most": np.array(3)}, ["y"])
    with pytest.raises(UnsupportedError, match="20000 iterations; at most 10000"):
        traced(model, X[0, 0], most=np.array(20000))
    with pytest.raises(UnsupportedError, match=r"3000 iterations of \d operations.* at most "):
        traced(model, X[0, 0], most=np.array(3000))


def _halving(name: str = "again") -> Any:
    """s = s * w, while its sum is above a limit."""
    nodes = [
        node("Mul", "s w", "next"),
        node("ReduceSum", "next", "total", keepdims=0),
        node("Greater", "total limit", "above"),
        node("Identity", "above" if name == "again" else "keep", "again"),
    ]
    return body(nodes, "i:int64:0 keep:bool:0 s:float32:2", "again:bool:0 next:float32:2")


ENDS: dict[str, tuple[list[tuple[str, bool]], str, str]] = {
    "a condition": ([("go", True)], "- go x", "again"),
    "a count": ([], "most - x", "keep"),
    "both": ([("go", True)], "most go x", "again"),
    "a first condition": ([], "most start x", "again"),
}


@pytest.mark.parametrize("name", ENDS)
def test_loops_that_only_a_call_ends(name: str) -> None:
    """Eager, traced and compiled, as often as the inputs say."""
    needle_tvm = pytest.importorskip("needle_tvm")
    before, ins, ends = ENDS[name]
    nodes = [
        *(number(*each, "bool") for each in before),
        node("Loop", ins, "y", body=_halving(ends)),
    ]
    inputs: dict[str, Any] = {"x": np.abs(X), "w": X[0] * 0 + 0.5}
    if "most" in ins:
        inputs["most"] = np.array(3)
    if "start" in ins:
        inputs["start"] = np.array(True)
    inputs["limit"] = np.array(0.3, "float32")
    model = model_of(nodes, inputs, ["y"])
    same(nodes, "y", inputs)
    graph = traced(model, *inputs.values())
    assert [n.op.name for n in graph.nodes if n.op is not None].count("while_loop") == 1
    run = needle_tvm.compile_onnx(model, *inputs.values(), stage="noopt", progress=False)
    others = [{"limit": np.array(1e-9, "float32")}]
    others += [{"most": np.array(n)} for n in (0, 1, 9) if "most" in ins]
    others += [{"start": np.array(False)}] if "start" in ins else []
    for other in others:
        given = {**inputs, **other}
        assert_same([run(*given.values()).numpy()], by_runtime(model, given))


def test_iterations_of_loops_in_loops_count_in_all() -> None:
    outer = body(
        [node("Loop", "few - z", "some", body=_sized()), node("Mul", "j few", "k"),
         node("Expand", "some k", "wide"), node("ReduceSum", "wide", "more", keepdims=0)],
        "j:int64:1 keep2:bool:0 z:float32:0",
        "keep2:bool:0 more:float32:0",
    )  # fmt: skip
    nodes = [number("zero", [0]), number("few", 50), number("most", 90)]
    model = model_of([*nodes, node("Loop", "most - x", "y", body=outer)], {"x": X[0, 0]}, ["y"])
    with pytest.raises(
        UnsupportedError, match=r"Loop\): not supported: 90 iterations of \d\d\d operations"
    ):
        trace(needle.onnx.load(model), ndl.Tensor(X[0, 0]))


@pytest.mark.parametrize("kept", ["Abs", "Identity"])
def test_a_scan_in_all_directions(kept: str) -> None:
    nodes = [
        node(kept, "s", "r"),
        node("Mul", "r a", "t"),
        node("Add", "t b", "next"),
        node("Identity", "next", "kept"),
        node("Sub", "next a", "shown"),
    ]
    step = body(
        nodes,
        "s:float32:1 a:float32:1 b:float32:1",
        "next:float32:1 kept:float32:1 shown:float32:1",
    )
    form = {
        "num_scan_inputs": 2,
        "scan_input_axes": [0, 1],
        "scan_input_directions": [0, 1],
        "scan_output_axes": [1, 0],
        "scan_output_directions": [1, 0],
    }
    inputs = {"first": X[0], "p": X, "q": X.T.copy()}
    same([node("Scan", "first p q", "last y z", body=step, **form)], "last y z", inputs)
    same([node("Scan", "first p p", "last y z", body=step, num_scan_inputs=2)], "last y z", inputs)
    module = needle.onnx.load(
        model_of(
            [node("Scan", "first p p", "last y z", body=step, num_scan_inputs=2)], inputs, ["y"]
        )
    )
    dims = {1: {0: ndl.Dim("t", min=2, max=9)}}
    assert trace(module, *map(ndl.Tensor, inputs.values()), dims=dims).outputs


def test_a_body_that_is_no_cell_needs_a_number_of_steps() -> None:
    """The state grows, which ONNX Runtime refuses."""
    step = body(
        [node("Concat", "s a", "next", axis=0)], "s:float32:1 a:float32:1", "next:float32:1"
    )
    inputs = {"first": X[0], "p": X}
    nodes = [node("Scan", "first p", "y", body=step, num_scan_inputs=1)]
    model = model_of(nodes, inputs, ["y"], free=True)
    assert_same(by_needle(model, inputs), [np.concatenate([X[0], X.reshape(-1)])])
    module = needle.onnx.load(model)
    dims = {"p": {0: ndl.Dim("t", min=2, max=9)}}
    with pytest.raises(UnsupportedError, match=r"t iterations, which a Dim leaves open.* state"):
        trace(module, *map(ndl.Tensor, inputs.values()), dims=dims)


def test_a_scan_of_batches() -> None:
    """The form of opset 8, which has a case of ONNX's own, with lengths beside plain NumPy."""
    step = body(
        [node("Add", "s a", "next"), node("Identity", "next", "kept")],
        "s:float32:1 a:float32:1",
        "next:float32:1 kept:float32:1",
    )
    inputs = {"first": X[:2], "p": np.stack([X, X + 1])}
    lengths = np.array([2, 4])
    nodes = [node("Scan", "n first p", "last y", body=step, num_scan_inputs=1, directions=[1])]
    model = model_of(nodes, {**inputs, "n": lengths}, ["last", "y"], opset=8)
    found = by_needle(model, {**inputs, "n": lengths}, {"n": lengths})
    expected = np.zeros_like(inputs["p"])
    for i, n in enumerate(lengths):
        expected[i, :n] = inputs["first"][i] + np.cumsum(inputs["p"][i, :n][::-1], 0)
    assert_same(found, [np.stack([expected[0, 1], expected[1, 3]]), expected])


def test_sequences_and_optionals_fold_away() -> None:
    nodes = [
        *(number("one", 1), number("last", -1), number("parts", [1, 3])),
        node("SplitToSequence", "x parts", "s", axis=0),
        node("SequenceInsert", "s x one", "t"),
        node("SequenceErase", "t last", "u"),
        node("SequenceLength", "t", "n"),
        node("SequenceAt", "u one", "y"),
        node("ConcatFromSequence", "t", "z", axis=0),
        node("SplitToSequence", "x", "rows", axis=1, keepdims=0),
        node("ConcatFromSequence", "rows", "turned", axis=0, new_axis=1),
        node("Optional", "x", "some"),
        node("OptionalHasElement", "some", "there"),
        node("OptionalGetElement", "some", "got"),
    ]
    dtypes = {"n": "int64", "there": "bool"}
    outputs = ["n", "y", "z", "turned", "there", "got"]
    model = model_of(nodes, {"x": X}, outputs, dtypes=dtypes)
    assert_same(by_needle(model, {"x": X}), by_runtime(model, {"x": X}))
