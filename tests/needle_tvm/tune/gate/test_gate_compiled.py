"""The gate on compiled code: the float64 reference, right schedules, and faults in a candidate."""

import json
import math
import re

import numpy as np
import pytest

from apps.models import language, mlp, resnet, transformer
from needle import nn, ops
from needle_tvm._tvm.names import Schedule, script, tvm
from needle_tvm.errors import TuningError
from needle_tvm.kernels import cpu
from needle_tvm.kernels.blocks import annotated
from needle_tvm.kernels.dense.cpu import DENSE
from needle_tvm.lower import linking
from needle_tvm.tir.functions import NARROW_FLOATS, in_float64
from needle_tvm.tune.gate import reference
from needle_tvm.tune.measure import steps as measure
from tests.needle_tvm.conftest import make_mlp, tensor
from tests.needle_tvm.tune.gate.gating import (
    built,
    compiled,
    functions,
    measured,
    prepare,
    ruled,
    target,
)


def floats(*shape, dtype="float32", scale=1):
    values = np.random.default_rng(0).standard_normal(shape) * scale
    return tensor(values.astype(dtype))


def whole(*shape, below):
    return tensor(np.random.default_rng(0).integers(0, below, shape))


# name: (function or module, its inputs)
FUNCTIONS = {
    "softmax": (ops.softmax, [floats(8, 64)]),
    "logsoftmax": (ops.logsoftmax, [floats(8, 64)]),
    "layer norm": (lambda x: nn.LayerNorm1d(64)(x), [floats(8, 64)]),
    "gelu": (ops.gelu, [floats(8, 64)]),
    "erf": (ops.erf, [floats(8, 64)]),
    "tanh": (ops.tanh, [floats(8, 64)]),
    "sigmoid": (ops.sigmoid, [floats(8, 64)]),
    "exp": (lambda x, y: ops.exp(x + y), [floats(8, 64), floats(8, 64)]),
    "log": (ops.log, [floats(8, 64)]),
    "argmax": (lambda x, y: ops.argmax(x + y, 1), [floats(8, 64), floats(8, 64)]),
    "where": (
        lambda x, y: ops.where(x + y > 0, x, y * 100),
        [floats(8, 64), floats(8, 64)],
    ),
    "embedding": (lambda i, w: ops.embedding(i, w), [whole(3, below=5), floats(5, 16)]),
    "gather": (lambda x, i: x[i], [floats(1, 16), whole(3, below=1)]),
    "max pool": (lambda x: nn.MaxPool2d(2)(x), [floats(2, 3, 8, 8)]),
    "one sum": (lambda x: x.sum(), [floats(100, 100)]),
    "variance": (ops.var, [floats(100, 100)]),
    "loss": (lambda x, i: nn.SoftmaxLoss()(x, i), [floats(3, 8), whole(3, below=8)]),
    "float16 softmax": (ops.softmax, [floats(8, 64, dtype="float16")]),
    "bfloat16 product": (
        lambda x, y: x @ y,
        [floats(8, 64, dtype="bfloat16"), floats(64, 32, dtype="bfloat16")],
    ),
    "cast to whole numbers": (lambda x: ops.cast(x * 3, "int32"), [floats(8, 64)]),
}

MODELS = {"mlp": mlp.build, "conv": resnet.build, "transformer": transformer.build,
          "lstm": language.lstm}  # fmt: skip


def check(name, module, folder):
    """Check that our rule's schedule passes the function's gate, with a float64 reference."""
    candidate = compiled(module, folder, name)
    assert candidate.facts["reference"] == "float64", name
    wide = script(in_float64(module))
    assert not any(f'"{dtype}"' in wide or f"T.{dtype}(" in wide for dtype in NARROW_FLOATS)
    answer = measured(candidate.library, candidate.folder)
    assert "wrong" not in answer, (name, answer)
    assert 0 <= answer["difference"] and len(answer["run_secs"]) == 1
    return candidate


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_twins_in_float64(tmp_path, name):
    function, inputs = FUNCTIONS[name]
    found = functions(function, *inputs)
    assert found
    for task, module in found.items():
        candidate = check(task, module, tmp_path)
        assert set(candidate.facts["left_out"]) <= {"tiny", "large"}, candidate.facts


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_function_of_the_models(tmp_path, name):
    model, x = MODELS[name]()
    found = functions(model, tensor(x))
    assert len(found) >= {"mlp": 1, "conv": 11, "transformer": 9, "lstm": 5}[name]
    for task, module in found.items():
        left_out = set(check(task, module, tmp_path).facts["left_out"])
        # With weights as in those cases, a recurrence may amplify a rounding with each step.
        assert left_out <= ({"zeros"} if task.startswith("loop") else set()), task


def test_functions_of_small_models(tmp_path):
    """A sample of the test above for every run."""
    model = nn.Sequential(nn.Conv(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    found = functions(model.eval(), floats(2, 3, 6, 6))
    assert any("conv" in task for task in found)
    for task, module in found.items():
        check(task, module, tmp_path)


def test_numpy_agrees_with_the_reference(tmp_path):
    """The expected values are the function's, to float64's precision."""
    x, y = floats(3, 64), floats(64, 32)  # so few rows are not packed
    (module,) = functions(lambda x, y: ops.relu(x @ y), x, y).values()
    _, gate = prepare(module, tmp_path)
    for case in gate.cases:
        a, b = (array.astype(np.float64) for array in gate.inputs(case))
        with np.errstate(invalid="ignore"):
            product = a @ b
        expected = np.load(tmp_path / f"{case}.expected.0.npy")
        assert expected.dtype == np.float64
        scale = np.nanmax(np.abs(expected), where=np.isfinite(expected), initial=0)
        wanted = np.where(np.isnan(product), product, np.maximum(product, 0))
        np.testing.assert_allclose(expected, wanted, rtol=0, atol=1e-13 * scale)


def test_cases_are_what_they_say(tmp_path):
    (module,) = functions(make_mlp(32, 48), floats(4, 32)).values()
    _, gate = prepare(module, tmp_path)
    inputs = {case: gate.inputs(case) for case in gate.cases}
    largest = {case: max(np.nanmax(np.abs(a)) for a in inputs[case]) for case in gate.cases}
    assert largest["tiny"] < 1e-9 and 1 < largest["ordinary"] < 10 and largest["large"] > 1e9
    for number in range(len(inputs["ordinary"])):
        zero = inputs["zeros"][number]
        assert {bool(sign) for sign in np.signbit(zero[zero == 0])} == {False, True}
        assert 0.2 < (zero == 0).mean() < 0.9
        assert np.isnan(inputs["special"][number]).sum() == 1
        assert sorted(x for x in inputs["special"][number].flat if np.isinf(x)) == [-np.inf, np.inf]
    expected = np.load(tmp_path / "special.expected.0.npy")
    for kind in (np.isnan, np.isposinf, np.isfinite):
        assert kind(expected).any(), kind
    again, _ = prepare(module, tmp_path / "again")
    other, _ = prepare(module, tmp_path / "other", seed=1)
    files = [(tmp_path / each / "ordinary.0.npy").read_bytes() for each in (".", "again", "other")]
    assert files[0] == files[1] != files[2] and again["cases"] == other["cases"]


GATHER = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(w: T.Buffer((T.int64(EXTENT), T.int64(4)), "float32"),
             i: T.Buffer((T.int64(200),), "DTYPE"),
             y: T.Buffer((T.int64(200), T.int64(4)), "float32")):
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        for i0, i1 in T.grid(T.int64(200), T.int64(4)):
            with T.sblock("y"):
                v_0, v_1 = T.axis.remap("SS", [i0, i1])
                y[v_0, v_1] = w[INDEX, v_1]
"""


@pytest.mark.parametrize(
    "index, extent, seen",
    [
        ("i[v_0]", 1, {0}),
        ("i[v_0]", 5, set(range(5))),
        ("i[v_0] * T.DTYPE(2)", 5, {0, 1}),
        ("T.max(T.min(i[v_0], T.DTYPE(4)), T.DTYPE(0))", 5, set(range(-5, 5))),
        ("T.max(T.min(i[v_0], T.DTYPE(9)), T.DTYPE(0))", 5, {0, 1}),  # clamped to another axis
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_stay_inside(tmp_path, index, extent, seen, dtype):
    text = GATHER.replace("INDEX", index).replace("EXTENT", str(extent)).replace("DTYPE", dtype)
    _, gate = prepare(tvm.script.from_source(text), tmp_path)
    for case in gate.cases:
        (drawn,) = (a for a in gate.inputs(case) if a.dtype == dtype)
        assert set(drawn.tolist()) == seen


def test_too_large_a_function_has_fewer_cases(tmp_path, monkeypatch):
    (module,) = functions(make_mlp(32, 48), floats(4, 32)).values()
    *inputs, output = (math.prod(map(int, each.shape)) for each in module["main"].params)
    size = 4 * sum(inputs) + 8 * output  # the expected output is kept as well
    monkeypatch.setattr(reference, "_BYTES", 3 * size)
    facts, gate = prepare(module, tmp_path)
    assert facts["cases"] == ["ordinary", "special", "tiny"] == list(gate.cases)
    assert set(facts["left_out"]) == {"large", "zeros"} and "MiB" in facts["left_out"]["large"]
    monkeypatch.setattr(reference, "_SECONDS", 0.0)
    assert prepare(module, tmp_path)[0]["cases"] == ["ordinary"]


def test_an_answer_that_rounding_decides(tmp_path):
    """x + 100,000 has many ties in float32 and none in float64, so both maxima are right."""
    (module,) = functions(lambda x: ops.argmax(x + 1e5, 1), floats(64, 64)).values()
    candidate = check("argmax", module, tmp_path)
    outputs = candidate.gate.facts["cases"]["ordinary"]
    assert outputs[0]["alternatives"] >= 1 and candidate.facts["decides"]

    def call(inputs, outputs):
        candidate.call(inputs, outputs)
        outputs[0][outputs[0] < 63] += 1

    assert not candidate.gate.check(call).passed


REINTERPRETING = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((T.int64(64),), "float32"), y: T.Buffer((T.int64(64),), "float32")):
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        for i in range(T.int64(64)):
            with T.sblock("y"):
                v = T.axis.spatial(T.int64(64), i)
                y[v] = T.reinterpret("float32", T.reinterpret("int32", x[v]))
"""


def test_a_function_that_float64_cannot_carry_out(tmp_path):
    module = tvm.script.from_source(REINTERPRETING)
    with pytest.raises(ValueError, match="reinterpret"):
        in_float64(module)
    facts, gate = prepare(module, tmp_path / "gate")
    assert facts["reference"] == "float32" and "ordinary" in facts["cases"]
    library = built(ruled(module), tmp_path / "x.so")
    assert "wrong" not in measured(library, gate.folder)


def test_a_function_without_a_result_is_refused(tmp_path):
    text = REINTERPRETING.replace("y[v] = T.reinter", "T.evaluate(T.reinter")
    module = tvm.script.from_source(text.replace("x[v]))", "x[v])))"))
    with pytest.raises(TuningError, match="writes none"):
        prepare(module, tmp_path)


# Right schedules


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    (module,) = functions(make_mlp(64, 48), floats(4, 64)).values()
    return compiled(module, tmp_path_factory.mktemp("layer"), "layer")


@pytest.mark.parametrize("factor", [2, 4, 16])
def test_reassociated_sums_pass(layer, tmp_path, factor):
    """The reduction is split, reordered and factored, as in meta_schedule's sketches."""
    sch = Schedule(layer.module)
    block = annotated(sch, DENSE)
    *outer, k = sch.get_loops(block)
    k_outer, k_inner = sch.split(k, [None, factor])
    sch.reorder(k_inner, k_outer, *outer)
    partial = sch.rfactor(k_inner, factor_axis=0)
    sch.parallel(sch.get_loops(partial)[0])
    answer = measured(built(sch.mod, tmp_path / "x.so"), layer.folder)
    assert "wrong" not in answer and answer["difference"] < layer.facts["tolerance"]


def test_every_variant_of_the_rule_passes(layer, tmp_path):
    for number, sch in enumerate(cpu.variants(layer.module["main"], target())):
        assert "wrong" not in measured(built(sch.mod, tmp_path / f"{number}.so"), layer.folder)


# Faults in the code

CHANGES = {
    "product": (r"\* lv\[", "* T.float32(1.001) * lv["),
    "epilogue": (r"T\.max\(T\.float32\(0\.0\)", "T.max(T.float32(0.001)"),
    "bias": (r"(T_add_intermediate\[[^=]*\] = )", r"\1T.float32(0.001) + "),
    "relu drops NaN": (r"T\.max\(T\.float32\(0\.0\), (.*)\)", r"T.max(\1, T.float32(0.0))"),
    "last term missed": (r"(in T\.grid\(.*, )T\.int64\(64\)\)", r"\1T.int64(63))"),
    "last column missed": (
        r"(for ax0, ax1 in T\.grid\(T\.int64\(4\), )T\.int64\(48\)(\):\s+with T\.sblock\(.T_max)",
        r"\1T.int64(47)\2",
    ),
    "accumulator": (r"(tiles\[.*\] = )T\.float32\(0\.0\)", r"\1T.float32(0.5)"),
    "half-precision sum": (
        r"(\n +tiles\[.*\] = )(tiles.*)",
        r'\1T.Cast("float32", T.Cast("float16", \2))',
    ),
    "past the end": (r"(\n +)(T_maximum_\w+)\[v_ax0(.*)", r"\1\2[v_ax0 + T.int64(1)\3\1\2[v_ax0\3"),
    "input changed": (
        r"(\n +)(T_maximum_\w+\[v_ax0.*)",
        r"\1\2\1x[0, 0] = x[0, 0] + T.float32(1.0)",
    ),
}


def faulty(module, change):
    text = module.script()
    pattern, replacement = CHANGES[change]
    changed = re.sub(pattern, replacement, text)
    assert changed != text, change
    return tvm.script.from_source(changed)


@pytest.mark.parametrize("change", CHANGES)
def test_a_fault_in_the_code_is_rejected(layer, tmp_path, change):
    library = built(faulty(layer.module, change), tmp_path / "x.so")
    answer = measured(library, layer.folder)
    assert "wrong" in answer and "run_secs" not in answer and "\n" not in answer["wrong"]
    assert answer["difference"] > layer.facts["tolerance"]
    expected = {"past the end": "outside", "input changed": "'x' was changed",
                "relu drops NaN": "special"}  # fmt: skip
    assert expected.get(change, "output 0") in answer["wrong"]
    json.dumps(answer)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_fault_in_the_code_is_rejected_under_every_gate(layer, tmp_path, change):
    """All of 20 gates reject it, so the numbers that a gate happens to draw do not matter."""
    library = built(faulty(layer.module, change), tmp_path / "x.so")
    for seed in range(20):
        prepare(layer.module, tmp_path / str(seed), seed)
        assert "wrong" in measured(library, tmp_path / str(seed)), seed


# Each half takes many times as long as waking a thread, so that the two overlap.
RACE = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((T.int64(8192),), "float32"), y: T.Buffer((T.int64(1),), "float32")):
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        y[0] = T.float32(0.0)
        for half in T.KIND(T.int64(2)):
            for again in range(T.int64(1024)):
                for i in range(T.int64(8192)):
                    y[0] = y[0] + x[i]
"""


def test_threads_that_race_are_rejected(tmp_path):
    plain, race = (
        tvm.script.from_source(RACE.replace("KIND", kind)) for kind in ("serial", "parallel")
    )
    facts, gate = prepare(plain, tmp_path / "gate")
    assert facts["reference"] == "float64"
    assert "wrong" not in measured(built(plain, tmp_path / "plain.so"), gate.folder)
    library = built(race, tmp_path / "race.so")
    # On a busy machine one half may wait until the other is done.
    assert any("wrong" in measured(library, gate.folder) for _ in range(10))


# Timing, and what goes wrong


def test_times_are_as_many_as_were_asked_for(layer):
    request = {"path": str(layer.library), "gate": str(layer.folder)}
    answer = measure.measure({**request, "number": 2, "repeat": 3, "min_repeat_ms": 5})
    assert len(answer["run_secs"]) == 3 and all(0 < each < 1 for each in answer["run_secs"])


def test_compare_tells_the_slow_one_from_the_fast_one(tmp_path):
    """On one thread, scalar loops take thirty times as long, which noise cannot hide."""
    (module,) = functions(make_mlp(256, 256), floats(8, 256)).values()
    layer = compiled(module, tmp_path, "layer", threads=1)
    slow = built(layer.module, tmp_path / "slow.so")
    request = {"gate": str(layer.folder), "rule": str(slow), "candidate": str(layer.library)}
    answer = measure.compare(request)
    low, high = answer["quartiles"]
    assert 1 < low <= answer["speedup"] <= high
    wrong = built(faulty(layer.module, "product"), tmp_path / "wrong.so")
    assert "speedup" not in measure.compare({**request, "candidate": str(wrong)})


def test_a_library_that_is_not_there_is_named(layer, tmp_path):
    with pytest.raises(TuningError, match=r"nowhere\.so: there is no such library"):
        measured(tmp_path / "nowhere.so", layer.folder)


def test_linking_needs_a_compiler_and_says_so(layer, tmp_path, monkeypatch):
    monkeypatch.setattr(linking, "cxx_compiler", lambda: None)
    with pytest.raises(TuningError, match=r"a C\+\+ compiler, and there is none"):
        built(layer.module, tmp_path / "x.so")
    monkeypatch.setattr(linking, "cxx_compiler", lambda: "false")
    with pytest.raises(TuningError, match="false failed to link code for this machine: no output"):
        built(layer.module, tmp_path / "x.so")
    assert not (tmp_path / "x.so").exists()
