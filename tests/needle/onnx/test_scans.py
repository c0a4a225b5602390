"""Scans and Loops that become one op each, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import needle as ndl
import needle.onnx
from needle import ops
from needle.trace import trace
from tests.needle.onnx.peers import assert_same, by_needle, by_runtime, model_of
from tests.needle.onnx.test_control import body, node, number

STEPS = 40
A = np.random.default_rng(0).uniform(0.7, 1.2, (STEPS, 3)).astype("float32")
B = np.random.default_rng(1).normal(size=(STEPS, 3)).astype("float32")


def is_one_op(model: Any, *arrays: np.ndarray, **options: Any) -> bool:
    """Whether a model's trace has one scan, and few other ops."""
    graph = trace(needle.onnx.load(model), *map(ndl.Tensor, arrays), **options)
    names = [each.op.name for each in graph.nodes if each.op is not None]
    return names.count("scan") == 1 and len(names) < 30


def scan(nodes: Sequence[Any], dtype: str = "float32", states: int = 1, **form: Any) -> Any:
    """Scan of states s, t, ... (next ones n, m, ...) over a and b, with the output y."""
    befores, afters = "s t u".split()[:states], "n m k".split()[:states]
    step = body(
        nodes,
        " ".join(f"{name}:{dtype}:1" for name in [*befores, "a", "b"]),
        " ".join(f"{name}:{dtype}:1" for name in [*afters, "y"]),
    )
    firsts, lasts = [f"{n}0" for n in befores], [f"{n}9" for n in befores]
    return node("Scan", " ".join([*firsts, "p", "q"]), " ".join([*lasts, "z"]), body=step,
                num_scan_inputs=2, **form)  # fmt: skip


def compared(
    nodes: Sequence[Any],
    dtype: str = "float32",
    states: int = 1,
    p: np.ndarray = A,
    q: np.ndarray = B,
    first: Any = None,
    tolerance: float = 1e-5,
    **form: Any,
) -> None:
    """Compare a Scan with ONNX Runtime's."""
    outer = {"c": np.array(0.5, dtype), "r": np.array([2, 3, 4], dtype)}
    firsts = [np.full(3, i + 1, dtype) if first is None else first for i in range(states)]
    inputs = dict(zip(["s0", "t0", "u0"], firsts, strict=False))
    inputs |= {"p": p.astype(dtype), "q": q.astype(dtype)}
    outputs = [*["s9", "t9", "u9"][:states], "z"]
    model = model_of(
        [scan(nodes, dtype, states, **form)],
        inputs,
        outputs,
        weights=outer,
        dtypes=dict.fromkeys(outputs, dtype),
    )
    assert_same(by_needle(model, inputs), by_runtime(model, inputs), tolerance)
    assert is_one_op(model, *inputs.values())


def same_value(name: str = "n") -> Any:
    return node("Identity", name, "y")


SUM, PRODUCT = [node("Add", "s a", "n")], [node("Mul", "b s", "n")]
LINEAR = {
    "linear": [node("Mul", "a s", "t1"), node("Add", "b t1", "n")],
    "average": [
        node("Mul", "s c", "t1"),
        node("Sub", "a c", "t2"),
        node("Mul", "t2 r", "t3"),
        node("Add", "t3 t1", "n"),
    ],
    "sum first": [node("Add", "s b", "t1"), node("Mul", "t1 a", "n")],
    "subtracted": [node("Mul", "s a", "t1"), node("Sub", "t1 b", "n")],
    "from": [node("Sub", "b s", "n")],
    "negative": [node("Neg", "s", "t1"), node("Add", "t1 b", "n")],
    "long": [
        node("Mul", "s a", "t1"),
        node("Add", "t1 b", "t2"),
        node("Mul", "t2 c", "t3"),
        node("Mul", "t3 a", "t4"),
        node("Add", "t4 a", "t5"),
        node("Sub", "t5 b", "n"),
    ],
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_recurrences(name: str) -> None:
    compared([*LINEAR[name], same_value()])
    compared([*LINEAR[name], same_value("s")], scan_output_directions=[1])


def test_running_ops() -> None:
    compared([*SUM, same_value()])
    compared([node("Sum", "b s a", "n"), same_value("s")])
    compared([*PRODUCT, same_value()], q=A)
    compared([node("Max", "s a", "n"), same_value()])
    compared([node("Min", "b s c", "n"), same_value("s")])
    compared([node("Identity", "s", "n"), node("Mul", "s a", "y")])
    compared([node("Mul", "a b", "n"), node("Sub", "b s", "y")])


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64", "bool"])
def test_running_ops_of_other_dtypes(dtype: str) -> None:
    whole = np.random.default_rng(2).integers(-9, 9, (STEPS, 3)) * 2 + 1
    if dtype == "bool":
        p, q = A < 0.75, B < 1
        compared([node("Or", "s a", "n"), same_value()], dtype, p=p, first=p[0])
        compared([node("And", "s b", "n"), same_value()], dtype, q=q)
        return
    floating = dtype.startswith("float")
    tolerance = 1e-2 if dtype == "float16" else 1e-5
    p = A if floating else whole
    compared([*SUM, same_value()], dtype, p=p, tolerance=tolerance)
    compared([*PRODUCT, same_value()], dtype, q=p, tolerance=tolerance)
    compared([*LINEAR["linear"], same_value()], dtype, p=p, tolerance=tolerance)


def test_several_states_and_outputs() -> None:
    """A sum, the largest sum so far, and a product of both; the output reads all of them."""
    nodes = [
        node("Tanh", "a", "f"),
        node("Add", "s f", "n"),
        node("Max", "t n", "m"),
        node("Mul", "u c", "v"),
        node("Add", "v t", "k"),
        node("Where", "w n k", "x"),
        node("Greater", "n t", "w"),
        node("Mul", "x r", "y"),
    ]
    nodes[5], nodes[6] = nodes[6], nodes[5]
    compared(nodes, states=3)


def test_directions_axes_and_ranks() -> None:
    """Slices of rank 1 and 2, which broadcast from the right, from both ends along other axes."""
    step = body(
        [
            node("Mul", "s a", "t"),
            node("Add", "t b", "n"),
            node("Sub", "n a", "y"),
            node("Exp", "a", "e"),
            node("Identity", "w", "o"),
        ],
        "s:float32:2 a:float32:1 b:float32:2",
        "n:float32:2 y:float32:2 e:float32:1 o:float32:1",
    )
    made = node("Scan", "s0 p q", "last y e o", body=step, num_scan_inputs=2,
                scan_input_axes=[1, -1], scan_input_directions=[1, 0],
                scan_output_axes=[1, -1, 0], scan_output_directions=[1, 0, 1])  # fmt: skip
    rng = np.random.default_rng(3)
    shapes = {"s0": (4, 3), "p": (3, STEPS), "q": (4, 3, STEPS), "w": (2,)}
    inputs = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    model = model_of([made], inputs, ["last", "y", "e", "o"])
    assert_same(by_needle(model, inputs), by_runtime(model, inputs))
    assert is_one_op(model, *inputs.values())


@pytest.mark.parametrize("name", ["linear", "sum first", "long"])
def test_infinities_and_nan_arise_where_they_do_in_the_body(name: str) -> None:
    """Also where 0 meets an infinite state, which two factors or terms at once would hide."""
    rng = np.random.default_rng(4)
    special = np.array([0, -1, 1, np.inf, -np.inf, np.nan], "float32")
    for first in (0.0, np.inf):
        draws = [rng.choice(special, (STEPS, 3), p=[0.2, 0.3, 0.41, 0.04, 0.03, 0.02])
                 for _ in range(2)]  # fmt: skip
        compared(
            [*LINEAR[name], same_value()],
            p=draws[0],
            q=draws[1],
            first=np.full(3, first, "float32"),
        )


OTHERS = {
    "tanh of the state": [node("Tanh", "s", "t1"), node("Add", "t1 b", "n")],
    "the state twice": [node("Mul", "s s", "t1"), node("Mul", "t1 c", "n")],
    "a lerp": [node("Sub", "a s", "t1"), node("Mul", "t1 c", "t2"), node("Add", "s t2", "n")],
    "divided": [node("Div", "s a", "n")],
    "a sum and an extreme": [node("Add", "s b", "t1"), node("Max", "t1 a", "n")],
    "chosen": [node("Greater", "a b", "t1"), node("Where", "t1 a s", "n")],
    "a product of rows": [node("MatMul", "a b", "t1"), node("Add", "s t1", "n")],
    "a cast": [node("Cast", "s", "t1", to=11), node("Cast", "t1", "t2", to=1),
               node("Add", "t2 a", "n")],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_bodies(name: str) -> None:
    compared([*OTHERS[name], same_value()])


@pytest.mark.parametrize("stage", ["noopt", "fused"])
def test_compiled(stage: str) -> None:
    """Several states, and an axis of any number of steps, which ends at different places."""
    needle_tvm = pytest.importorskip("needle_tvm")
    nodes = [node("Tanh", "s", "t1"), node("Add", "t1 a", "n"), node("Max", "t n", "m"),
             node("Sub", "m b", "y")]  # fmt: skip
    firsts = {"s0": A[0], "t0": B[0]}
    inputs = {**firsts, "p": A, "q": B}
    model = model_of([scan(nodes, states=2)], inputs, ["s9", "t9", "z"], free=True)
    t = ndl.Dim("t", min=1, max=99)
    dims = {"p": {0: t}, "q": {0: t}}
    run = needle_tvm.compile_onnx(model, *inputs.values(), dims=dims, stage=stage, progress=False)
    for steps in (1, 2, 7, STEPS):
        given = {**firsts, "p": A[:steps], "q": B[:steps]}
        found = [x.numpy() for x in run(*given.values())]
        assert_same(found, by_runtime(model, given), 1e-5)


def test_reductions() -> None:
    """Along all axes of a step, those of an input and those of an attribute."""
    compared([node("ReduceMax", "a", "t1"), node("Add", "s t1", "n"), same_value()])
    step = body(
        [
            node("Identity", "x", "again"),
            node("Sub", "x c", "apart"),
            node("ReduceSumSquare", "apart features", "squares", keepdims=0),
            node("Softmax", "apart", "unused"),
            node("ReduceMin", "apart last", "least"),
            node("ReduceL1", "apart", "whole", keepdims=0),
        ],
        "x:float32:2 c:float32:1",
        "again:float32:2 squares:float32:1 least:float32:2 whole:float32:0",
    )
    made = node("Scan", "x0 centres", "x9 squares least whole", body=step, num_scan_inputs=1)
    inputs = {"x0": A[:7], "centres": B}
    model = model_of([made], inputs, ["x9", "squares", "least", "whole"],
                     weights={"features": np.array([1]), "last": np.array([-1])})  # fmt: skip
    assert_same(by_needle(model, inputs), by_runtime(model, inputs), 1e-5)
    assert is_one_op(model, *inputs.values())


def test_states_that_depend_on_each_other() -> None:
    compared([node("Add", "s t", "n"), node("Mul", "t s", "m"), node("Tanh", "n", "y")],
             states=2, p=A * 0, first=np.zeros(3, "float32"))  # fmt: skip


def test_a_state_of_another_shape_is_unrolled() -> None:
    """The first state broadcasts to that of all further steps."""
    step = body([*SUM, same_value()], "s:float32:1 a:float32:1", "n:float32:1 y:float32:1")
    made = node("Scan", "s0 p", "last y", body=step, num_scan_inputs=1)
    model = model_of([made], {"s0": A[0, :1], "p": A}, ["last", "y"])
    last, rows = by_needle(model, {"s0": A[0, :1], "p": A})
    expected = A[0, 0] + np.cumsum(A, 0, dtype="float64")
    assert_same([last, rows], [expected[-1].astype("float32"), expected.astype("float32")])


def test_loops_with_a_count() -> None:
    """Rows are gathered by the iteration's number; a condition may be given and passed on."""
    nodes = [
        node("Gather", "x i", "row", axis=1),
        node("Mul", "s c", "kept"),
        node("Add", "kept row", "next"),
        node("Cast", "i", "turn", to=1),
        node("Mul", "next turn", "y"),
        node("Identity", "keep", "again"),
    ]
    ins = "i:int64:0 keep:bool:0 s:float32:1"
    step = body(nodes, ins, "again:bool:0 next:float32:1 y:float32:1")
    x = np.ascontiguousarray(A.T)
    inputs = {"s0": x[:, 0], "x": x}
    for go in ("-", "go"):
        model = model_of(
            [
                number("most", STEPS - 3),
                number("go", True, "bool"),
                node("Loop", f"most {go} s0", "last y", body=step),
            ],
            inputs,
            ["last", "y"],
            weights={"c": np.array(0.5, "float32")},
        )
        assert_same(by_needle(model, inputs), by_runtime(model, inputs))
        assert is_one_op(model, *inputs.values())


def test_what_is_known_stays_known() -> None:
    """A shape that a Loop computes from known numbers."""
    step = body(
        [node("Mul", "s two", "n"), node("Identity", "keep", "again")],
        "i:int64:0 keep:bool:0 s:int64:1",
        "again:bool:0 n:int64:1",
    )
    nodes = [
        number("two", 2),
        number("most", 2),
        number("start", [1]),
        node("Loop", "most - start", "size", body=step),
        number("rest", [-1]),
        node("Concat", "size rest", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    model = model_of(nodes, {"x": A}, ["y"])
    assert_same(by_needle(model, {"x": A}), by_runtime(model, {"x": A}))
    assert trace(needle.onnx.load(model), ndl.Tensor(A)) is not None


def test_any_number_of_steps() -> None:
    """An axis that a Dim leaves open."""
    step = body([*LINEAR["linear"], same_value("s")], "s:float32:1 a:float32:1 b:float32:1",
                "n:float32:1 y:float32:1")  # fmt: skip
    made = node("Scan", "s0 p q", "last y", body=step, num_scan_inputs=2)
    inputs = {"s0": A[0], "p": A, "q": B}
    model = model_of([made], inputs, ["last", "y"], free=True)
    t = ndl.Dim("t", min=2, max=99)
    assert is_one_op(model, *inputs.values(), dims={1: {0: t}, 2: {0: t}})


EXPORTED = {
    "cumprod": lambda x: ops.cumprod(x, 1),
    "logcumsumexp": lambda x: ops.logcumsumexp(x, 1),
    "linear_scan": lambda x: ops.linear_scan(x, x * 0.5, 1, reverse=True),
    "cummax": lambda x: ops.cummax(x, 1),
    "cummin": lambda x: ops.cummin(x, 1),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_what_needle_exports_comes_back(name: str, tmp_path: Any) -> None:
    function = EXPORTED[name]
    dtypes = ["float32", "float16", "float64"] + ["int32", "bool"] * (name != "linear_scan")
    for dtype in dtypes:
        x = (np.random.default_rng(5).normal(size=(2, STEPS, 3)) * 2).astype(dtype)
        if dtype.startswith("float") and name.startswith("cum"):
            x[0, 5:7, 1] = np.nan
        ndl.onnx.export(function, x, tmp_path / "model.onnx")
        assert is_one_op(tmp_path / "model.onnx", x)
        module, given = needle.onnx.load(tmp_path / "model.onnx"), ndl.Tensor(x)
        with ndl.no_grad():
            found, expected = module(given), function(given)
        both = [[*x] if name in ("cummax", "cummin") else [x] for x in (found, expected)]
        arrays = [[x.numpy() for x in each] for each in both]
        assert_same(*arrays, 2e-3 if dtype == "float16" else 1e-6)


def test_gradients_flow_through() -> None:
    """By finite differences of the unrolled loop's own arithmetic, in float64."""
    step = body([*LINEAR["linear"], same_value()], "s:float64:1 a:float64:1 b:float64:1",
                "n:float64:1 y:float64:1")  # fmt: skip
    made = node("Scan", "s0 p q", "last y", body=step, num_scan_inputs=2)
    arrays = [x.astype("float64") for x in (A[0], A[:6], B[:6])]
    inputs = dict(zip(["s0", "p", "q"], arrays, strict=True))
    model = model_of([made], inputs, ["last"], dtypes={"last": "float64"})
    tensors = [ndl.Tensor(x, requires_grad=True) for x in arrays]
    needle.onnx.load(model)(*tensors).sum().backward()

    def last(s: np.ndarray, p: np.ndarray, q: np.ndarray) -> float:
        for a, b in zip(p, q, strict=True):
            s = a * s + b
        return float(s.sum())

    for i, x in enumerate(arrays):
        for at in [(0,) * x.ndim, (-1,) * x.ndim]:
            moved = [each.copy() for each in arrays]
            moved[i][at] += 1e-6
            expected = (last(*moved) - last(*arrays)) / 1e-6
            np.testing.assert_allclose(tensors[i].grad.numpy()[at], expected, rtol=1e-4)
